package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"tidelog/clients/internal/program"
)

var balancers = map[string]kafka.GroupBalancer{
	"range": kafka.RangeGroupBalancer{}, "roundrobin": kafka.RoundRobinGroupBalancer{},
}

// taking is a member's part in its group: a reader for each partition of the present generation.
type taking struct {
	m    program.Membership
	told program.Told

	lock       sync.Mutex
	generation *kafka.Generation
	seeks      map[program.Place]chan int64
}

func member(m program.Membership) error {
	balancer := balancers[m.Strategy]
	if balancer == nil || m.Protocol != "classic" || m.Instance != "" || m.Pattern() {
		return fmt.Errorf("not offered: protocol %q, strategy %q, topics %q", m.Protocol, m.Strategy, m.Topics)
	}
	start := kafka.FirstOffset
	if m.Latest {
		start = kafka.LastOffset
	}
	group, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID: m.Group, Brokers: m.Brokers(), Topics: m.Topics, StartOffset: start,
		GroupBalancers: []kafka.GroupBalancer{balancer},
		SessionTimeout: m.Session, HeartbeatInterval: m.Heartbeat, JoinGroupBackoff: m.Heartbeat,
		Dialer: &kafka.Dialer{ClientID: m.ClientID, Timeout: 10 * time.Second},
	})
	if err != nil {
		return err
	}
	part := &taking{m: m}
	ctx, end := context.WithCancel(context.Background())
	go part.take(ctx, group)
	part.obey(program.Orders())
	end()
	return group.Close()
}

// take reads what each generation assigns, until the generation ends.
func (t *taking) take(ctx context.Context, group *kafka.ConsumerGroup) {
	for {
		generation, err := group.Next(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			program.Failed(err) // kafka-go joins anew by itself
			continue
		}
		var places []program.Place
		seeks := map[program.Place]chan int64{}
		for topic, assignments := range generation.Assignments {
			for _, assignment := range assignments {
				place := program.Place{Topic: topic, Partition: int32(assignment.ID)}
				places = append(places, place)
				seeks[place] = make(chan int64, 1)
			}
		}
		t.lock.Lock()
		t.generation, t.seeks = generation, seeks
		t.lock.Unlock()
		t.told.Assigned(places)
		generation.Start(func(ending context.Context) {
			<-ending.Done()
			t.told.Gone("revoked", places)
		})
		for topic, assignments := range generation.Assignments {
			for _, assignment := range assignments {
				place := program.Place{Topic: topic, Partition: int32(assignment.ID)}
				generation.Start(func(ending context.Context) { t.read(ending, place, assignment.Offset, seeks[place]) })
			}
		}
	}
}

func (t *taking) read(ending context.Context, place program.Place, from int64, seeks <-chan int64) {
	arguments := t.m.Arguments
	arguments.Topic = place.Topic
	reader := reading(arguments, place.Partition)
	defer reader.Close()
	for {
		if err := reader.SetOffset(from); err != nil {
			program.Failed(err)
			return
		}
		reads, stop := context.WithCancel(context.Background())
		sought := make(chan int64, 1)
		go func() {
			defer stop()
			select {
			case <-ending.Done():
			case to := <-seeks:
				sought <- to
			}
		}()
		t.readOn(reads, reader, place)
		stop()
		if ending.Err() != nil {
			return
		}
		from = <-sought
	}
}

// readOn reads until `reads` ends; kafka-go's own contexts of a generation know no cancellation of their children.
func (t *taking) readOn(reads context.Context, reader *kafka.Reader, place program.Place) {
	for {
		message, err := reader.ReadMessage(reads)
		if reads.Err() != nil {
			return
		}
		if err != nil {
			program.Failed(err)
			continue
		}
		t.told.Read(place, message.Offset, message.Value)
	}
}

func (t *taking) obey(orders <-chan []string) {
	for order := range orders {
		switch order[0] {
		case "commit":
			if err := t.commit(); err != nil {
				program.Failed(err)
			}
		case "seek":
			partition, _ := strconv.Atoi(order[2])
			offset, _ := strconv.ParseInt(order[3], 10, 64)
			t.lock.Lock()
			t.seeks[program.Place{Topic: order[1], Partition: int32(partition)}] <- offset
			t.lock.Unlock()
		default:
			return
		}
	}
}

func (t *taking) commit() error {
	t.lock.Lock()
	generation := t.generation
	t.lock.Unlock()
	if generation == nil {
		return errors.New("told to commit before anything was assigned")
	}
	next, asked := t.told.Next(), map[string]map[int]int64{}
	for place, offset := range next {
		if asked[place.Topic] == nil {
			asked[place.Topic] = map[int]int64{}
		}
		asked[place.Topic][int(place.Partition)] = offset
	}
	if err := generation.CommitOffsets(asked); err != nil {
		return err
	}
	t.told.Committed(next)
	return nil
}
