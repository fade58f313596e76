package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"

	"tidelog/clients/internal/program"
)

type done struct {
	Done bool `json:"done"`
}

func clientOf(a program.Arguments) *kafka.Client {
	return &kafka.Client{Addr: kafka.TCP(a.Brokers()...), Timeout: program.Deadline, Transport: &kafka.Transport{ClientID: a.ClientID}}
}

// say answers unless there is an error.
func say(answer any, errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return err
	}
	program.Say(answer)
	return nil
}

// offsets looks up each of `times` (-2: the beginning, -1: the end, else milliseconds).
func offsets(ctx context.Context, a program.Arguments) error {
	var found []int64
	for _, at := range a.Times {
		asked := kafka.OffsetRequest{Partition: int(a.Partition), Timestamp: at}
		answer, err := clientOf(a).ListOffsets(ctx, &kafka.ListOffsetsRequest{
			Topics: map[string][]kafka.OffsetRequest{a.Topic: {asked}},
		})
		if err != nil {
			return err
		}
		partition := answer.Topics[a.Topic][0]
		if partition.Error != nil {
			return partition.Error
		}
		switch at {
		case kafka.FirstOffset:
			found = append(found, partition.FirstOffset)
		case kafka.LastOffset:
			found = append(found, partition.LastOffset)
		default:
			offset := int64(-1)
			for listed := range partition.Offsets {
				offset = listed
			}
			found = append(found, offset)
		}
	}
	return say(map[string]any{"offsets": found})
}

func commit(ctx context.Context, a program.Arguments) error {
	var asked []kafka.OffsetCommit
	for partition, offset := range a.Offsets {
		asked = append(asked, kafka.OffsetCommit{Partition: int(partition), Offset: offset})
	}
	answer, err := clientOf(a).OffsetCommit(ctx, &kafka.OffsetCommitRequest{
		GroupID: a.Group, GenerationID: -1, Topics: map[string][]kafka.OffsetCommit{a.Topic: asked},
	})
	if err != nil {
		return err
	}
	for _, partition := range answer.Topics[a.Topic] {
		if partition.Error != nil {
			return partition.Error
		}
	}
	return say(done{true})
}

func committed(ctx context.Context, a program.Arguments) error {
	var asked []int
	for _, partition := range a.Partitions {
		asked = append(asked, int(partition.Partition))
	}
	answer, err := clientOf(a).OffsetFetch(ctx, &kafka.OffsetFetchRequest{
		GroupID: a.Group, Topics: map[string][]int{a.Topic: asked},
	})
	if err != nil {
		return err
	}
	found := map[int]int64{}
	for _, partition := range answer.Topics[a.Topic] {
		if partition.Error != nil {
			return partition.Error
		}
		if partition.CommittedOffset >= 0 {
			found[partition.Partition] = partition.CommittedOffset
		}
	}
	return say(map[string]any{"offsets": found}, answer.Error)
}

func createTopic(ctx context.Context, a program.Arguments) error {
	topic := kafka.TopicConfig{Topic: a.Topic, NumPartitions: a.Count, ReplicationFactor: 1}
	for name, value := range a.Configs {
		topic.ConfigEntries = append(topic.ConfigEntries, kafka.ConfigEntry{ConfigName: name, ConfigValue: value})
	}
	answer, err := clientOf(a).CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{topic}})
	if err != nil {
		return err
	}
	return say(done{true}, answer.Errors[a.Topic])
}

func describeTopic(ctx context.Context, a program.Arguments) error {
	answer, err := clientOf(a).Metadata(ctx, &kafka.MetadataRequest{Topics: []string{a.Topic}})
	if err != nil {
		return err
	}
	topic := answer.Topics[0]
	if topic.Error != nil && !errors.Is(topic.Error, kafka.UnknownTopicOrPartition) {
		return topic.Error
	}
	return say(map[string]any{"exists": topic.Error == nil, "partitions": len(topic.Partitions)})
}

