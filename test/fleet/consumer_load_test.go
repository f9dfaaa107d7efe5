// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
)

const (
	prefetch      = 2000
	flushInterval = 20 * time.Millisecond
	// nackInterval is the interval of messages that are nacked when they are delivered for the first time.
	nackInterval = 53
)

// consumer is the only consumer of a subscription of each queue.
type consumer interface {
	deliveries(queue string) *deliveries
	// stop ends the consumer. All messages are consumed.
	stop()
}

// deliveries are the deliveries from a queue to a consumer.
type deliveries struct {
	t            *testing.T
	w            *world
	queue        string
	subscription string

	mu        sync.Mutex // guards the fields below
	seen      map[string][]seen
	delivered int    // number of messages in seen
	newest    uint64 // highest sequence of a first delivery
	open      []key  // acknowledged, but not confirmed, in order
	confirmed int
	again     int // redeliveries
	unmarked  int // redeliveries with the same delivery count, after a move or a kill
	refused   int // acknowledgements that were not confirmed
	errs      []error
}

// key identifies a message.
type key struct {
	producer string
	n        int
}

// seen is the state of a message that was delivered.
type seen struct {
	sequence  uint64 // 0 if the client does not receive it
	count     uint32 // delivery count of the last delivery
	round     uint32 // world.round at the last delivery
	delivered bool
	confirmed bool // the node has confirmed the acknowledgement
}

func newDeliveries(w *world, queue, subscription string) *deliveries {
	return &deliveries{t: w.t, w: w, queue: queue, subscription: subscription, seen: map[string][]seen{}}
}

// newDeliveriesOf returns a record for each queue.
func newDeliveriesOf(w *world, queues []string, subscription string) map[string]*deliveries {
	all := map[string]*deliveries{}
	for _, q := range queues {
		all[q] = newDeliveries(w, q, subscription)
	}
	return all
}

// of returns the state of a message. d.mu must be held.
func (d *deliveries) of(k key) *seen {
	list := d.seen[k.producer]
	for len(list) <= k.n {
		list = append(list, seen{})
	}
	d.seen[k.producer] = list
	return &list[k.n]
}

// received records a delivery. It verifies that
//
//   - messages arrive in the order of their sequences and of their producers, except for redeliveries
//   - no message is delivered after the confirmation of its acknowledgement
//   - the delivery count of a message never decreases, and increases with each redelivery, unless a move or a kill
//     happens in the meantime
//
// nack is true if the caller must nack the message instead of acknowledging it.
func (d *deliveries) received(body []byte, sequence uint64, count uint32) (k key, nack bool) {
	round := d.w.round.Load()
	d.mu.Lock()
	defer d.mu.Unlock()
	producer, n, err := parse(body)
	if err != nil {
		d.fail("%w", err)
		return k, false
	}
	k = key{producer, n}
	known := len(d.seen[producer])
	s := d.of(k)
	switch {
	case !s.delivered && (n+1 < known || sequence != 0 && sequence < d.newest):
		d.fail("message %d of %s, sequence %d, was delivered after message %d and sequence %d", n, producer, sequence,
			known-1, d.newest)
	case !s.delivered:
		d.delivered++
		d.newest = max(d.newest, sequence)
		nack = d.delivered%nackInterval == 0
	case s.sequence != sequence:
		d.fail("message %d of %s was delivered with the sequences %d and %d", n, producer, s.sequence, sequence)
	case s.confirmed:
		d.fail("message %d of %s, sequence %d, was delivered after the confirmation of its acknowledgement", n, producer,
			sequence)
	case count < s.count:
		d.fail("message %d of %s has the delivery counts %d and %d", n, producer, s.count, count)
	case count == s.count && s.round == round && !inRound(round):
		d.fail("message %d of %s was delivered twice with delivery count %d", n, producer, count)
	default:
		d.again++
		if count == s.count {
			d.unmarked++
		}
	}
	s.sequence, s.count, s.round, s.delivered = sequence, count, round, true
	return k, nack
}

// fail records an error. d.mu must be held.
func (d *deliveries) fail(format string, args ...any) {
	d.errs = append(d.errs, fmt.Errorf("%s/%s: "+format, append([]any{d.queue, d.subscription}, args...)...))
}

func (d *deliveries) failed(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail("%w", err)
}

// acknowledged records an acknowledgement without a confirmation.
func (d *deliveries) acknowledged(k key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open = append(d.open, k)
}

// unconfirmed returns the number of acknowledgements without a confirmation.
func (d *deliveries) unconfirmed() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.open)
}

// confirm records the confirmation of the first n acknowledgements.
func (d *deliveries) confirm(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, k := range d.open[:n] {
		d.of(k).confirmed = true
	}
	d.confirmed += n
	d.open = append([]key(nil), d.open[n:]...)
}

// refuse records that no open acknowledgement is confirmed. The messages can be delivered again.
func (d *deliveries) refuse() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refused += len(d.open)
	d.open = nil
}

func (d *deliveries) check() {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	require.NoError(d.t, errors.Join(d.errs...))
}

// caughtUp waits until n messages are delivered.
func (d *deliveries) caughtUp(n int) {
	d.t.Helper()
	eventually(d.t, "messages consumed from "+d.queue+"/"+d.subscription, func(context.Context) bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.errs) > 0 || d.delivered >= n
	})
	d.check()
}

