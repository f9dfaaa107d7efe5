// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// message encodes a message with attributes.
func message(t *testing.T, a txn.Attributes, body string) string {
	t.Helper()
	rec, err := txn.AppendMessage(nil, 1, &a, nil, []byte(body))
	require.NoError(t, err)
	return string(rec)
}

func (f *fixture) prioritized(priorities ...uint8) {
	f.t.Helper()
	for _, p := range priorities {
		f.queue.publish(message(f.t, txn.Attributes{Priority: &p}, ""))
	}
}

func (f *fixture) grouped(groups ...string) {
	f.t.Helper()
	for _, g := range groups {
		f.queue.publish(message(f.t, txn.Attributes{Group: g}, ""))
	}
}

// filtered attaches a consumer with a filter.
func (f *fixture) filtered(credit uint32, accepts func(m *dispatch.Message) bool) *dispatch.Consumer {
	f.t.Helper()
	c, err := f.registry.Attach(dispatch.Key{Queue: 1, Sub: 1}, "", accepts)
	require.NoError(f.t, err)
	f.t.Cleanup(c.Close)
	require.NoError(f.t, c.AddCredit(credit))
	return c
}

func TestHigherPrioritiesFirst(t *testing.T) { synctest.Test(t, testHigherPrioritiesFirst) }

func testHigherPrioritiesFirst(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.prioritized = true
	f.prioritized(1, 4, 9, 4, 1, 9)
	c := f.attach(4)
	require.Equal(t, []uint64{3, 6, 2, 4}, sequences(f.take(c, 4)))
	f.nothing(c)
	// A new message with a higher priority overtakes all unassigned messages. A requeued message returns to its
	// position.
	f.prioritized(5)
	require.Empty(t, f.confirm(c, nil, append(one(4), one(3)...), 1))
	require.NoError(t, c.AddCredit(4))
	require.Equal(t, []uint64{3, 7, 4, 1}, sequences(f.take(c, 4)))
	require.NoError(t, c.AddCredit(4))
	require.Equal(t, []uint64{5}, sequences(f.take(c, 1)))
	f.nothing(c)
}

// While a consumer always has credit, the dispatcher never becomes idle. Even then, a new message with the
// highest priority is delivered next.
func TestHighPriorityIsNextInBusyQueue(t *testing.T) {
	synctest.Test(t, testHighPriorityIsNextInBusyQueue)
}

func testHighPriorityIsNextInBusyQueue(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.prioritized = true
	for range 300 {
		f.prioritized(0)
	}
	c := f.attach(1)
	for i := range 300 {
		m := f.take(c, 1)
		require.NoError(t, c.Settle(f.ctx, dispatch.Outcomes{Acks: one(m[0].Sequence)}))
		if i%50 == 10 {
			f.prioritized(9)
			require.NoError(t, c.AddCredit(1))
			high := f.take(c, 1)
			require.GreaterOrEqual(t, high[0].Sequence, uint64(301), "after %d messages", i)
			require.NoError(t, c.Settle(f.ctx, dispatch.Outcomes{Acks: one(high[0].Sequence)}))
		}
		require.NoError(t, c.AddCredit(1))
	}
}

// A message with a high priority that is published before credit is added is delivered first. This applies even if
// both occur between the dispatcher's checks of the queue and of the consumers.
func TestHighPriorityBeforeCredit(t *testing.T) { synctest.Test(t, testHighPriorityBeforeCredit) }

func testHighPriorityBeforeCredit(t *testing.T) {
	var between atomic.Pointer[func()]
	l := limits()
	l.CPUFraction, l.Busy = 0.5, func() bool { // called at this point
		if act := between.Swap(nil); act != nil {
			(*act)()
		}
		return false
	}
	f := newFixture(t, l)
	f.queue.prioritized = true
	f.prioritized(0, 0)
	c := f.attach(1)
	require.Equal(t, []uint64{1}, sequences(f.take(c, 1)))
	high := uint8(9)
	body := message(t, txn.Attributes{Priority: &high}, "")
	act := func() {
		f.queue.publish(body)
		_ = c.AddCredit(1) // if this fails, no message is delivered and the test fails
	}
	between.Store(&act)
	require.NoError(t, c.Settle(f.ctx, dispatch.Outcomes{Acks: one(1)})) // triggers the dispatcher
	require.Equal(t, []uint64{3}, sequences(f.take(c, 1)))
	require.NoError(t, c.AddCredit(1))
	require.Equal(t, []uint64{2}, sequences(f.take(c, 1)))
}

