// Command sarama does over IBM/sarama what tests/clients asks of every client.
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"tidelog/clients/internal/program"
)

func main() {
	program.Main("github.com/IBM/sarama", member, map[string]program.Command{
		"login":             login,
		"produce":           produce,
		"consume":           consume,
		"transact":          transact,
		"offsets":           offsets,
		"commit":            commit,
		"committed":         committed,
		"create-topic":      createTopic,
		"describe-topic":    describeTopic,
		"create-partitions": createPartitions,
		"delete-topic":      deleteTopic,
		"describe-configs":  describeConfigs,
		"alter-configs":     alterConfigs,
		"delete-records":    deleteRecords,
		"list-groups":       listGroups,
		"describe-group":    describeGroup,
		"delete-group":      deleteGroup,
		"delete-offsets":    deleteOffsets,
		"describe-cluster":  describeCluster,
	})
}

// configured speaks the newest protocol that sarama knows, not that of the Kafka it takes for granted.
func configured(a program.Arguments) *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	if a.ClientID != "" {
		config.ClientID = a.ClientID
	}
	config.Consumer.MaxWaitTime = 200 * time.Millisecond
	config.Consumer.Return.Errors = true
	return config
}

var codecs = map[string]sarama.CompressionCodec{
	"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
	"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
}

var acks = map[string]sarama.RequiredAcks{"0": sarama.NoResponse, "1": sarama.WaitForLocal, "all": sarama.WaitForAll}

func produce(_ context.Context, a program.Arguments) error {
	config := configured(a)
	config.Producer.Compression = codecs[a.Compression]
	config.Producer.RequiredAcks = acks[a.Acks]
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Return.Successes = true
	config.Producer.Idempotent = a.Idempotent
	config.Net.MaxOpenRequests = 1 // sarama demands it for idempotence, and keeps the order of records only so
	producer, err := sarama.NewSyncProducer(a.Brokers(), config)
	if err != nil {
		return err
	}
	defer producer.Close()
	var messages []*sarama.ProducerMessage
	for _, given := range a.Records {
		message := &sarama.ProducerMessage{
			Topic: a.Topic, Partition: given.Partition, Timestamp: time.UnixMilli(given.TimestampMs),
		}
		if given.Key != nil {
			message.Key = sarama.StringEncoder(*given.Key)
		}
		if given.Value != nil {
			message.Value = sarama.StringEncoder(*given.Value)
		}
		for _, header := range given.Headers {
			message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(header[0]), Value: []byte(header[1])})
		}
		messages = append(messages, message)
	}
	if err := producer.SendMessages(messages); err != nil {
		return err
	}
	var acknowledged []int64
	for _, message := range messages {
		acknowledged = append(acknowledged, message.Offset)
	}
	program.Say(map[string]any{"offsets": acknowledged})
	return nil
}

func consume(ctx context.Context, a program.Arguments) error {
	config := configured(a)
	if a.Committed() {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	consumer, err := sarama.NewConsumer(a.Brokers(), config)
	if err != nil {
		return err
	}
	defer consumer.Close()
	for _, asked := range a.Partitions {
		// sarama's own constants for the end and the beginning are -1 and -2, too.
		partition, err := consumer.ConsumePartition(a.Topic, asked.Partition, asked.From)
		if err != nil {
			return err
		}
		if err := read(ctx, partition, asked.Count); err != nil {
			return err
		}
		if err := partition.Close(); err != nil {
			return err
		}
	}
	return nil
}

func read(ctx context.Context, partition sarama.PartitionConsumer, wanted int) error {
	for seen := 0; seen < wanted; seen++ {
		select {
		case message := <-partition.Messages():
			program.Say(recordOf(message))
		case failure := <-partition.Errors():
			return failure
		case <-ctx.Done():
			return fmt.Errorf("read %d of %d records: %w", seen, wanted, ctx.Err())
		}
	}
	return nil
}

func recordOf(message *sarama.ConsumerMessage) program.Record {
	found := program.Record{
		Event: "record", Partition: message.Partition, Offset: message.Offset,
		TimestampMs: message.Timestamp.UnixMilli(), Key: program.Text(message.Key), Value: program.Text(message.Value),
		Headers: [][2]string{},
	}
	for _, header := range message.Headers {
		found.Headers = append(found.Headers, [2]string{string(header.Key), string(header.Value)})
	}
	return found
}
