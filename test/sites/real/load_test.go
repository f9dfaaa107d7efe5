// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package real

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
)

// Queues of the load: messages in kept are not consumed, and messages in work are consumed. Each transaction adds a
// message to left and to right.
const (
	kept  = "kept"
	work  = "work"
	left  = "left"
	right = "right"
)

const (
	publishInterval = 2 * time.Millisecond
	maxInFlight     = 200
	ackBatch        = 20
	smallBody       = 512
	largeBody       = 16 << 10
)

// ack is the acknowledgement of a publish.
type ack struct {
	queue   string
	n       int // number of the publish
	receipt client.Receipt
	at      time.Time
}

// load is a set of Go clients of two sites, with the responses that they received.
type load struct {
	t      *testing.T
	client *client.Client
	stop   chan struct{}
	end    context.CancelFunc
	senders,
	readers sync.WaitGroup
	bodyBytes atomic.Int64 // size of the bodies
	paused    atomic.Bool  // no publishes
	open      atomic.Int64 // publishes without an outcome

	mu        sync.Mutex     // guards the fields below
	acks      []ack          // in the order of the publishes
	published map[string]int // number of acks by queue
	pairs     []int          // numbers of acknowledged transactions
	delivered map[uint64]int
	confirmed map[uint64]bool // by sequence in work
	again     int             // confirmed messages that were delivered again
	errs      []error
}

// newLoad returns a load without clients, and the context for them.
func newLoad(w *world) (*load, context.Context) {
	l := &load{
		t: w.t, client: w.client(), stop: make(chan struct{}), published: map[string]int{}, delivered: map[uint64]int{},
		confirmed: map[uint64]bool{},
	}
	l.bodyBytes.Store(smallBody)
	ctx, cancel := context.WithCancel(w.t.Context())
	l.end = cancel
	w.t.Cleanup(func() {
		cancel()
		l.senders.Wait()
		l.readers.Wait()
	})
	return l, ctx
}

func (l *load) failed(what string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs = append(l.errs, fmt.Errorf("%s: %w", what, err))
}

// publish publishes to the queues in round-robin order, until the load is stopped.
func (l *load) publish(ctx context.Context, queues ...string) {
	l.t.Helper()
	p, err := l.client.NewProducer(ctx, client.ProducerOptions{ID: "publisher", Epoch: 1})
	require.NoError(l.t, err)
	type sent struct {
		queue   string
		n       int
		pending *client.Pending
	}
	all := make(chan sent, maxInFlight)
	l.senders.Go(func() {
		defer close(all)
		tick := time.NewTicker(publishInterval)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-tick.C:
			case <-l.stop:
				return
			case <-ctx.Done():
				return
			}
			if l.paused.Load() {
				continue
			}
			q := queues[n%len(queues)]
			l.open.Add(1)
			all <- sent{q, n, p.PublishAsync(ctx, q, client.Message{Body: body(n, int(l.bodyBytes.Load()))})}
		}
	})
	l.senders.Go(func() {
		for s := range all {
			r, err := s.pending.Wait(ctx)
			at := time.Now()
			l.open.Add(-1)
			if err != nil {
				l.failed(fmt.Sprintf("publish %d", s.n), err)
				continue
			}
			l.mu.Lock()
			l.acks = append(l.acks, ack{s.queue, s.n, r, at})
			l.published[s.queue]++
			l.mu.Unlock()
		}
	})
}

// transactions commits transactions over two queues until the load is stopped.
func (l *load) transactions(ctx context.Context) {
	l.senders.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-l.stop:
				return
			case <-ctx.Done():
				return
			default:
			}
			m := client.Message{Body: body(n, int(l.bodyBytes.Load()))}
			if _, err := l.client.Begin().Publish(left, m).Publish(right, m).Commit(ctx); err != nil {
				l.failed(fmt.Sprintf("transaction %d", n), err)
				return
			}
			l.mu.Lock()
			l.pairs = append(l.pairs, n)
			l.mu.Unlock()
		}
	})
}

// consume acknowledges the messages in work.
func (l *load) consume(ctx context.Context) {
	l.t.Helper()
	co, err := l.client.Consume(ctx, work, client.ConsumerOptions{})
	require.NoError(l.t, err)
	l.readers.Go(func() {
		if err := l.consumeAll(ctx, co); err != nil && ctx.Err() == nil {
			l.failed("consumer", err)
		}
	})
}

func (l *load) consumeAll(ctx context.Context, co *client.Consumer) error {
	for {
		var batch []uint64
		for len(batch) < ackBatch {
			d, err := co.Receive(ctx)
			if err != nil {
				return err
			}
			n, err := number(d.Body)
			if err != nil {
				return err
			}
			l.mu.Lock()
			if l.confirmed[d.Sequence] {
				l.again++
			}
			l.delivered[d.Sequence] = n
			last := len(l.delivered) == l.published[work]
			l.mu.Unlock()
			if err := d.Ack(); err != nil {
				return err
			}
			batch = append(batch, d.Sequence)
			if last {
				break
			}
		}
		if err := co.Flush(ctx); err != nil {
			return err
		}
		l.mu.Lock()
		for _, n := range batch {
			l.confirmed[n] = true
		}
		l.mu.Unlock()
	}
}