// One message of a group is in flight at a time, at the consumer that owns the group. A requeued message blocks
// its group, and a rejected message does not.
func TestGroupIsDeliveredInOrder(t *testing.T) { synctest.Test(t, testGroupIsDeliveredInOrder) }

func testGroupIsDeliveredInOrder(t *testing.T) {
	f := newFixture(t, limits())
	// Attach both consumers before the first group arrives, because a single consumer would receive every group.
	x, y := f.attach(10), f.attach(10)
	f.grouped("a", "a", "b", "a", "b")
	inX, inY := sequences(f.take(x, 1)), sequences(f.take(y, 1))
	require.Equal(t, []uint64{1}, inX, "the first group goes to the first consumer")
	require.Equal(t, []uint64{3}, inY, "the second group goes to the consumer with fewer groups")
	f.nothing(x)
	f.nothing(y)
	// A requeued message blocks its group.
	again := f.confirm(y, nil, one(3), 1) // the message may arrive with the confirmation
	again = append(again, f.take(y, 1-len(again))...)
	require.Equal(t, []uint64{3}, sequences(again), "the group stays with its consumer")
	require.NoError(t, x.Settle(f.ctx, dispatch.Outcomes{Acks: one(1)}))
	require.Equal(t, []uint64{2}, sequences(f.take(x, 1)))
	// A rejected message does not block its group.
	require.NoError(t, y.Settle(f.ctx, dispatch.Outcomes{Rejects: one(3)}))
	require.Equal(t, []uint64{5}, sequences(f.take(y, 1)))
	// When a consumer is lost, its group moves to the other consumer, which first receives the message in flight.
	x.Close()
	require.Equal(t, []uint64{2}, sequences(f.take(y, 1)))
	require.NoError(t, y.Settle(f.ctx, dispatch.Outcomes{Acks: one(2)}))
	require.Equal(t, []uint64{4}, sequences(f.take(y, 1)))
}

// A group continues when another transaction acknowledges its message in flight.
func TestGroupContinuesAfterRemoteAck(t *testing.T) {
	synctest.Test(t, testGroupContinuesAfterRemoteAck)
}

func testGroupContinuesAfterRemoteAck(t *testing.T) {
	f := newFixture(t, limits())
	f.grouped("a", "a", "a", "a")
	c := f.attach(10)
	require.Equal(t, []uint64{1}, sequences(f.take(c, 1)))
	require.NoError(t, f.queue.Settle(f.ctx, dispatch.Key{}, span(1, 2), nil))
	f.registry.Settled(dispatch.Key{Queue: 1, Sub: 1}, span(1, 2), nil)
	require.Equal(t, []uint64{3}, sequences(f.take(c, 1)), "2 was acknowledged while it was parked")
	f.registry.Settled(dispatch.Key{Queue: 1, Sub: 1}, nil, one(3))
	require.Equal(t, []uint64{3}, sequences(f.take(c, 1)), "3 was requeued")
}

// While a group waits for a consumer without credit, later messages of other groups are delivered.
func TestGroupsContinueWhileOneConsumerIsFull(t *testing.T) {
	synctest.Test(t, testGroupsContinueWhileOneConsumerIsFull)
}

func testGroupsContinueWhileOneConsumerIsFull(t *testing.T) {
	f := newFixture(t, limits())
	f.grouped("a", "b")
	x, y := f.attach(1), f.attach(1)
	require.Equal(t, []uint64{1}, sequences(f.take(x, 1)))
	require.Equal(t, []uint64{2}, sequences(f.take(y, 1)))
	require.NoError(t, x.Settle(f.ctx, dispatch.Outcomes{Acks: one(1)})) // x has no more credit
	require.NoError(t, y.Settle(f.ctx, dispatch.Outcomes{Acks: one(2)}))
	f.grouped("a", "a", "b", "c")
	require.NoError(t, y.AddCredit(10))
	require.Equal(t, []uint64{5, 6}, sequences(f.take(y, 2)))
	f.nothing(x)
	require.NoError(t, x.AddCredit(1))
	require.Equal(t, []uint64{3}, sequences(f.take(x, 1)))
}

