package main

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"

	"tidelog/clients/internal/program"
)

// administer opens an admin client for one call.
func administer(a program.Arguments, call func(*kadm.Client) (any, error)) error {
	client, err := open(a)
	if err != nil {
		return err
	}
	defer client.Close()
	answer, err := call(kadm.NewClient(client))
	if err != nil {
		return err
	}
	program.Say(answer)
	return nil
}

type done struct {
	Done bool `json:"done"`
}

// offsets looks up each of `times` (-2: the beginning, -1: the end, else milliseconds).
func offsets(ctx context.Context, a program.Arguments) error {
	return administer(a, func(admin *kadm.Client) (any, error) {
		var found []int64
		for _, time := range a.Times {
			var listed kadm.ListedOffsets
			var err error
			switch time {
			case -2:
				listed, err = admin.ListStartOffsets(ctx, a.Topic)
			case -1:
				listed, err = admin.ListEndOffsets(ctx, a.Topic)
			default:
				listed, err = admin.ListOffsetsAfterMilli(ctx, time, a.Topic)
			}
			if err == nil {
				err = listed.Error()
			}
			if err != nil {
				return nil, err
			}
			offset, _ := listed.Lookup(a.Topic, a.Partition)
			found = append(found, offset.Offset)
		}
		return map[string]any{"offsets": found}, nil
	})
}

func commit(ctx context.Context, a program.Arguments) error {
	return administer(a, func(admin *kadm.Client) (any, error) {
		asked := kadm.Offsets{}
		for partition, offset := range a.Offsets {
			asked.Add(kadm.Offset{Topic: a.Topic, Partition: partition, At: offset, LeaderEpoch: -1})
		}
		return done{true}, admin.CommitAllOffsets(ctx, a.Group, asked)
	})
}

func committed(ctx context.Context, a program.Arguments) error {
	return administer(a, func(admin *kadm.Client) (any, error) {
		fetched, err := admin.FetchOffsets(ctx, a.Group)
		if err != nil {
			return nil, err
		}
		found := map[int32]int64{}
		fetched.Each(func(o kadm.OffsetResponse) {
			if o.Topic == a.Topic && o.At >= 0 {
				found[o.Partition] = o.At
			}
		})
		return map[string]any{"offsets": found}, fetched.Error()
	})
}

func createTopic(ctx context.Context, a program.Arguments) error {
	return administer(a, func(admin *kadm.Client) (any, error) {
		configs := map[string]*string{}
		for name, value := range a.Configs {
			configs[name] = &value
		}
		_, err := admin.CreateTopic(ctx, int32(a.Count), 1, configs, a.Topic)
		return done{true}, err
	})
}

func describeTopic(ctx context.Context, a program.Arguments) error {
	return administer(a, func(admin *kadm.Client) (any, error) {
		topics, err := admin.ListTopics(ctx)
		return map[string]any{"exists": topics.Has(a.Topic), "partitions": len(topics[a.Topic].Partitions)}, err
	})
}

func createPartitions(ctx context.Context, a program.Arguments) error {
	return administer(a, func(admin *kadm.Client) (any, error) {
		answers, err := admin.UpdatePartitions(ctx, a.Count, a.Topic)
		if err == nil {
			err = answers.Error()
		}
		return done{true}, err
	})
}

func deleteTopic(ctx context.Context, a program.Arguments) error {
	return administer(a, func(admin *kadm.Client) (any, error) {
		_, err := admin.DeleteTopic(ctx, a.Topic)
		return done{true}, err
	})
}

func describeConfigs(ctx context.Context, a program.Arguments) error {
	return administer(a, func(admin *kadm.Client) (any, error) {
		described, err := admin.DescribeTopicConfigs(ctx, a.Topic)
		if err != nil {
			return nil, err
		}
		resource, err := described.On(a.Topic, nil)
		if err == nil {
			err = resource.Err
		}
		configs := map[string]string{}
		for _, config := range resource.Configs {
			configs[config.Key] = config.MaybeValue()
		}
		return map[string]any{"configs": configs}, err
	})
}

func alterConfigs(ctx context.Context, a program.Arguments) error {
	return administer(a, func(admin *kadm.Client) (any, error) {
		var asked []kadm.AlterConfig
		for name, value := range a.Configs {
			asked = append(asked, kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: &value})
		}
		answers, err := admin.AlterTopicConfigs(ctx, asked, a.Topic)
		if err != nil {
			return nil, err
		}
		answer, err := answers.On(a.Topic, nil)
		if err == nil {
			err = answer.Err
		}
		return done{true}, err
	})
}

func deleteRecords(ctx context.Context, a program.Arguments) error {
	return administer(a, func(admin *kadm.Client) (any, error) {
		before := kadm.Offsets{}
		for partition, offset := range a.Offsets {
			before.Add(kadm.Offset{Topic: a.Topic, Partition: partition, At: offset})
		}
		answers, err := admin.DeleteRecords(ctx, before)
		if err == nil {
			err = answers.Error()
		}
		return done{true}, err
	})
}

func listGroups(ctx context.Context, a program.Arguments) error {
	return administer(a, func(admin *kadm.Client) (any, error) {
		groups, err := admin.ListGroups(ctx)
		return map[string]any{"groups": groups.Groups()}, err
	})
}

// describeGroup takes the API of the group's own protocol.
func describeGroup(ctx context.Context, a program.Arguments) error {
	return administer(a, func(admin *kadm.Client) (any, error) {
		if a.Protocol == "consumer" {
			described, err := admin.DescribeConsumerGroups(ctx, a.Group)
			if err != nil {
				return nil, err
			}
			group, there := described[a.Group]
			if !there {
				return nil, fmt.Errorf("group %s was not described", a.Group)
			}
			return map[string]any{"state": group.State, "members": len(group.Members)}, group.Err
		}
		described, err := admin.DescribeGroups(ctx, a.Group)
		if err != nil {
			return nil, err
		}
		group, err := described.On(a.Group, nil)
		return map[string]any{"state": group.State, "members": len(group.Members)}, err
	})
}

func deleteGroup(ctx context.Context, a program.Arguments) error {
	return administer(a, func(admin *kadm.Client) (any, error) {
		_, err := admin.DeleteGroup(ctx, a.Group)
		return done{true}, err
	})
}

func deleteOffsets(ctx context.Context, a program.Arguments) error {
	return administer(a, func(admin *kadm.Client) (any, error) {
		asked := kadm.TopicsSet{}
		for partition := range a.Offsets {
			asked.Add(a.Topic, partition)
		}
		answers, err := admin.DeleteOffsets(ctx, a.Group, asked)
		if err == nil {
			err = answers.Error()
		}
		return done{true}, err
	})
}

func describeCluster(ctx context.Context, a program.Arguments) error {
	return administer(a, func(admin *kadm.Client) (any, error) {
		brokers, err := admin.ListBrokers(ctx)
		var found []string
		for _, broker := range brokers {
			found = append(found, fmt.Sprintf("%s:%d", broker.Host, broker.Port))
		}
		return map[string]any{"brokers": found}, err
	})
}
