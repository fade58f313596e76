// Command kafka-go does over segmentio/kafka-go what tests/clients asks of every client.
package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"tidelog/clients/internal/program"
)

func main() {
	program.Main("github.com/segmentio/kafka-go", member, map[string]program.Command{
		"login":             login,
		"produce":           produce,
		"consume":           consume,
		"seek":              seek,
		"offsets":           offsets,
		"commit":            commit,
		"committed":         committed,
		"create-topic":      createTopic,
		"describe-topic":    describeTopic,
		"create-partitions": createPartitions,
		"delete-topic":      deleteTopic,
		"describe-configs":  describeConfigs,
		"alter-configs":     alterConfigs,
		"list-groups":       listGroups,
		"describe-group":    describeGroup,
		"delete-group":      deleteGroup,
		"delete-offsets":    deleteOffsets,
		"describe-cluster":  describeCluster,
	})
}

var codecs = map[string]kafka.Compression{
	"gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd,
}

var acks = map[string]kafka.RequiredAcks{"0": kafka.RequireNone, "1": kafka.RequireOne, "all": kafka.RequireAll}

// place is where a message goes and which of the records it is.
type place struct {
	partition int32
	index     int
}

func produce(ctx context.Context, a program.Arguments) error {
	acknowledged := make([]int64, len(a.Records))
	var lock sync.Mutex
	writer := &kafka.Writer{
		Addr:         kafka.TCP(a.Brokers()...),
		Topic:        a.Topic,
		Compression:  codecs[a.Compression],
		RequiredAcks: acks[a.Acks],
		BatchTimeout: 5 * time.Millisecond,
		Transport:    &kafka.Transport{ClientID: a.ClientID},
		Balancer: kafka.BalancerFunc(func(message kafka.Message, _ ...int) int {
			return int(message.WriterData.(place).partition)
		}),
		Completion: func(messages []kafka.Message, _ error) {
			lock.Lock()
			defer lock.Unlock()
			for _, message := range messages {
				acknowledged[message.WriterData.(place).index] = message.Offset
			}
		},
	}
	var messages []kafka.Message
	for index, given := range a.Records {
		message := kafka.Message{
			Key: program.Bytes(given.Key), Value: program.Bytes(given.Value), Time: time.UnixMilli(given.TimestampMs),
			WriterData: place{given.Partition, index},
		}
		for _, header := range given.Headers {
			message.Headers = append(message.Headers, kafka.Header{Key: header[0], Value: []byte(header[1])})
		}
		messages = append(messages, message)
	}
	if err := writer.WriteMessages(ctx, messages...); err != nil {
		return err
	}
	if err := writer.Close(); err != nil {
		return err
	}
	program.Say(map[string]any{"offsets": acknowledged})
	return nil
}

func reading(a program.Arguments, partition int32) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers: a.Brokers(), Topic: a.Topic, Partition: int(partition), MaxWait: 200 * time.Millisecond,
		Dialer: &kafka.Dialer{ClientID: a.ClientID, Timeout: 10 * time.Second},
	})
}

func consume(ctx context.Context, a program.Arguments) error {
	for _, asked := range a.Partitions {
		reader := reading(a, asked.Partition)
		// kafka-go's own constants for the end and the beginning are -1 and -2, too.
		if err := reader.SetOffset(asked.From); err != nil {
			return err
		}
		if err := read(ctx, reader, asked.Count); err != nil {
			return err
		}
		if err := reader.Close(); err != nil {
			return err
		}
	}
	return nil
}

// seek reads the first range, then goes to `offset` of its partition and reads `count` records from there.
func seek(ctx context.Context, a program.Arguments) error {
	reader := reading(a, a.Partitions[0].Partition)
	defer reader.Close()
	if err := reader.SetOffset(a.Partitions[0].From); err != nil {
		return err
	}
	if err := read(ctx, reader, a.Partitions[0].Count); err != nil {
		return err
	}
	program.Say(map[string]string{"event": "seek"})
	if err := reader.SetOffset(a.Offset); err != nil {
		return err
	}
	return read(ctx, reader, a.Count)
}

func read(ctx context.Context, reader *kafka.Reader, wanted int) error {
	for seen := 0; seen < wanted; seen++ {
		message, err := reader.ReadMessage(ctx)
		if err != nil {
			return fmt.Errorf("read %d of %d records: %w", seen, wanted, err)
		}
		program.Say(recordOf(message))
	}
	return nil
}

func recordOf(message kafka.Message) program.Record {
	found := program.Record{
		Event: "record", Partition: int32(message.Partition), Offset: message.Offset,
		TimestampMs: message.Time.UnixMilli(), Key: program.Text(message.Key), Value: program.Text(message.Value),
		Headers: [][2]string{},
	}
	for _, header := range message.Headers {
		found.Headers = append(found.Headers, [2]string{header.Key, string(header.Value)})
	}
	return found
}
