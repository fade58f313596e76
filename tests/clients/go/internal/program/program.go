// Package program is how the tests and a client's program talk: the command's name is the first argument, its
// arguments are one line of JSON on standard input, what it says are lines of JSON on standard output. A program that
// fails says why on standard error and ends with status 1. The command `member` is another: its arguments are options,
// its standard input are orders.
package program

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
)

// Deadline is how long a command may take that is not told when to end.
const Deadline = 45 * time.Second

// Arguments of all commands; each takes those that it needs.
type Arguments struct {
	Servers     string            `json:"servers"`
	ClientID    string            `json:"client_id"`
	Topic       string            `json:"topic"`
	Group       string            `json:"group"`
	Compression string            `json:"compression"`
	Acks        string            `json:"acks"`
	Idempotent  bool              `json:"idempotent"`
	Records     []Record          `json:"records"`
	Partitions  []Range           `json:"partitions"`
	Partition   int32             `json:"partition"`
	Times       []int64           `json:"times"`
	Offset      int64             `json:"offset"`
	Offsets     map[int32]int64   `json:"offsets"`
	Count       int               `json:"count"`
	Configs     map[string]string `json:"configs"`
	Protocol    string            `json:"protocol"`
	Isolation   string            `json:"isolation"`
	Security    Security          `json:"security"`
	EveryMs     int               `json:"every_ms"`

	TransactionalID string        `json:"transactional_id"`
	Source          string        `json:"source"`
	Transactions    []Transaction `json:"transactions"`
}

// Transaction holds its records and, with a source, the offset of `Group` in partition 0 of the topic `Source`.
type Transaction struct {
	Records []Record `json:"records"`
	Offset  int64    `json:"offset"`
	Commit  bool     `json:"commit"`
}

// Range is what to read of a partition: `Count` records from `From` on (-2: the beginning, -1: the end).
type Range struct {
	Partition int32 `json:"partition"`
	From      int64 `json:"from"`
	Count     int   `json:"count"`
}

// Record as given to a producer and as given out by a consumer.
type Record struct {
	Event       string      `json:"event,omitempty"`
	Partition   int32       `json:"partition"`
	Offset      int64       `json:"offset"`
	TimestampMs int64       `json:"timestamp_ms"`
	Key         *string     `json:"key"`
	Value       *string     `json:"value"`
	Headers     [][2]string `json:"headers"`
}

// Bytes keeps null apart from empty.
func Bytes(text *string) []byte {
	if text == nil {
		return nil
	}
	return []byte(*text)
}

// Text is the inverse of Bytes.
func Text(data []byte) *string {
	if data == nil {
		return nil
	}
	text := string(data)
	return &text
}

// Brokers are the bootstrap servers.
func (a Arguments) Brokers() []string { return strings.Split(a.Servers, ",") }

// Committed says that only committed records are wanted.
func (a Arguments) Committed() bool { return a.Isolation == "read_committed" }

// Wanted is the number of records that `Partitions` asks for.
func (a Arguments) Wanted() int {
	wanted := 0
	for _, asked := range a.Partitions {
		wanted += asked.Count
	}
	return wanted
}

// Command does one thing, in time: its context ends after Deadline.
type Command func(ctx context.Context, arguments Arguments) error

// Member takes part in a group until it is told to leave.
type Member func(membership Membership) error

var (
	speaking sync.Mutex
	input    = bufio.NewReader(os.Stdin)
)

// Say writes one line.
func Say(what any) {
	line, err := json.Marshal(what)
	if err != nil {
		panic(err)
	}
	speaking.Lock()
	defer speaking.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

// Orders are a member's, split into words. They end with "leave", also when the tests are gone.
func Orders() <-chan []string {
	orders := make(chan []string)
	go func() {
		for {
			line, err := input.ReadString('\n')
			if err != nil {
				orders <- []string{"leave"}
				return
			}
			orders <- strings.Fields(line)
		}
	}()
	return orders
}

// Main runs the command that was asked for. `module` is the client's, whose version `version` tells.
func Main(module string, member Member, commands map[string]Command) {
	commands["version"] = func(context.Context, Arguments) error { return sayVersion(module) }
	if err := run(member, commands); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(member Member, commands map[string]Command) error {
	if len(os.Args) > 1 && os.Args[1] == "member" {
		membership, err := parseMembership(os.Args[2:])
		if err != nil {
			return err
		}
		return member(membership)
	}
	if len(os.Args) != 2 || commands[os.Args[1]] == nil {
		return fmt.Errorf("one of these commands is needed, or member, and got %q: %v", os.Args[1:], names(commands))
	}
	line, err := input.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("arguments are one line of JSON on standard input: %w", err)
	}
	var arguments Arguments
	if err := json.Unmarshal(line, &arguments); err != nil {
		return err
	}
	ctx, end := context.WithTimeout(context.Background(), Deadline)
	defer end()
	return commands[os.Args[1]](ctx, arguments)
}

func names(commands map[string]Command) []string {
	var found []string
	for name := range commands {
		found = append(found, name)
	}
	slices.Sort(found)
	return found
}

func sayVersion(module string) error {
	built, _ := debug.ReadBuildInfo()
	for _, dependency := range built.Deps {
		if dependency.Path == module {
			Say(map[string]string{"version": strings.TrimPrefix(dependency.Version, "v")})
			return nil
		}
	}
	return fmt.Errorf("this program was built without %s", module)
}