// Only the first consumer of an exclusive queue receives messages. When it closes, the next consumer becomes
// active. The setting can be altered at any time.
func TestExclusiveConsumer(t *testing.T) { synctest.Test(t, testExclusiveConsumer) }

func testExclusiveConsumer(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.exclusive = true
	f.queue.publish("1", "2", "3", "4")
	x, y, z := f.attach(2), f.attach(2), f.attach(2)
	require.Equal(t, []uint64{1, 2}, sequences(f.take(x, 2)))
	f.nothing(y)
	require.NoError(t, x.Settle(f.ctx, dispatch.Outcomes{Acks: one(1)}))
	x.Close()
	require.Equal(t, []uint64{2, 3}, sequences(f.take(y, 2)), "the next consumer becomes active")
	f.nothing(z)
	// The setting can be altered at any time.
	f.queue.set(func() { f.queue.exclusive = false })
	f.queue.publish("5")
	require.Equal(t, []uint64{4, 5}, sequences(f.take(z, 2)))
	f.queue.set(func() { f.queue.exclusive = true })
	f.queue.publish("6")
	require.NoError(t, z.AddCredit(1))
	f.nothing(z)
	require.NoError(t, y.AddCredit(1))
	require.Equal(t, []uint64{6}, sequences(f.take(y, 1)))
}

// If a queue becomes exclusive before a publish, only the active consumer receives the message. This applies even if
// both occur between the dispatcher's check of the configuration and its read.
func TestExclusiveBeforePublish(t *testing.T) { synctest.Test(t, testExclusiveBeforePublish) }

func testExclusiveBeforePublish(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.exclusive = true
	x, y := f.attach(1), f.attach(0)
	f.queue.publish("1")
	require.Equal(t, []uint64{1}, sequences(f.take(x, 1)))
	f.queue.set(func() {
		f.queue.exclusive = false
		f.queue.toRead = func() {
			f.queue.exclusive = true
			f.queue.records = append(f.queue.records, []byte("2"))
		}
	})
	f.queue.publish() // without a message, but the dispatcher checks the queue
	require.NoError(t, y.AddCredit(1))
	f.nothing(y)
	require.NoError(t, x.AddCredit(1))
	require.Equal(t, []uint64{2}, sequences(f.take(x, 1)))
}

// A consumer with a filter receives only matching messages, including those of a lost consumer. Messages that
// match no filter remain for other consumers.
func TestConsumersWithFilters(t *testing.T) { synctest.Test(t, testConsumersWithFilters) }

func testConsumersWithFilters(t *testing.T) {
	f := newFixture(t, limits())
	has := func(c byte) func(*dispatch.Message) bool {
		return func(m *dispatch.Message) bool { return m.Record[0] == c }
	}
	a, b := f.filtered(10, has('a')), f.filtered(1, has('b'))
	f.queue.publish("a1", "b1", "c1", "b2", "a2", "c2", "b3")
	require.Equal(t, []uint64{1, 5}, sequences(f.take(a, 2)))
	require.Equal(t, []uint64{2}, sequences(f.take(b, 1)))
	f.nothing(b)
	f.nothing(a)
	require.NoError(t, b.AddCredit(10))
	require.Equal(t, []uint64{4, 7}, sequences(f.take(b, 2)))
	// Messages of a lost consumer are delivered only to a consumer that accepts them. Messages that no consumer
	// accepts remain in the queue.
	b.Close()
	f.nothing(a)
	all := f.attach(10)
	require.ElementsMatch(t, []uint64{2, 3, 4, 6, 7}, sequences(f.take(all, 5)))
}

// set changes the queue's configuration.
func (q *memoryQueue) set(change func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	change()
}

// Consumers attach, leave, acknowledge, reject and nack at random. A message of a group is delivered only after
// all preceding messages of the group are acknowledged or rejected.
func TestGroupsWithRandomConsumers(t *testing.T) {
	for seed := range uint64(4) {
		simulated(t, fmt.Sprint(seed), func(t *testing.T) { groupsWithRandomConsumers(t, seed) })
	}
}

