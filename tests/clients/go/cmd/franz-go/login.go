package main

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"tidelog/clients/internal/program"
)

// login produces `count` records, waiting `every_ms` after each, and reads them.
func login(ctx context.Context, a program.Arguments) error {
	encryption, err := a.Security.TLS()
	if err != nil {
		return err
	}
	options := []kgo.Opt{
		kgo.DefaultProduceTopic(a.Topic),
		kgo.ConsumeTopics(a.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}
	if encryption != nil {
		options = append(options, kgo.DialTLSConfig(encryption))
	}
	switch a.Security.Mechanism {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: a.Security.User, Pass: a.Security.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(scram.Auth{User: a.Security.User, Pass: a.Security.Password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(scram.Auth{User: a.Security.User, Pass: a.Security.Password}.AsSha512Mechanism()))
	case "OAUTHBEARER":
		options = append(options, kgo.SASL(oauth.Auth{Token: a.Security.Token}.AsMechanism()))
	}
	client, err := open(a, options...)
	if err != nil {
		return err
	}
	defer client.Close()
	// A producer tries again while its record lives, whatever the reason. A ping returns it.
	if err := client.Ping(ctx); err != nil {
		return err
	}
	for _, value := range a.Values() {
		if err := client.ProduceSync(ctx, kgo.StringRecord(value)).FirstErr(); err != nil {
			return err
		}
		time.Sleep(time.Duration(a.EveryMs) * time.Millisecond)
	}
	return read(ctx, client, a.Count)
}
