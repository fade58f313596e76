package program

import (
	"flag"
	"slices"
	"strings"
	"sync"
	"time"
)

// Membership is what a member is told on its command line, as tests/clients/members/program.py says.
type Membership struct {
	Arguments
	Topics    []string
	Protocol  string
	Strategy  string
	Instance  string
	Latest    bool
	Session   time.Duration
	Heartbeat time.Duration
}

// Pattern tells whether the topics are a regular expression.
func (m Membership) Pattern() bool { return strings.HasPrefix(m.Topics[0], "^") }

func parseMembership(words []string) (Membership, error) {
	var m Membership
	var topics, reset string
	var sessionMs, heartbeatMs int
	flags := flag.NewFlagSet("member", flag.ContinueOnError)
	flags.StringVar(&m.Servers, "servers", "", "bootstrap servers")
	flags.StringVar(&m.Group, "group", "", "the group's id")
	flags.StringVar(&topics, "topics", "", "names, or one regular expression that begins with ^")
	flags.StringVar(&m.Protocol, "protocol", "classic", "classic or consumer")
	flags.StringVar(&m.Strategy, "strategy", "range", "how partitions are shared out")
	flags.StringVar(&m.Instance, "instance", "", "of a static member")
	flags.StringVar(&m.ClientID, "client-id", "member", "the client's id")
	flags.StringVar(&reset, "reset", "earliest", "where to begin without a committed offset")
	flags.IntVar(&sessionMs, "session-timeout-ms", 6000, "")
	flags.IntVar(&heartbeatMs, "heartbeat-ms", 500, "")
	flags.Int("max-poll-ms", 60000, "not a notion of these clients")
	err := flags.Parse(words)
	m.Topics = strings.Split(topics, ",")
	m.Latest = reset == "latest"
	m.Session = time.Duration(sessionMs) * time.Millisecond
	m.Heartbeat = time.Duration(heartbeatMs) * time.Millisecond
	return m, err
}

// Place is a partition of a topic.
type Place struct {
	Topic     string
	Partition int32
}

func (p Place) plain() []any { return []any{p.Topic, p.Partition} }

// Told says what a member owns, reads and commits, and keeps the place after the last record read of each partition.
type Told struct {
	lock  sync.Mutex
	owned []Place
	next  map[Place]int64
}

// Assigned takes places in; those that are owned already stay. An assignment of nothing is told, too.
func (t *Told) Assigned(added []Place) {
	t.lock.Lock()
	defer t.lock.Unlock()
	for _, place := range added {
		if !slices.Contains(t.owned, place) {
			t.owned = append(t.owned, place)
		}
	}
	Say(map[string]any{"event": "assigned", "added": plain(added), "owned": plain(t.owned)})
}

// Gone gives places up: `event` is "revoked" (it was asked to) or "lost" (the group went on without it).
func (t *Told) Gone(event string, removed []Place) {
	t.lock.Lock()
	defer t.lock.Unlock()
	t.owned = slices.DeleteFunc(t.owned, func(place Place) bool { return slices.Contains(removed, place) })
	for _, place := range removed {
		delete(t.next, place)
	}
	Say(map[string]any{"event": event, "removed": plain(removed), "owned": plain(t.owned)})
}

// Read takes note of a record, unless its partition went meanwhile.
func (t *Told) Read(place Place, offset int64, value []byte) {
	t.lock.Lock()
	defer t.lock.Unlock()
	if !slices.Contains(t.owned, place) {
		return
	}
	if t.next == nil {
		t.next = map[Place]int64{}
	}
	t.next[place] = offset + 1
	Say(map[string]any{
		"event": "record", "topic": place.Topic, "partition": place.Partition, "offset": offset, "value": string(value),
	})
}

// Next are the offsets to commit.
func (t *Told) Next() map[Place]int64 {
	t.lock.Lock()
	defer t.lock.Unlock()
	copied := map[Place]int64{}
	for place, offset := range t.next {
		copied[place] = offset
	}
	return copied
}

// Committed answers the order to commit.
func (t *Told) Committed(offsets map[Place]int64) {
	said := []any{}
	for place, offset := range offsets {
		said = append(said, append(place.plain(), offset))
	}
	Say(map[string]any{"event": "committed", "offsets": said})
}

// Failed tells an error that the member goes on after.
func Failed(err error) { Say(map[string]any{"event": "error", "message": err.Error()}) }

func plain(places []Place) []any {
	said := []any{}
	for _, place := range places {
		said = append(said, place.plain())
	}
	return said
}

// Places makes a flat list of what clients hold as partitions per topic.
func Places(partitions map[string][]int32) []Place {
	var found []Place
	for topic, numbers := range partitions {
		for _, number := range numbers {
			found = append(found, Place{topic, number})
		}
	}
	return found
}
