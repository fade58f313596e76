package main

import (
	"context"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"

	"tidelog/clients/internal/program"
)

// login produces `count` records, waiting `every_ms` after each, and reads them.
func login(ctx context.Context, a program.Arguments) error {
	encryption, err := a.Security.TLS()
	if err != nil {
		return err
	}
	mechanism, err := mechanismOf(a.Security)
	if err != nil {
		return err
	}
	writer := &kafka.Writer{
		Addr: kafka.TCP(a.Brokers()...), Topic: a.Topic, BatchTimeout: time.Millisecond, MaxAttempts: 3,
		RequiredAcks: kafka.RequireAll,
		Transport:    &kafka.Transport{ClientID: a.ClientID, TLS: encryption, SASL: mechanism},
	}
	for _, value := range a.Values() {
		if err := writer.WriteMessages(ctx, kafka.Message{Value: []byte(value)}); err != nil {
			return err
		}
		time.Sleep(time.Duration(a.EveryMs) * time.Millisecond)
	}
	if err := writer.Close(); err != nil {
		return err
	}
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: a.Brokers(), Topic: a.Topic, MaxWait: 200 * time.Millisecond,
		Dialer: &kafka.Dialer{
			ClientID: a.ClientID, Timeout: 10 * time.Second, TLS: encryption, SASLMechanism: mechanism,
		},
	})
	defer reader.Close()
	return read(ctx, reader, a.Count)
}

func mechanismOf(s program.Security) (sasl.Mechanism, error) {
	switch s.Mechanism {
	case "PLAIN":
		return plain.Mechanism{Username: s.User, Password: s.Password}, nil
	case "SCRAM-SHA-256":
		return scram.Mechanism(scram.SHA256, s.User, s.Password)
	case "SCRAM-SHA-512":
		return scram.Mechanism(scram.SHA512, s.User, s.Password)
	default:
		return nil, nil
	}
}
