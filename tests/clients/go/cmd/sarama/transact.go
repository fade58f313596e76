package main

import (
	"context"

	"github.com/IBM/sarama"

	"tidelog/clients/internal/program"
)

// transact carries out one transaction after another.
func transact(_ context.Context, a program.Arguments) error {
	config := configured(a)
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Return.Successes = true
	config.Producer.Idempotent = true
	config.Producer.Transaction.ID = a.TransactionalID
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer(a.Brokers(), config)
	if err != nil {
		return err
	}
	defer producer.Close()
	for _, transaction := range a.Transactions {
		if err := carryOut(a, producer, transaction); err != nil {
			return err
		}
	}
	program.Say(map[string]bool{"done": true})
	return nil
}

func carryOut(a program.Arguments, producer sarama.SyncProducer, transaction program.Transaction) error {
	if err := producer.BeginTxn(); err != nil {
		return err
	}
	var messages []*sarama.ProducerMessage
	for _, given := range transaction.Records {
		value := sarama.StringEncoder(*given.Value)
		messages = append(messages, &sarama.ProducerMessage{Topic: a.Topic, Partition: given.Partition, Value: value})
	}
	if err := producer.SendMessages(messages); err != nil {
		return err
	}
	if a.Source != "" {
		offset := &sarama.PartitionOffsetMetadata{Partition: 0, Offset: transaction.Offset}
		offsets := map[string][]*sarama.PartitionOffsetMetadata{a.Source: {offset}}
		if err := producer.AddOffsetsToTxn(offsets, a.Group); err != nil {
			return err
		}
	}
	if transaction.Commit {
		return producer.CommitTxn()
	}
	return producer.AbortTxn()
}