// snapshot returns the acknowledgements so far.
func (l *load) snapshot() []ack {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.acks)
}

// acked waits until a site acknowledges a publish after the given time.
func (l *load) acked(by *site, since time.Time) {
	l.t.Helper()
	eventually(l.t, "acknowledgement by "+by.name, func(context.Context) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.acks) == 0 {
			return false
		}
		last := &l.acks[len(l.acks)-1]
		return last.at.After(since) && by.owns(last.receipt.Address)
	})
}

// idle reports whether all publishes have an outcome.
func (l *load) idle() bool { return l.open.Load() == 0 }

// longestGap returns the longest interval between two consecutive acknowledgements that overlaps the given range.
func (l *load) longestGap(from, to time.Time) (gap time.Duration) {
	all := l.snapshot()
	for i := 1; i < len(all); i++ {
		if all[i].at.After(from) && all[i-1].at.Before(to) {
			gap = max(gap, all[i].at.Sub(all[i-1].at))
		}
	}
	return gap
}

// finish stops the senders. If consumed is set, it waits until all messages in work were delivered.
func (l *load) finish(consumed bool) {
	l.t.Helper()
	close(l.stop)
	waitFor(l.t, &l.senders, "outcome of all publishes")
	if consumed {
		eventually(l.t, "all messages consumed", func(context.Context) bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return len(l.errs) > 0 || len(l.delivered) >= l.published[work]
		})
	}
	l.end()
	l.readers.Wait()
	require.NoError(l.t, errors.Join(l.errs...))
}

// body returns a body that contains n and cannot be compressed.
func body(n, size int) []byte {
	b := make([]byte, size)
	_, _ = rand.Read(b)
	copy(b, strconv.Itoa(n)+":")
	return b
}

// number returns the number in a body.
func number(body []byte) (int, error) {
	text, _, _ := strings.Cut(string(body), ":")
	return strconv.Atoi(text)
}

type stored struct {
	sequence uint64
	n        int
}

// content returns the messages of a queue in their order. If unacknowledged is set, it returns only unacknowledged
// messages.
func content(t *testing.T, c *client.Client, queue string, unacknowledged bool) (all []stored) {
	t.Helper()
	o := client.BrowseOptions{}
	if unacknowledged {
		o.Subscription = client.DefaultSubscription
	}
	for m, err := range c.Browse(limited(t), queue, o) {
		require.NoError(t, err)
		n, err := number(m.Body)
		require.NoError(t, err)
		all = append(all, stored{m.Sequence, n})
	}
	return all
}

// acksPermanent verifies that no confirmed acknowledgement was lost.
func (l *load) acksPermanent(c *client.Client) {
	l.t.Helper()
	l.mu.Lock()
	confirmed := maps.Clone(l.confirmed)
	l.mu.Unlock()
	for _, m := range content(l.t, c, work, true) {
		require.False(l.t, confirmed[m.sequence], "acknowledged message %d of %s is available again", m.sequence, work)
	}
}

// verify compares the stored messages with the responses. All publishes have an outcome.
func (l *load) verify(c *client.Client) {
	l.t.Helper()
	want := map[string][]stored{}
	for _, a := range l.acks {
		want[a.queue] = append(want[a.queue], stored{a.receipt.Sequence, a.n})
	}
	requireSame(l.t, kept, want[kept], content(l.t, c, kept, false))
	consumed := make([]stored, 0, len(l.delivered))
	for _, sequence := range slices.Sorted(maps.Keys(l.delivered)) {
		consumed = append(consumed, stored{sequence, l.delivered[sequence]})
	}
	requireSame(l.t, work, want[work], consumed)
	require.Zero(l.t, l.again, "acknowledged messages were delivered again")
	l.acksPermanent(c)
	a, b := content(l.t, c, left, false), content(l.t, c, right, false)
	requireSame(l.t, "transactions", a, b)
	numbers := make([]int, len(a))
	for i := range a {
		numbers[i] = a[i].n
	}
	require.Equal(l.t, l.pairs, numbers, "transactions")
	l.t.Logf("%d publishes, %d consumed, %d transactions", len(l.acks), len(l.delivered), len(l.pairs))
}

// requireSame reports the first difference between two lists.
func requireSame(t *testing.T, what string, want, got []stored) {
	t.Helper()
	for i := range min(len(want), len(got)) {
		require.Equal(t, want[i], got[i], "%s: message %d", what, i)
	}
	require.Len(t, got, len(want), what)
}