func createPartitions(ctx context.Context, a program.Arguments) error {
	answer, err := clientOf(a).CreatePartitions(ctx, &kafka.CreatePartitionsRequest{
		Topics: []kafka.TopicPartitionsConfig{{Name: a.Topic, Count: int32(a.Count)}},
	})
	if err != nil {
		return err
	}
	return say(done{true}, answer.Errors[a.Topic])
}

func deleteTopic(ctx context.Context, a program.Arguments) error {
	answer, err := clientOf(a).DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{a.Topic}})
	if err != nil {
		return err
	}
	return say(done{true}, answer.Errors[a.Topic])
}

func describeConfigs(ctx context.Context, a program.Arguments) error {
	asked := kafka.DescribeConfigRequestResource{ResourceType: kafka.ResourceTypeTopic, ResourceName: a.Topic}
	answer, err := clientOf(a).DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{
		Resources: []kafka.DescribeConfigRequestResource{asked},
	})
	if err != nil {
		return err
	}
	configs := map[string]string{}
	for _, entry := range answer.Resources[0].ConfigEntries {
		configs[entry.ConfigName] = entry.ConfigValue
	}
	return say(map[string]any{"configs": configs}, answer.Resources[0].Error)
}

func alterConfigs(ctx context.Context, a program.Arguments) error {
	asked := kafka.IncrementalAlterConfigsRequestResource{ResourceType: kafka.ResourceTypeTopic, ResourceName: a.Topic}
	for name, value := range a.Configs {
		asked.Configs = append(asked.Configs, kafka.IncrementalAlterConfigsRequestConfig{
			Name: name, Value: value, ConfigOperation: kafka.ConfigOperationSet,
		})
	}
	answer, err := clientOf(a).IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{
		Resources: []kafka.IncrementalAlterConfigsRequestResource{asked},
	})
	if err != nil {
		return err
	}
	return say(done{true}, answer.Resources[0].Error)
}

// listGroups asks each agent for the groups that it coordinates.
func listGroups(ctx context.Context, a program.Arguments) error {
	client := clientOf(a)
	metadata, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{a.Topic}})
	if err != nil {
		return err
	}
	found := []string{}
	for _, broker := range metadata.Brokers {
		answer, err := client.ListGroups(ctx, &kafka.ListGroupsRequest{Addr: kafka.TCP(address(broker))})
		if err == nil {
			err = answer.Error
		}
		if err != nil {
			return err
		}
		for _, group := range answer.Groups {
			found = append(found, group.GroupID)
		}
	}
	return say(map[string]any{"groups": found})
}

func describeGroup(ctx context.Context, a program.Arguments) error {
	answer, err := clientOf(a).DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{a.Group}})
	if err != nil {
		return err
	}
	group := answer.Groups[0]
	return say(map[string]any{"state": group.GroupState, "members": len(group.Members)}, group.Error)
}

func deleteGroup(ctx context.Context, a program.Arguments) error {
	answer, err := clientOf(a).DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{a.Group}})
	if err != nil {
		return err
	}
	return say(done{true}, answer.Errors[a.Group])
}

func deleteOffsets(ctx context.Context, a program.Arguments) error {
	var asked []int
	for partition := range a.Offsets {
		asked = append(asked, int(partition))
	}
	answer, err := clientOf(a).OffsetDelete(ctx, &kafka.OffsetDeleteRequest{
		GroupID: a.Group, Topics: map[string][]int{a.Topic: asked},
	})
	if err != nil {
		return err
	}
	errs := []error{answer.Error}
	for _, partition := range answer.Topics[a.Topic] {
		errs = append(errs, partition.Error)
	}
	return say(done{true}, errs...)
}

func describeCluster(ctx context.Context, a program.Arguments) error {
	answer, err := clientOf(a).Metadata(ctx, &kafka.MetadataRequest{})
	if err != nil {
		return err
	}
	var found []string
	for _, broker := range answer.Brokers {
		found = append(found, address(broker))
	}
	return say(map[string]any{"brokers": found})
}

func address(broker kafka.Broker) string { return fmt.Sprintf("%s:%d", broker.Host, broker.Port) }
