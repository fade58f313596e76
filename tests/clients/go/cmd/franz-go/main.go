// Command franz-go does over franz-go (kgo and kadm) what tests/clients asks of every client.
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"tidelog/clients/internal/program"
)

func main() {
	program.Main("github.com/twmb/franz-go", member, map[string]program.Command{
		"login":             login,
		"produce":           produce,
		"consume":           consume,
		"transact":          transact,
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
		"delete-records":    deleteRecords,
		"list-groups":       listGroups,
		"describe-group":    describeGroup,
		"delete-group":      deleteGroup,
		"delete-offsets":    deleteOffsets,
		"describe-cluster":  describeCluster,
	})
}

func open(a program.Arguments, options ...kgo.Opt) (*kgo.Client, error) {
	common := []kgo.Opt{kgo.SeedBrokers(a.Brokers()...), kgo.ClientID(a.ClientID), kgo.FetchMaxWait(200 * time.Millisecond)}
	return kgo.NewClient(append(common, options...)...)
}

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

var acks = map[string]kgo.Acks{"0": kgo.NoAck(), "1": kgo.LeaderAck(), "all": kgo.AllISRAcks()}

func produce(ctx context.Context, a program.Arguments) error {
	options := []kgo.Opt{
		kgo.ProducerBatchCompression(codecs[a.Compression]),
		kgo.RequiredAcks(acks[a.Acks]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}
	if !a.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client, err := open(a, options...)
	if err != nil {
		return err
	}
	defer client.Close()
	var records []*kgo.Record
	for _, given := range a.Records {
		record := &kgo.Record{
			Topic: a.Topic, Partition: given.Partition, Timestamp: time.UnixMilli(given.TimestampMs),
			Key: program.Bytes(given.Key), Value: program.Bytes(given.Value),
		}
		for _, header := range given.Headers {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: header[0], Value: []byte(header[1])})
		}
		records = append(records, record)
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return err
	}
	var acknowledged []int64
	for _, record := range records {
		acknowledged = append(acknowledged, record.Offset)
	}
	program.Say(map[string]any{"offsets": acknowledged})
	return nil
}

func startOf(from int64) kgo.Offset {
	switch from {
	case -2:
		return kgo.NewOffset().AtStart()
	case -1:
		return kgo.NewOffset().AtEnd()
	default:
		return kgo.NewOffset().At(from)
	}
}

func consume(ctx context.Context, a program.Arguments) error {
	isolation := kgo.ReadUncommitted()
	if a.Committed() {
		isolation = kgo.ReadCommitted()
	}
	client, err := open(a, assigned(a), kgo.FetchIsolationLevel(isolation))
	if err != nil {
		return err
	}
	defer client.Close()
	return read(ctx, client, a.Wanted())
}

// seek reads the whole range, then goes to `offset` of its first partition and reads `count` records from there.
func seek(ctx context.Context, a program.Arguments) error {
	client, err := open(a, assigned(a))
	if err != nil {
		return err
	}
	defer client.Close()
	if err := read(ctx, client, a.Wanted()); err != nil {
		return err
	}
	program.Say(map[string]string{"event": "seek"})
	to := kgo.EpochOffset{Epoch: -1, Offset: a.Offset}
	client.SetOffsets(map[string]map[int32]kgo.EpochOffset{a.Topic: {a.Partitions[0].Partition: to}})
	return read(ctx, client, a.Count)
}

func assigned(a program.Arguments) kgo.Opt {
	starts := map[int32]kgo.Offset{}
	for _, asked := range a.Partitions {
		starts[asked.Partition] = startOf(asked.From)
	}
	return kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{a.Topic: starts})
}

func read(ctx context.Context, client *kgo.Client, wanted int) error {
	for seen := 0; seen < wanted; {
		fetches := client.PollRecords(ctx, wanted-seen)
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read %d of %d records: %w", seen, wanted, err)
		}
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, record := range fetches.Records() {
			program.Say(recordOf(record))
			seen++
		}
	}
	return nil
}

func recordOf(record *kgo.Record) program.Record {
	found := program.Record{
		Event: "record", Partition: record.Partition, Offset: record.Offset, TimestampMs: record.Timestamp.UnixMilli(),
		Key: program.Text(record.Key), Value: program.Text(record.Value), Headers: [][2]string{},
	}
	for _, header := range record.Headers {
		found.Headers = append(found.Headers, [2]string{header.Key, string(header.Value)})
	}
	return found
}
