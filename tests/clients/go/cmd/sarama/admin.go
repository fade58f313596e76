package main

import (
	"context"
	"errors"

	"github.com/IBM/sarama"

	"tidelog/clients/internal/program"
)

type done struct {
	Done bool `json:"done"`
}

// administer opens an admin client for one call.
func administer(a program.Arguments, call func(sarama.ClusterAdmin) (any, error)) error {
	admin, err := sarama.NewClusterAdmin(a.Brokers(), configured(a))
	if err != nil {
		return err
	}
	defer admin.Close()
	answer, err := call(admin)
	if err != nil {
		return err
	}
	program.Say(answer)
	return nil
}

// offsets looks up each of `times` (-2: the beginning, -1: the end, else milliseconds).
func offsets(_ context.Context, a program.Arguments) error {
	client, err := sarama.NewClient(a.Brokers(), configured(a))
	if err != nil {
		return err
	}
	defer client.Close()
	var found []int64
	for _, time := range a.Times {
		offset, err := client.GetOffset(a.Topic, a.Partition, time)
		if err != nil {
			return err
		}
		found = append(found, offset)
	}
	program.Say(map[string]any{"offsets": found})
	return nil
}

func commit(_ context.Context, a program.Arguments) error {
	return administer(a, func(admin sarama.ClusterAdmin) (any, error) {
		asked := map[int32]sarama.OffsetAndMetadata{}
		for partition, offset := range a.Offsets {
			asked[partition] = sarama.OffsetAndMetadata{Offset: offset, LeaderEpoch: -1}
		}
		topics := map[string]map[int32]sarama.OffsetAndMetadata{a.Topic: asked}
		answer, err := admin.AlterConsumerGroupOffsets(a.Group, topics, nil)
		if err != nil {
			return nil, err
		}
		for _, code := range answer.Errors[a.Topic] {
			if code != sarama.ErrNoError {
				return nil, code
			}
		}
		return done{true}, nil
	})
}

func committed(_ context.Context, a program.Arguments) error {
	return administer(a, func(admin sarama.ClusterAdmin) (any, error) {
		answer, err := admin.ListConsumerGroupOffsets(a.Group, nil)
		if err != nil {
			return nil, err
		}
		if answer.Err != sarama.ErrNoError {
			return nil, answer.Err
		}
		found := map[int32]int64{}
		for partition, block := range answer.Blocks[a.Topic] {
			if block.Offset >= 0 {
				found[partition] = block.Offset
			}
		}
		return map[string]any{"offsets": found}, nil
	})
}

func createTopic(_ context.Context, a program.Arguments) error {
	return administer(a, func(admin sarama.ClusterAdmin) (any, error) {
		configs := map[string]*string{}
		for name, value := range a.Configs {
			configs[name] = &value
		}
		detail := &sarama.TopicDetail{NumPartitions: int32(a.Count), ReplicationFactor: 1, ConfigEntries: configs}
		return done{true}, admin.CreateTopic(a.Topic, detail, false)
	})
}

func describeTopic(_ context.Context, a program.Arguments) error {
	return administer(a, func(admin sarama.ClusterAdmin) (any, error) {
		topics, err := admin.ListTopics()
		topic, exists := topics[a.Topic]
		return map[string]any{"exists": exists, "partitions": topic.NumPartitions}, err
	})
}

func createPartitions(_ context.Context, a program.Arguments) error {
	return administer(a, func(admin sarama.ClusterAdmin) (any, error) {
		return done{true}, admin.CreatePartitions(a.Topic, int32(a.Count), nil, false)
	})
}

func deleteTopic(_ context.Context, a program.Arguments) error {
	return administer(a, func(admin sarama.ClusterAdmin) (any, error) {
		return done{true}, admin.DeleteTopic(a.Topic)
	})
}

func describeConfigs(_ context.Context, a program.Arguments) error {
	return administer(a, func(admin sarama.ClusterAdmin) (any, error) {
		entries, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: a.Topic})
		configs := map[string]string{}
		for _, entry := range entries {
			configs[entry.Name] = entry.Value
		}
		return map[string]any{"configs": configs}, err
	})
}

func alterConfigs(_ context.Context, a program.Arguments) error {
	return administer(a, func(admin sarama.ClusterAdmin) (any, error) {
		asked := map[string]sarama.IncrementalAlterConfigsEntry{}
		for name, value := range a.Configs {
			asked[name] = sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value}
		}
		return done{true}, admin.IncrementalAlterConfig(sarama.TopicResource, a.Topic, asked, false)
	})
}

func deleteRecords(_ context.Context, a program.Arguments) error {
	return administer(a, func(admin sarama.ClusterAdmin) (any, error) {
		return done{true}, admin.DeleteRecords(a.Topic, a.Offsets)
	})
}

func listGroups(_ context.Context, a program.Arguments) error {
	return administer(a, func(admin sarama.ClusterAdmin) (any, error) {
		groups, err := admin.ListConsumerGroups()
		found := []string{}
		for group := range groups {
			found = append(found, group)
		}
		return map[string]any{"groups": found}, err
	})
}

func describeGroup(_ context.Context, a program.Arguments) error {
	return administer(a, func(admin sarama.ClusterAdmin) (any, error) {
		described, err := admin.DescribeConsumerGroups([]string{a.Group})
		if err != nil {
			return nil, err
		}
		if len(described) != 1 || !errors.Is(described[0].Err, sarama.ErrNoError) {
			return nil, described[0].Err
		}
		return map[string]any{"state": described[0].State, "members": len(described[0].Members)}, nil
	})
}

func deleteGroup(_ context.Context, a program.Arguments) error {
	return administer(a, func(admin sarama.ClusterAdmin) (any, error) {
		return done{true}, admin.DeleteConsumerGroup(a.Group)
	})
}

func deleteOffsets(_ context.Context, a program.Arguments) error {
	return administer(a, func(admin sarama.ClusterAdmin) (any, error) {
		for partition := range a.Offsets {
			if err := admin.DeleteConsumerGroupOffset(a.Group, a.Topic, partition); err != nil {
				return nil, err
			}
		}
		return done{true}, nil
	})
}

func describeCluster(_ context.Context, a program.Arguments) error {
	return administer(a, func(admin sarama.ClusterAdmin) (any, error) {
		brokers, _, err := admin.DescribeCluster()
		var found []string
		for _, broker := range brokers {
			found = append(found, broker.Addr())
		}
		return map[string]any{"brokers": found}, err
	})
}
