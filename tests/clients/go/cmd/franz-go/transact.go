package main

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"tidelog/clients/internal/program"
)

// transact carries out one transaction after another. franz-go commits offsets in a transaction only as a member of the
// group that has read up to them.
func transact(ctx context.Context, a program.Arguments) error {
	options := []kgo.Opt{kgo.TransactionalID(a.TransactionalID), kgo.RecordPartitioner(kgo.ManualPartitioner())}
	if a.Source != "" {
		return transform(ctx, a, options)
	}
	client, err := open(a, options...)
	if err != nil {
		return err
	}
	defer client.Close()
	for _, transaction := range a.Transactions {
		if err := client.BeginTransaction(); err != nil {
			return err
		}
		if err := client.ProduceSync(ctx, recordsOf(a, transaction)...).FirstErr(); err != nil {
			return err
		}
		if err := client.EndTransaction(ctx, kgo.TransactionEndTry(transaction.Commit)); err != nil {
			return err
		}
	}
	program.Say(map[string]bool{"done": true})
	return nil
}

func transform(ctx context.Context, a program.Arguments, options []kgo.Opt) error {
	session, err := kgo.NewGroupTransactSession(append(
		options, kgo.SeedBrokers(a.Brokers()...), kgo.ClientID(a.ClientID), kgo.ConsumerGroup(a.Group),
		kgo.ConsumeTopics(a.Source), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)...)
	if err != nil {
		return err
	}
	defer session.Close()
	committed := int64(0)
	for _, transaction := range a.Transactions {
		for position := committed; position < transaction.Offset; {
			fetches := session.PollRecords(ctx, int(transaction.Offset-position))
			if err := fetches.Err(); err != nil {
				return fmt.Errorf("read up to %d of %d: %w", position, transaction.Offset, err)
			}
			position += int64(fetches.NumRecords())
		}
		if err := session.Begin(); err != nil {
			return err
		}
		if err := session.ProduceSync(ctx, recordsOf(a, transaction)...).FirstErr(); err != nil {
			return err
		}
		done, err := session.End(ctx, kgo.TransactionEndTry(transaction.Commit))
		if err != nil {
			return err
		}
		if done != transaction.Commit {
			return fmt.Errorf("the transaction up to %d was aborted", transaction.Offset)
		}
		if done {
			committed = transaction.Offset
		}
	}
	program.Say(map[string]bool{"done": true})
	return nil
}

func recordsOf(a program.Arguments, transaction program.Transaction) []*kgo.Record {
	var records []*kgo.Record
	for _, given := range transaction.Records {
		value := program.Bytes(given.Value)
		records = append(records, &kgo.Record{Topic: a.Topic, Partition: given.Partition, Value: value})
	}
	return records
}
