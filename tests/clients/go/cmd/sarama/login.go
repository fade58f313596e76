package main

import (
	"context"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"

	"tidelog/clients/internal/program"
)

// conversation is SCRAM as sarama wants its user to bring it.
type conversation struct {
	*scram.ClientConversation
	hash scram.HashGeneratorFcn
}

func (c *conversation) Begin(user, password, authzID string) error {
	client, err := c.hash.NewClient(user, password, authzID)
	if err != nil {
		return err
	}
	c.ClientConversation = client.NewConversation()
	return nil
}

type token string

func (t token) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(t)}, nil
}

// login produces `count` records, waiting `every_ms` after each, and reads them.
func login(ctx context.Context, a program.Arguments) error {
	config := configured(a)
	encryption, err := a.Security.TLS()
	if err != nil {
		return err
	}
	config.Net.TLS.Enable, config.Net.TLS.Config = encryption != nil, encryption
	config.Producer.Return.Successes = true
	config.Metadata.Retry.Max = 1
	if a.Security.LogsIn() {
		config.Net.SASL.Enable = true
		config.Net.SASL.Mechanism = sarama.SASLMechanism(a.Security.Mechanism)
		config.Net.SASL.User, config.Net.SASL.Password = a.Security.User, a.Security.Password
		config.Net.SASL.TokenProvider = token(a.Security.Token)
		hash := scram.SHA256
		if a.Security.Mechanism == "SCRAM-SHA-512" {
			hash = scram.SHA512
		}
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &conversation{hash: hash} }
	}
	client, err := sarama.NewClient(a.Brokers(), config)
	if err != nil {
		return err
	}
	defer client.Close()
	producer, err := sarama.NewSyncProducerFromClient(client)
	if err != nil {
		return err
	}
	for _, value := range a.Values() {
		message := &sarama.ProducerMessage{Topic: a.Topic, Value: sarama.StringEncoder(value)}
		if _, _, err := producer.SendMessage(message); err != nil {
			return err
		}
		time.Sleep(time.Duration(a.EveryMs) * time.Millisecond)
	}
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return err
	}
	partition, err := consumer.ConsumePartition(a.Topic, 0, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	defer partition.Close()
	return read(ctx, partition, a.Count)
}