// randomConsumers records which messages are in flight and which are settled.
type randomConsumers struct {
	mu      sync.Mutex
	group   map[uint64]string
	out     map[string]uint64 // by group; 0 if no message is in flight
	done    map[uint64]bool
	inOrder map[string][]uint64
	left    int
	wrong   string
}

func groupsWithRandomConsumers(t *testing.T, seed uint64) {
	f := newFixture(t, limits())
	rng := rand.New(rand.NewPCG(seed, 3))
	f.queue.prioritized = seed%2 == 1
	const messages = 600
	w := &randomConsumers{
		group: map[uint64]string{}, out: map[string]uint64{}, done: map[uint64]bool{}, inOrder: map[string][]uint64{},
		left: messages,
	}
	for i := range uint64(messages) {
		g := fmt.Sprint(rng.IntN(25))
		w.group[i+1] = g
		w.inOrder[g] = append(w.inOrder[g], i+1)
		f.queue.publish(message(t, txn.Attributes{Group: g}, ""))
	}
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	var running sync.WaitGroup
	for worker := range uint64(4) {
		running.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 100+worker))
			for ctx.Err() == nil {
				if w.consume(ctx, f, rng) {
					cancel()
				}
			}
		})
	}
	running.Wait()
	require.Empty(t, w.wrong)
	require.Zero(t, w.left, "all messages are settled")
}

// consume runs one consumer until it closes. It reports whether all messages are settled.
func (w *randomConsumers) consume(ctx context.Context, f *fixture, rng *rand.Rand) (end bool) {
	var accepts func(*dispatch.Message) bool
	if rng.IntN(4) == 0 {
		unmatched := rng.Uint64N(3)
		accepts = func(m *dispatch.Message) bool { return m.Sequence%3 != unmatched }
	}
	c, err := f.registry.Attach(dispatch.Key{Queue: 1, Sub: 1}, "", accepts)
	if err != nil {
		return true
	}
	_ = c.AddCredit(uint32(1 + rng.IntN(20)))
	held := map[uint64]bool{}
	defer func() {
		w.mu.Lock()
		for sequence := range held {
			w.out[w.group[sequence]] = 0 // the message was in flight at this consumer until now
		}
		w.mu.Unlock()
		c.Close()
	}()
	for n := 5 + rng.IntN(60); n > 0 && ctx.Err() == nil; n-- {
		wait, cancel := context.WithTimeout(ctx, 2*time.Millisecond)
		event, err := c.Next(wait)
		cancel()
		if err != nil {
			continue
		}
		for _, m := range event.Messages {
			held[m.Sequence] = true
			w.delivered(m.Sequence)
		}
		for sequence := range held {
			if rng.IntN(3) == 0 {
				continue
			}
			delete(held, sequence)
			if w.settle(f, c, rng, sequence) {
				return true
			}
		}
		_ = c.AddCredit(uint32(len(event.Messages)))
	}
	return false
}

func (w *randomConsumers) delivered(sequence uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.group[sequence]
	if other := w.out[g]; other != 0 {
		w.wrong = fmt.Sprintf("%d was delivered while %d of its group %s was in flight", sequence, other, g)
	}
	w.out[g] = sequence
	next := slices.IndexFunc(w.inOrder[g], func(s uint64) bool { return !w.done[s] })
	if next < 0 || w.inOrder[g][next] != sequence {
		w.wrong = fmt.Sprintf("%d was delivered, group %s has %v", sequence, g, w.inOrder[g])
	}
}

func (w *randomConsumers) settle(f *fixture, c *dispatch.Consumer, rng *rand.Rand, sequence uint64) (end bool) {
	a := dispatch.Outcomes{Nacks: one(sequence)}
	w.mu.Lock()
	w.out[w.group[sequence]] = 0
	switch k := rng.IntN(10); {
	case k < 6:
		a = dispatch.Outcomes{Acks: one(sequence)}
	case k < 7:
		a = dispatch.Outcomes{Rejects: one(sequence)}
	}
	if a.Nacks == nil {
		w.done[sequence] = true
		w.left--
	}
	end = w.left == 0
	w.mu.Unlock()
	_ = c.Settle(f.ctx, a)
	return end
}
