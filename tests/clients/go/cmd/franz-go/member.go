package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"tidelog/clients/internal/program"
)

func balancing(m program.Membership) ([]kgo.Opt, error) {
	if m.Protocol == "consumer" {
		return []kgo.Opt{kgo.Balancers(kgo.StickyBalancer()), kgo.ServerSideBalancer()}, nil
	}
	balancers := map[string]kgo.GroupBalancer{
		"range": kgo.RangeBalancer(), "roundrobin": kgo.RoundRobinBalancer(), "sticky": kgo.StickyBalancer(),
		"cooperative": kgo.CooperativeStickyBalancer(),
	}
	if balancers[m.Strategy] == nil {
		return nil, fmt.Errorf("no strategy %q", m.Strategy)
	}
	return []kgo.Opt{kgo.Balancers(balancers[m.Strategy])}, nil
}

func member(m program.Membership) error {
	told := &program.Told{}
	options, err := balancing(m)
	if err != nil {
		return err
	}
	assigned := func(_ context.Context, _ *kgo.Client, given map[string][]int32) { told.Assigned(program.Places(given)) }
	gone := func(event string) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
			told.Gone(event, program.Places(gone))
		}
	}
	options = append(options,
		kgo.ConsumerGroup(m.Group), kgo.ConsumeTopics(m.Topics...), kgo.DisableAutoCommit(),
		kgo.SessionTimeout(m.Session), kgo.HeartbeatInterval(m.Heartbeat),
		kgo.MetadataMinAge(500*time.Millisecond), kgo.MetadataMaxAge(2*time.Second),
		kgo.OnPartitionsAssigned(assigned), kgo.OnPartitionsRevoked(gone("revoked")), kgo.OnPartitionsLost(gone("lost")),
	)
	if m.Pattern() {
		options = append(options, kgo.ConsumeRegex())
	}
	if m.Instance != "" {
		options = append(options, kgo.InstanceID(m.Instance))
	}
	if m.Latest {
		options = append(options, kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()))
	}
	client, err := open(m.Arguments, options...)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(context.Background())
	failed := make(chan error, 1)
	go func() { failed <- readAsMember(ctx, client, told) }()
	err = obey(ctx, client, told, failed)
	end()
	client.Close()
	return err
}

func readAsMember(ctx context.Context, client *kgo.Client, told *program.Told) error {
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		for _, failure := range fetches.Errors() {
			if errors.Is(failure.Err, kerr.FencedInstanceID) {
				return failure.Err
			}
			if ctx.Err() == nil {
				program.Failed(failure.Err)
			}
		}
		for _, record := range fetches.Records() {
			told.Read(program.Place{Topic: record.Topic, Partition: record.Partition}, record.Offset, record.Value)
		}
	}
	return nil
}

func obey(ctx context.Context, client *kgo.Client, told *program.Told, failed <-chan error) error {
	orders := program.Orders()
	for {
		select {
		case err := <-failed:
			program.Failed(err)
			return err
		case order := <-orders:
			switch order[0] {
			case "commit":
				if err := client.CommitUncommittedOffsets(ctx); err != nil {
					program.Failed(err)
				} else {
					told.Committed(committedBy(client))
				}
			case "seek":
				partition, _ := strconv.Atoi(order[2])
				offset, _ := strconv.ParseInt(order[3], 10, 64)
				to := kgo.EpochOffset{Epoch: -1, Offset: offset}
				client.SetOffsets(map[string]map[int32]kgo.EpochOffset{order[1]: {int32(partition): to}})
			default:
				return nil
			}
		}
	}
}

func committedBy(client *kgo.Client) map[program.Place]int64 {
	found := map[program.Place]int64{}
	for topic, partitions := range client.CommittedOffsets() {
		for partition, offset := range partitions {
			if offset.Offset >= 0 {
				found[program.Place{Topic: topic, Partition: partition}] = offset.Offset
			}
		}
	}
	return found
}