// finish waits until n messages are delivered and acknowledged.
func (d *deliveries) finish(c *client.Client, n int) {
	d.t.Helper()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.t.Logf("%s/%s: %d of %d delivered, %d confirmed, %d redelivered, of these %d with the same delivery count, "+
			"%d acknowledgements refused", d.queue, d.subscription, d.delivered, n, d.confirmed, d.again, d.unmarked, d.refused)
	}()
	d.caughtUp(n)
	eventually(d.t, "all messages acknowledged by "+d.queue+"/"+d.subscription, func(ctx context.Context) bool {
		for range c.Browse(ctx, d.queue, client.BrowseOptions{Subscription: d.subscription, Limit: 1}) {
			return false
		}
		return true
	})
}

// verify compares the deliveries with the messages of the queue.
func (d *deliveries) verify(all []stored) {
	d.t.Helper()
	d.check()
	for _, m := range all {
		s := d.of(key{m.producer, m.n})
		require.True(d.t, s.delivered, "%s/%s: delivery of message %d", d.queue, d.subscription, m.sequence)
		if s.sequence != 0 {
			require.Equal(d.t, m.sequence, s.sequence, "%s/%s: sequence of a delivery", d.queue, d.subscription)
		}
	}
	require.Equal(d.t, len(all), d.delivered, "messages delivered from %s/%s", d.queue, d.subscription)
	require.Positive(d.t, d.again, "no message of %s/%s was delivered again", d.queue, d.subscription)
}

// goConsumer consumes with the Go client.
type goConsumer struct {
	t      *testing.T
	all    map[string]*deliveries
	end    context.CancelFunc
	joined sync.WaitGroup
}

const goSubscription = "go"

func newGoConsumer(w *world, c *client.Client, queues ...string) *goConsumer {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	g := &goConsumer{t: w.t, end: cancel, all: newDeliveriesOf(w, queues, goSubscription)}
	w.t.Cleanup(func() {
		cancel()
		g.joined.Wait()
	})
	for q, d := range g.all {
		co, err := c.Consume(ctx, q, client.ConsumerOptions{Subscription: goSubscription, Prefetch: prefetch})
		require.NoError(w.t, err)
		g.joined.Go(func() { g.receive(ctx, co, d) })
		g.joined.Go(func() { g.flush(ctx, co, d) })
	}
	return g
}

func (*goConsumer) receive(ctx context.Context, co *client.Consumer, d *deliveries) {
	for {
		m, err := co.Receive(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			d.failed(fmt.Errorf("receive: %w", err))
			return
		}
		k, nack := d.received(m.Body, m.Sequence, m.DeliveryCount)
		switch {
		case nack:
			_ = m.Nack() // after an error, the message is delivered again without it
		case m.Ack() == nil:
			d.acknowledged(k)
		}
	}
}

// flush waits for the confirmation of the acknowledgements. After an error, these acknowledgements, and those that were
// added in the meantime, count as not confirmed: Flush reports a lost acknowledgement only once.
func (*goConsumer) flush(ctx context.Context, co *client.Consumer, d *deliveries) {
	tick := time.NewTicker(flushInterval)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
			n := d.unconfirmed()
			if co.Flush(ctx) == nil {
				d.confirm(n)
			} else {
				d.refuse()
			}
		case <-ctx.Done():
		}
	}
}

func (g *goConsumer) deliveries(queue string) *deliveries { return g.all[queue] }

func (g *goConsumer) stop() {
	g.t.Helper()
	g.end()
	waitFor(g.t, &g.joined, "end of the Go consumer")
}

// The checks of deliveries detect each violation.
func TestDeliveryChecks(t *testing.T) {
	const inCalm, inMove = 2, 3 // rounds
	type delivery struct {
		n        int
		sequence uint64
		count    uint32
		round    uint32
	}
	check := func(confirmed int, all ...delivery) error {
		w := &world{t: t}
		d := newDeliveries(w, "q", "s")
		for i, one := range all {
			w.round.Store(one.round)
			k, _ := d.received(body("p", one.n), one.sequence, one.count)
			if d.acknowledged(k); i < confirmed {
				d.confirm(1)
			}
		}
		return errors.Join(d.errs...)
	}
	first, second := delivery{1, 1, 0, inCalm}, delivery{2, 2, 0, inCalm}
	require.NoError(t, check(2, first, second))
	require.NoError(t, check(0, first, second, delivery{1, 1, 1, inCalm}), "redelivery")
	require.NoError(t, check(0, delivery{1, 1, 0, inMove}, delivery{1, 1, 0, inMove}), "delivery that was not counted")
	require.Error(t, check(0, first, first), "same count without a move")
	require.Error(t, check(0, delivery{1, 1, 2, inMove}, delivery{1, 1, 1, inMove}), "lower count")
	require.Error(t, check(1, first, delivery{1, 1, 1, inMove}), "redelivery after the confirmation")
	require.Error(t, check(0, second, first), "wrong order")
	require.Error(t, check(0, delivery{2, 0, 0, inCalm}, delivery{1, 0, 0, inCalm}), "wrong order of the producer")
	require.Error(t, check(0, first, delivery{1, 2, 1, inMove}), "other sequence")
}
