// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
)

const (
	bodySize        = 200
	publishInterval = 10 * time.Millisecond // of each producer, after the first messages
	maxInFlight     = 2000
)

// receipt is the confirmation of a message.
type receipt struct {
	n        int // number of the message, of its producer
	sequence uint64
	lsn      uint64
	pair     string
}

// producer is a client that publishes numbered messages to the queues, alternately. Message n belongs to queue
// n % len(queues).
type producer interface {
	// name is the prefix of the bodies.
	name() string
	// continued waits for a message that is confirmed after a time.
	continued(since time.Time)
	// finish stops the producer, and waits until each message is confirmed.
	finish()
	// confirmed returns the numbers of the confirmed messages of a queue, in the order of the publishes.
	confirmed(queue string) []int
	// receipts returns the receipts of the messages of a queue; nil if the producer receives none.
	receipts(queue string) []receipt
}

// body returns a body that contains the name of the producer and n.
func body(producer string, n int) []byte {
	b := bytes.Repeat([]byte{'x'}, bodySize)
	copy(b, producer+":"+strconv.Itoa(n)+":")
	return b
}

// parse returns the name of the producer and the number in a body, and verifies the rest of the body.
func parse(b []byte) (producer string, n int, _ error) {
	parts := strings.SplitN(string(b), ":", 3)
	if len(parts) != 3 {
		return "", 0, fmt.Errorf("unknown body %q", b)
	}
	n, err := strconv.Atoi(parts[1])
	if err == nil && !bytes.Equal(b, body(parts[0], n)) {
		err = fmt.Errorf("corrupt body %q", b)
	}
	return parts[0], n, err
}

// goProducer publishes with the Go client.
type goProducer struct {
	t         *testing.T
	w         *world
	stop      chan struct{}
	preloaded chan struct{} // closed when the first messages are confirmed
	ended     sync.WaitGroup

	mu   sync.Mutex // guards the fields below
	all  map[string][]receipt
	last time.Time
	err  error
}

// newGoProducer starts a producer. It publishes the first messages without delay.
func newGoProducer(w *world, c *client.Client, first int, queues ...string) *goProducer {
	w.t.Helper()
	g := &goProducer{
		t: w.t, w: w, stop: make(chan struct{}), preloaded: make(chan struct{}), all: map[string][]receipt{},
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	w.t.Cleanup(func() {
		cancel()
		g.ended.Wait()
	})
	p, err := c.NewProducer(ctx, client.ProducerOptions{})
	require.NoError(w.t, err)
	type sent struct {
		queue   string
		n       int
		pending *client.Pending
	}
	open := make(chan sent, maxInFlight)
	g.ended.Go(func() {
		defer close(open)
		tick := time.NewTicker(publishInterval)
		defer tick.Stop()
		for n := 0; ; n++ {
			if n >= first {
				select {
				case <-tick.C:
				case <-g.stop:
					return
				case <-ctx.Done():
					return
				}
			}
			q := queues[n%len(queues)]
			select {
			case open <- sent{q, n, p.PublishAsync(ctx, q, client.Message{Body: body(g.name(), n)})}:
			case <-ctx.Done():
				return
			}
		}
	})
	g.ended.Go(func() {
		for s := range open {
			r, err := s.pending.Wait(ctx)
			g.mu.Lock()
			if err != nil {
				g.err = errors.Join(g.err, fmt.Errorf("publish %d to %s: %w", s.n, s.queue, err))
			} else {
				g.last = time.Now()
				g.all[s.queue] = append(g.all[s.queue], receipt{s.n, r.Sequence, r.LSN, w.pairOf(r.Address)})
			}
			g.mu.Unlock()
			if s.n == first-1 {
				close(g.preloaded)
			}
		}
	})
	return g
}

func (*goProducer) name() string { return "go" }

func (g *goProducer) continued(since time.Time) {
	g.t.Helper()
	eventually(g.t, "receipt of the Go client", func(context.Context) bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.err != nil || g.last.After(since)
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	require.NoError(g.t, g.err)
}

func (g *goProducer) finish() {
	g.t.Helper()
	close(g.stop)
	waitFor(g.t, &g.ended, "receipts of the Go client")
	require.NoError(g.t, g.err)
}

func (g *goProducer) receipts(queue string) []receipt { return g.all[queue] }

func (g *goProducer) confirmed(queue string) []int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return numbers(g.all[queue])
}

func numbers(all []receipt) []int {
	list := make([]int, len(all))
	for i := range all {
		list[i] = all[i].n
	}
	return list
}

// stored is a message of a queue.
type stored struct {
	sequence uint64
	producer string
	n        int
}

// content returns the messages of a queue that a subscription has not acknowledged.
func content(t *testing.T, c *client.Client, queue, subscription string) (all []stored) {
	t.Helper()
	for m, err := range c.Browse(limited(t), queue, client.BrowseOptions{Subscription: subscription}) {
		require.NoError(t, err)
		producer, n, err := parse(m.Body)
		require.NoError(t, err)
		all = append(all, stored{m.Sequence, producer, n})
	}
	return all
}

// verify compares the messages of a queue with the responses to its producers and its consumers: each confirmed message
// is stored once, in the order of its producer, and was delivered to each consumer. No other message is stored.
func verify(t *testing.T, c *client.Client, queue string, producers []producer, consumers []consumer) {
	t.Helper()
	all := content(t, c, queue, keptSubscription)
	got := map[string][]int{}
	sequences := map[string][]uint64{}
	for i, m := range all {
		require.Equal(t, uint64(i)+1, m.sequence, "sequence in %s", queue)
		got[m.producer] = append(got[m.producer], m.n)
		sequences[m.producer] = append(sequences[m.producer], m.sequence)
	}
	require.Len(t, got, len(producers), "producers in %s: %v", queue, slices.Sorted(maps.Keys(got)))
	for _, p := range producers {
		want := p.confirmed(queue)
		requireSame(t, fmt.Sprintf("messages of %s in %s", p.name(), queue), want, got[p.name()])
		for i, r := range p.receipts(queue) {
			require.Equal(t, r.sequence, sequences[p.name()][i], "%s: sequence of message %d of %s", queue, r.n, p.name())
		}
		t.Logf("%s: %d messages of %s", queue, len(want), p.name())
	}
	for _, co := range consumers {
		co.deliveries(queue).verify(all)
	}
}

// requireSame reports the first difference between two lists.
func requireSame(t *testing.T, what string, want, got []int) {
	t.Helper()
	for i := range min(len(want), len(got)) {
		require.Equal(t, want[i], got[i], "%s: message %d", what, i)
	}
	require.Len(t, got, len(want), what)
}
