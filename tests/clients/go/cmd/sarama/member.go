package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"tidelog/clients/internal/program"
)

var strategies = map[string]sarama.BalanceStrategy{
	"range": sarama.NewBalanceStrategyRange(), "roundrobin": sarama.NewBalanceStrategyRoundRobin(),
	"sticky": sarama.NewBalanceStrategySticky(), "cooperative": sarama.NewBalanceStrategyCooperativeSticky(),
}

// handler tells what it is given and reads it. A claim that begins was assigned, one that ends was revoked.
type handler struct {
	told    program.Told
	lock    sync.Mutex
	session sarama.ConsumerGroupSession
}

func (h *handler) Setup(session sarama.ConsumerGroupSession) error {
	h.lock.Lock()
	defer h.lock.Unlock()
	h.session = session
	return nil
}

func (h *handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	place := program.Place{Topic: claim.Topic(), Partition: claim.Partition()}
	h.told.Assigned([]program.Place{place})
	defer h.told.Gone("revoked", []program.Place{place})
	for message := range claim.Messages() {
		h.told.Read(place, message.Offset, message.Value)
		session.MarkMessage(message, "")
	}
	return nil
}

func (h *handler) commit() {
	h.lock.Lock()
	defer h.lock.Unlock()
	next := h.told.Next()
	if h.session != nil {
		h.session.Commit()
	}
	h.told.Committed(next)
}

func member(m program.Membership) error {
	strategy := strategies[m.Strategy]
	if strategy == nil || m.Protocol != "classic" || m.Pattern() {
		return fmt.Errorf("not offered: protocol %q, strategy %q, topics %q", m.Protocol, m.Strategy, m.Topics)
	}
	config := configured(m.Arguments)
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy}
	config.Consumer.Group.Session.Timeout = m.Session
	config.Consumer.Group.Heartbeat.Interval = m.Heartbeat
	config.Consumer.Group.Rebalance.Retry.Backoff = 200 * time.Millisecond
	config.Consumer.Group.InstanceId = m.Instance
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	if m.Latest {
		config.Consumer.Offsets.Initial = sarama.OffsetNewest
	}
	group, err := sarama.NewConsumerGroup(m.Brokers(), m.Group, config)
	if err != nil {
		return err
	}
	reading := &handler{}
	ctx, end := context.WithCancel(context.Background())
	failed := make(chan error, 2)
	go func() { failed <- takePart(ctx, group, m.Topics, reading) }()
	go func() {
		for failure := range group.Errors() {
			if errors.Is(failure, sarama.ErrFencedInstancedId) {
				failed <- failure
				return
			}
			program.Failed(failure)
		}
	}()
	err = obey(reading, failed)
	end()
	return errors.Join(err, group.Close())
}

// takePart joins again whenever a session ended.
func takePart(ctx context.Context, group sarama.ConsumerGroup, topics []string, reading *handler) error {
	for ctx.Err() == nil {
		if err := group.Consume(ctx, topics, reading); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func obey(reading *handler, failed <-chan error) error {
	orders := program.Orders()
	for {
		select {
		case err := <-failed:
			program.Failed(err)
			return err
		case order := <-orders:
			switch order[0] {
			case "commit":
				reading.commit()
			case "seek":
				program.Failed(errors.New("sarama's sessions cannot seek"))
			default:
				return nil
			}
		}
	}
}
