// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
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
	prefetch        = 2000
	flushInterval   = 20 * time.Millisecond
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

func (g *goProducer) confirmed(queue string) []int { return numbers(g.all[queue]) }

func numbers(all []receipt) []int {
	list := make([]int, len(all))
	for i := range all {
		list[i] = all[i].n
	}
	return list
}

// consumer is the only consumer of the default subscription of a queue.
type consumer struct {
	t      *testing.T
	queue  string
	end    context.CancelFunc
	joined sync.WaitGroup

	mu        sync.Mutex // guards the fields below
	seen      []uint64   // hash of the body, by sequence; 0 if the message was not delivered
	delivered int        // number of messages in seen
	newest    uint64     // highest sequence in seen
	confirmed map[uint64]bool
	open      []uint64 // acknowledged, but not confirmed
	again     int
	refused   int // acknowledgements that were not confirmed
	errs      []error
}

func newConsumer(w *world, c *client.Client, queue string) *consumer {
	w.t.Helper()
	co := &consumer{t: w.t, queue: queue, confirmed: map[uint64]bool{}}
	ctx, cancel := context.WithCancel(w.t.Context())
	co.end = cancel
	w.t.Cleanup(func() {
		cancel()
		co.joined.Wait()
	})
	consumer, err := c.Consume(ctx, queue, client.ConsumerOptions{Prefetch: prefetch})
	require.NoError(w.t, err)
	co.joined.Go(func() {
		for {
			d, err := consumer.Receive(ctx)
			if err != nil {
				if ctx.Err() == nil {
					co.failed(fmt.Errorf("receive: %w", err))
				}
				return
			}
			co.received(d)
		}
	})
	co.joined.Go(func() {
		tick := time.NewTicker(flushInterval)
		defer tick.Stop()
		for ctx.Err() == nil {
			select {
			case <-tick.C:
				co.flush(ctx, consumer)
			case <-ctx.Done():
			}
		}
	})
	return co
}

func (co *consumer) failed(err error) {
	co.mu.Lock()
	defer co.mu.Unlock()
	co.errs = append(co.errs, fmt.Errorf("consumer of %s: %w", co.queue, err))
}

func hash(body []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(body)
	return max(h.Sum64(), 1)
}

// received records a delivery, and acknowledges it. Messages arrive in the order of their sequences, except for
// redeliveries.
func (co *consumer) received(d *client.Delivery) {
	sum := hash(d.Body)
	co.mu.Lock()
	defer co.mu.Unlock()
	for uint64(len(co.seen)) <= d.Sequence {
		co.seen = append(co.seen, 0)
	}
	switch before := co.seen[d.Sequence]; {
	case before == 0 && d.Sequence < co.newest:
		co.errs = append(co.errs, fmt.Errorf("%s: message %d was delivered after message %d", co.queue, d.Sequence,
			co.newest))
	case before != 0 && before != sum:
		co.errs = append(co.errs, fmt.Errorf("%s: message %d has another body: %q", co.queue, d.Sequence, d.Body))
	case co.confirmed[d.Sequence]:
		co.errs = append(co.errs, fmt.Errorf("%s: message %d was delivered again after the confirmation of its "+
			"acknowledgement", co.queue, d.Sequence))
	case before != 0:
		co.again++
	default:
		co.delivered++
		co.newest = d.Sequence
	}
	co.seen[d.Sequence] = sum
	if d.Ack() == nil {
		co.open = append(co.open, d.Sequence)
	} else {
		co.refused++
	}
}

// flush waits for the confirmation of the acknowledgements. After an error, they are not confirmed, including those
// that were added in the meantime: Flush reports a lost acknowledgement only once.
func (co *consumer) flush(ctx context.Context, c *client.Consumer) {
	co.mu.Lock()
	open := co.open
	co.open = nil
	co.mu.Unlock()
	err := c.Flush(ctx)
	co.mu.Lock()
	defer co.mu.Unlock()
	if err != nil {
		co.refused += len(open) + len(co.open)
		co.open = nil
		return
	}
	for _, n := range open {
		co.confirmed[n] = true
	}
}

func (co *consumer) check() {
	co.t.Helper()
	co.mu.Lock()
	defer co.mu.Unlock()
	require.NoError(co.t, errors.Join(co.errs...))
}

// finish waits until n messages are delivered and acknowledged.
func (co *consumer) finish(c *client.Client, n int) {
	co.t.Helper()
	defer func() {
		co.t.Logf("consumer of %s: %d of %d delivered, %d confirmed, %d redelivered, %d acknowledgements refused", co.queue,
			co.delivered, n, len(co.confirmed), co.again, co.refused)
	}()
	eventually(co.t, "all messages of "+co.queue+" consumed", func(context.Context) bool {
		co.mu.Lock()
		defer co.mu.Unlock()
		return len(co.errs) > 0 || co.delivered >= n
	})
	eventually(co.t, "all messages of "+co.queue+" acknowledged", func(ctx context.Context) bool {
		for range c.Browse(ctx, co.queue, client.BrowseOptions{Subscription: client.DefaultSubscription, Limit: 1}) {
			return false
		}
		return true
	})
	co.end()
	waitFor(co.t, &co.joined, "end of the consumer of "+co.queue)
	co.check()
}

// stored is a message of a queue.
type stored struct {
	sequence uint64
	producer string
	n        int
	sum      uint64
}

// content returns the messages of a queue that a subscription has not acknowledged.
func content(t *testing.T, c *client.Client, queue, subscription string) (all []stored) {
	t.Helper()
	for m, err := range c.Browse(limited(t), queue, client.BrowseOptions{Subscription: subscription}) {
		require.NoError(t, err)
		producer, n, err := parse(m.Body)
		require.NoError(t, err)
		all = append(all, stored{m.Sequence, producer, n, hash(m.Body)})
	}
	return all
}

// verify compares the messages of a queue with the responses to its producers and its consumer: each confirmed message
// is stored once, in the order of its producer, and was delivered. No other message is stored.
func verify(t *testing.T, c *client.Client, queue string, producers []producer, co *consumer) {
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
	for _, m := range all {
		require.Equal(t, m.sum, co.seen[m.sequence], "delivery of message %d of %s", m.sequence, queue)
	}
	require.Equal(t, len(all), co.delivered, "messages delivered from %s", queue)
}

// requireSame reports the first difference between two lists.
func requireSame(t *testing.T, what string, want, got []int) {
	t.Helper()
	for i := range min(len(want), len(got)) {
		require.Equal(t, want[i], got[i], "%s: message %d", what, i)
	}
	require.Len(t, got, len(want), what)
}
