// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// memoryQueue is an in-memory source with one queue and one subscription.
type memoryQueue struct {
	mu       sync.Mutex
	records  [][]byte // records[i] has sequence i+1
	acked    map[uint64]bool
	count    map[uint64]uint32
	watchers []chan struct{}
	commits  int
	reads    int
	hold     chan struct{} // if not nil, commits wait until it is closed
	failWith error

	prioritized, exclusive bool
	paused                 bool
	ackTimeout             time.Duration

	most      uint64 // delivery limit; 0 means no limit
	dead      []dispatch.Dead
	moveFails error
	deadRoom  *int // number of messages that fit into the dead-letter queue; nil means no limit

	matches  func([]byte) bool
	noFilter error
	filters  atomic.Uint64

	delayed map[uint64]bool
	ttl     int64
	delay   time.Duration // redelivery delay per requeue of a message
	onRead  func()        // called without the lock when a read has its result
	toRead  func()        // called with the lock when a read begins
}

func newMemoryQueue() *memoryQueue {
	return &memoryQueue{acked: map[uint64]bool{}, count: map[uint64]uint32{}}
}

func (q *memoryQueue) publish(bodies ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, b := range bodies {
		q.records = append(q.records, []byte(b))
	}
	for _, w := range q.watchers {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

func (q *memoryQueue) Read(
	_ context.Context, key dispatch.Key, from uint64, maxMessages, maxBytes int, dst []dispatch.Message,
) ([]dispatch.Message, uint64, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if key.Queue != 1 {
		return dst, from, errNoQueue
	}
	q.reads++
	if toRead := q.toRead; toRead != nil {
		q.toRead = nil
		toRead()
	}
	if onRead := q.onRead; onRead != nil {
		q.onRead = nil
		defer func() {
			q.mu.Unlock()
			defer q.mu.Lock()
			onRead()
		}()
	}
	bytes, next := 0, from
	for s := from; s <= uint64(len(q.records)); s++ {
		if q.acked[s] {
			continue
		}
		if q.delayed[s] {
			next = s + 1
			continue
		}
		record := q.records[s-1]
		if len(dst) >= maxMessages || (len(dst) > 0 && bytes+len(record) > maxBytes) {
			break
		}
		dst = append(dst, dispatch.Message{Sequence: s, DeliveryCount: q.count[s], Record: record})
		bytes += len(record)
		next = s + 1
	}
	return dst, next, nil
}

// ReadPriorities reads one priority at a time. It returns the lowest sequences of the highest priority that has
// messages.
func (q *memoryQueue) ReadPriorities(
	ctx context.Context, key dispatch.Key, lanes *store.Lanes, maxMessages, _ int, dst []dispatch.Message,
) ([]dispatch.Message, uint64, error) {
	lanes.Empty = 0
	highest := uint64(0)
	for lane := len(lanes.Next) - 1; lane >= 0; lane-- {
		if lanes.Skip>>lane&1 == 1 {
			continue
		}
		from := lanes.Next[lane]
		all, _, err := q.Read(ctx, key, max(from, 1), 1<<30, 1<<30, nil)
		if err != nil {
			return dst, 0, err
		}
		for _, m := range all {
			if int(txn.RecordPriority(m.Record)) == lane && len(dst) < maxMessages {
				dst = append(dst, m)
				lanes.Next[lane] = m.Sequence + 1
				highest = max(highest, m.Sequence+1)
			}
		}
		if lanes.Next[lane] == from {
			lanes.Empty |= 1 << lane
		}
		if len(dst) >= maxMessages {
			break
		}
	}
	return dst, highest, nil
}

func (q *memoryQueue) Priorities(_ uint64, sequences []uint64) (list []uint8) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range sequences {
		list = append(list, txn.RecordPriority(q.records[s-1]))
	}
	return list
}

func (q *memoryQueue) Order(uint64) (prioritized, exclusive bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.prioritized, q.exclusive
}

func (q *memoryQueue) TTL(uint64) int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ttl
}

func (q *memoryQueue) Paused(dispatch.Key) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.paused
}

func (q *memoryQueue) AckTimeout(dispatch.Key) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ackTimeout
}

func (q *memoryQueue) RedeliveryDelays(_ dispatch.Key, sequences []uint64) (delays []time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.delay == 0 {
		return nil
	}
	for _, s := range sequences {
		delays = append(delays, time.Duration(q.count[s])*q.delay)
	}
	return delays
}

func (q *memoryQueue) NextSequence(uint64) (uint64, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return uint64(len(q.records)) + 1, true
}

func (q *memoryQueue) Watch(uint64) (<-chan struct{}, func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	ch := make(chan struct{}, 1)
	q.watchers = append(q.watchers, ch)
	return ch, func() {}
}

func (q *memoryQueue) Settle(ctx context.Context, _ dispatch.Key, acks, releases []dispatch.Range) error {
	if err := q.held(ctx); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.failWith != nil {
		return q.failWith
	}
	q.commits++
	for _, r := range acks {
		for s := r.First; s <= r.Last; s++ {
			q.acked[s] = true
		}
	}
	for _, r := range releases {
		for s := r.First; s <= r.Last; s++ {
			q.count[s]++
		}
	}
	return nil
}

// held waits while commits are blocked.
func (q *memoryQueue) held(ctx context.Context) error {
	q.mu.Lock()
	hold := q.hold
	q.mu.Unlock()
	if hold == nil {
		return nil
	}
	select {
	case <-hold:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (q *memoryQueue) isAcked(sequence uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.acked[sequence]
}

func (q *memoryQueue) readsSoFar() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.reads
}

func (q *memoryQueue) backlog() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.records) - len(q.acked)
}

var errNoQueue = errors.New("no such queue")

func limits() dispatch.Limits {
	return dispatch.Limits{Consumers: 10, Outstanding: 1000, BatchBytes: 1 << 10, OutboxBytes: 4 << 10}
}

// simulated runs a subtest in a separate synctest bubble.
func simulated(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

type fixture struct {
	t        *testing.T
	queue    *memoryQueue
	registry *dispatch.Registry
	counters *dispatch.Counters
	ctx      context.Context
}

func newFixture(t *testing.T, l dispatch.Limits) *fixture {
	t.Helper()
	q := newMemoryQueue()
	l.Counters = new(dispatch.Counters)
	r := dispatch.NewRegistry(q, q, l, zap.NewNop())
	t.Cleanup(func() { r.Close(nil) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return &fixture{t: t, queue: q, registry: r, counters: l.Counters, ctx: ctx}
}

func (f *fixture) attach(credit uint32) *dispatch.Consumer {
	f.t.Helper()
	c, err := f.registry.Attach(dispatch.Key{Queue: 1, Sub: 1}, "", nil)
	require.NoError(f.t, err)
	f.t.Cleanup(c.Close)
	require.NoError(f.t, c.AddCredit(credit))
	return c
}

// take waits until the consumer has received n messages, and returns them.
func (f *fixture) take(c *dispatch.Consumer, n int) []dispatch.Message {
	f.t.Helper()
	var got []dispatch.Message
	for len(got) < n {
		event, err := c.Next(f.ctx)
		require.NoError(f.t, err)
		got = append(got, event.Messages...)
	}
	require.Len(f.t, got, n)
	return got
}

// nothing checks that the consumer receives no event within a second of simulated time.
func (f *fixture) nothing(c *dispatch.Consumer) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.ctx, time.Second)
	defer cancel()
	event, err := c.Next(ctx)
	require.ErrorIs(f.t, err, context.DeadlineExceeded, "got %v", event)
}

// confirm settles messages, waits for the confirmation, and returns the messages received until then.
func (f *fixture) confirm(c *dispatch.Consumer, acks, nacks []dispatch.Range, number uint64) []dispatch.Message {
	f.t.Helper()
	var got []dispatch.Message
	require.NoError(f.t, c.Settle(f.ctx, dispatch.Outcomes{Acks: acks, Nacks: nacks, Confirm: number}))
	for {
		event, err := c.Next(f.ctx)
		require.NoError(f.t, err)
		got = append(got, event.Messages...)
		if event.Confirmed >= number {
			return got
		}
	}
}

func one(s uint64) []dispatch.Range     { return []dispatch.Range{{First: s, Last: s}} }
func span(a, b uint64) []dispatch.Range { return []dispatch.Range{{First: a, Last: b}} }
func sequences(m []dispatch.Message) []uint64 {
	out := make([]uint64, 0, len(m))
	for _, x := range m {
		out = append(out, x.Sequence)
	}
	return out
}

func TestDeliveryInOrderWithinCredit(t *testing.T) { synctest.Test(t, testDeliveryInOrderWithinCredit) }

func testDeliveryInOrderWithinCredit(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.publish("a", "b", "c", "d")
	c := f.attach(3)
	require.Equal(t, []uint64{1, 2, 3}, sequences(f.take(c, 3)))
	f.nothing(c)
	require.NoError(t, c.AddCredit(10))
	require.Equal(t, []uint64{4}, sequences(f.take(c, 1)))
	f.queue.publish("e")
	require.Equal(t, []uint64{5}, sequences(f.take(c, 1)))
	f.confirm(c, span(1, 5), nil, 7)
	require.Zero(t, f.queue.backlog())
}

// Messages that exceed the credit of one consumer are delivered to another consumer.
func TestDeliveryToConsumersWithCredit(t *testing.T) {
	synctest.Test(t, testDeliveryToConsumersWithCredit)
}

func testDeliveryToConsumersWithCredit(t *testing.T) {
	f := newFixture(t, limits())
	a, b := f.attach(2), f.attach(100)
	f.queue.publish("1", "2", "3", "4", "5", "6")
	got := append(sequences(f.take(a, 2)), sequences(f.take(b, 4))...)
	require.ElementsMatch(t, []uint64{1, 2, 3, 4, 5, 6}, got)
	f.nothing(a)
}

func TestNackedMessageIsRedeliveredFirst(t *testing.T) {
	synctest.Test(t, testNackedMessageIsRedeliveredFirst)
}

func testNackedMessageIsRedeliveredFirst(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.publish("1", "2", "3", "4")
	c := f.attach(3)
	f.take(c, 3)
	f.confirm(c, nil, []dispatch.Range{{First: 3, Last: 3}, {First: 1, Last: 1}}, 1)
	require.NoError(t, c.AddCredit(3))
	again := f.take(c, 3)
	require.Equal(t, []uint64{1, 3, 4}, sequences(again))
	require.Equal(t, uint32(1), again[0].DeliveryCount)
	require.Equal(t, uint32(0), again[2].DeliveryCount)
}

// The unacknowledged messages of a lost consumer are redelivered to another consumer, and their earlier
// deliveries are counted.
func TestMessagesOfLostConsumerAreRedelivered(t *testing.T) {
	synctest.Test(t, testMessagesOfLostConsumerAreRedelivered)
}

func testMessagesOfLostConsumerAreRedelivered(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.publish("1", "2", "3")
	lost, other := f.attach(3), f.attach(0)
	f.take(lost, 3)
	require.NoError(t, lost.Settle(f.ctx, dispatch.Outcomes{Acks: one(2)}))
	lost.Close()
	require.NoError(t, other.AddCredit(10))
	again := f.take(other, 2)
	require.Equal(t, []uint64{1, 3}, sequences(again))
	require.Equal(t, uint32(1), again[0].DeliveryCount)
	f.confirm(other, span(1, 3), nil, 1)
	require.Zero(t, f.queue.backlog())
}

// A message that was assigned to a lost consumer but not sent to its client does not count as delivered.
func TestUnsentMessageIsNotCounted(t *testing.T) { synctest.Test(t, testUnsentMessageIsNotCounted) }

func testUnsentMessageIsNotCounted(t *testing.T) {
	f := newFixture(t, limits())
	lost, other := f.attach(3), f.attach(0)
	f.queue.publish("1", "2", "3")
	require.Eventually(t, func() bool {
		n, _ := f.registry.Stats(dispatch.Key{Queue: 1, Sub: 1})
		return n == 3
	}, 5*time.Second, time.Millisecond)
	lost.Close()
	require.NoError(t, other.AddCredit(3))
	for _, m := range f.take(other, 3) {
		require.Zero(t, m.DeliveryCount)
	}
}

// If the only consumer of a subscription closes, its messages are redelivered to the next consumer.
func TestLastConsumerReattaches(t *testing.T) {
	synctest.Test(t, testLastConsumerReattaches)
}

func testLastConsumerReattaches(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.publish("1", "2")
	c := f.attach(1)
	f.take(c, 1)
	c.Close()
	c.Close() // a second Close has no effect
	again := f.take(f.attach(2), 2)
	require.Equal(t, []uint64{1, 2}, sequences(again))
	require.Equal(t, uint32(1), again[0].DeliveryCount)
}

// Acknowledgements received during a commit are committed together in the next transaction, and confirmed after
// that commit.
func TestAcksAreBatched(t *testing.T) { synctest.Test(t, testAcksAreBatched) }

func testAcksAreBatched(t *testing.T) {
	f := newFixture(t, limits())
	hold := make(chan struct{})
	f.queue.hold = hold
	for i := range 100 {
		f.queue.publish(fmt.Sprint(i))
	}
	c := f.attach(100)
	f.take(c, 100)
	for i := range uint64(100) {
		require.NoError(t, c.Settle(f.ctx, dispatch.Outcomes{Acks: one(i + 1), Confirm: i + 1}))
	}
	f.nothing(c)
	f.queue.mu.Lock()
	f.queue.hold = nil
	f.queue.mu.Unlock()
	close(hold)
	f.confirm(c, nil, nil, 101)
	require.Zero(t, f.queue.backlog())
	require.LessOrEqual(t, f.queue.commits, 3)
}

// A paused registry delivers nothing (INV-2).
func TestPausedDeliversNothing(t *testing.T) { synctest.Test(t, testPausedDeliversNothing) }

func testPausedDeliversNothing(t *testing.T) {
	f := newFixture(t, limits())
	c := f.attach(10)
	f.queue.publish("1")
	require.Eventually(t, func() bool {
		n, _ := f.registry.Stats(dispatch.Key{Queue: 1, Sub: 1})
		return n == 1
	}, 5*time.Second, time.Millisecond)
	f.registry.SetPaused(true) // the message is already in the outbox
	f.queue.publish("2")
	f.nothing(c)
	f.registry.SetPaused(false)
	require.Equal(t, []uint64{1, 2}, sequences(f.take(c, 2)))
}

// After Close, the methods of the registry and of its consumers return the reason.
func TestCloseReturnsReason(t *testing.T) { synctest.Test(t, testCloseReturnsReason) }

func testCloseReturnsReason(t *testing.T) {
	f := newFixture(t, limits())
	c := f.attach(10)
	reason := errors.New("not active")
	f.registry.Close(reason)
	_, err := c.Next(f.ctx)
	require.ErrorIs(t, err, reason)
	require.ErrorIs(t, c.Settle(f.ctx, dispatch.Outcomes{Confirm: 1}), reason)
	_, err = f.registry.Attach(dispatch.Key{Queue: 1, Sub: 1}, "", nil)
	require.ErrorIs(t, err, reason)
}

// If a read or a commit fails, the consumers end with the error of the read or commit. A later consumer receives the
// messages again.
func TestErrorsEndConsumers(t *testing.T) { synctest.Test(t, testErrorsEndConsumers) }

func testErrorsEndConsumers(t *testing.T) {
	f := newFixture(t, limits())
	c, err := f.registry.Attach(dispatch.Key{Queue: 2, Sub: 1}, "", nil)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.AddCredit(1))
	_, err = c.Next(f.ctx)
	require.ErrorIs(t, err, errNoQueue)

	f.queue.publish("1")
	c = f.attach(1)
	f.take(c, 1)
	f.queue.mu.Lock()
	f.queue.failWith = io.ErrUnexpectedEOF
	f.queue.mu.Unlock()
	require.NoError(t, c.Settle(f.ctx, dispatch.Outcomes{Acks: one(1), Confirm: 1}))
	_, err = c.Next(f.ctx)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	f.queue.mu.Lock()
	f.queue.failWith = nil
	f.queue.mu.Unlock()
	require.Equal(t, []uint64{1}, sequences(f.take(f.attach(1), 1)), "the message is redelivered")
}

// Messages that another transaction acknowledges or releases are no longer in flight. Released messages are
// redelivered.
func TestSettledByTransaction(t *testing.T) { synctest.Test(t, testSettledByTransaction) }

func testSettledByTransaction(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.publish("1", "2", "3")
	c := f.attach(3)
	f.take(c, 3)
	key := dispatch.Key{Queue: 1, Sub: 1}
	require.NoError(t, f.queue.Settle(f.ctx, key, one(1), one(2)))
	f.registry.Settled(key, one(1), one(2))
	n, _ := f.registry.Stats(key)
	require.Equal(t, uint64(1), n)
	require.NoError(t, c.AddCredit(5))
	again := f.take(c, 1)
	require.Equal(t, []uint64{2}, sequences(again))
	require.Equal(t, uint32(1), again[0].DeliveryCount)
}

// A consumer can acknowledge messages that were delivered to an earlier consumer.
func TestAckAfterReconnect(t *testing.T) { synctest.Test(t, testAckAfterReconnect) }

func testAckAfterReconnect(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.publish("1", "2", "3")
	c := f.attach(0)
	f.confirm(c, span(1, 2), nil, 1)
	require.NoError(t, c.AddCredit(3))
	require.Equal(t, []uint64{3}, sequences(f.take(c, 1)))
	require.ErrorIs(t, c.Settle(f.ctx, dispatch.Outcomes{Acks: one(4), Confirm: 1}), dispatch.ErrNotDelivered)
	require.ErrorIs(t, c.Settle(f.ctx, dispatch.Outcomes{Nacks: span(1, 1<<63), Confirm: 1}), dispatch.ErrNotDelivered)
}

func TestConsumersAndCreditAreLimited(t *testing.T) {
	synctest.Test(t, testConsumersAndCreditAreLimited)
}

func testConsumersAndCreditAreLimited(t *testing.T) {
	l := limits()
	l.Consumers, l.Outstanding = 2, 5
	f := newFixture(t, l)
	c := f.attach(5)
	require.ErrorIs(t, c.AddCredit(1), dispatch.ErrTooMuchCredit)
	require.ErrorIs(t, c.AddCredit(1<<31), dispatch.ErrTooMuchCredit)
	f.attach(0)
	_, err := f.registry.Attach(dispatch.Key{Queue: 1, Sub: 1}, "", nil)
	require.ErrorIs(t, err, dispatch.ErrTooManyConsumers)

	for range 10 {
		f.queue.publish("x")
	}
	f.take(c, 5)
	require.NoError(t, c.AddCredit(5))
	f.nothing(c) // the limit of messages in flight is reached
	got := f.confirm(c, one(1), nil, 1)
	require.Equal(t, []uint64{6}, sequences(append(got, f.take(c, 1-len(got))...)))
}

// The outbox of a slow client is limited regardless of its credit.
func TestOutboxIsBounded(t *testing.T) { synctest.Test(t, testOutboxIsBounded) }

func testOutboxIsBounded(t *testing.T) {
	l := limits()
	f := newFixture(t, l)
	c := f.attach(1000)
	big := string(make([]byte, 1000))
	for range 100 {
		f.queue.publish(big)
	}
	key := dispatch.Key{Queue: 1, Sub: 1}
	require.Eventually(t, func() bool { n, _ := f.registry.Stats(key); return n >= 4 }, 5*time.Second, time.Millisecond)
	n, _ := f.registry.Stats(key)
	require.LessOrEqual(t, n, uint64(l.OutboxBytes/1000+2))
	f.take(c, 100)
}

// If consumers ack, nack and leave at random, every message is acknowledged, and no message is in flight at two
// consumers.
func TestRandomConsumers(t *testing.T) { synctest.Test(t, testRandomConsumers) }

func testRandomConsumers(t *testing.T) {
	const messages = 3000
	f := newFixture(t, limits())
	var holders sync.Map
	var wg sync.WaitGroup
	for worker := range 6 {
		wg.Go(func() {
			rng := rand.New(rand.NewSource(int64(worker)))
			for f.queue.backlog() > 0 && f.ctx.Err() == nil {
				f.consumeSome(rng, &holders)
			}
		})
		if worker == 0 {
			for i := range messages {
				f.queue.publish(fmt.Sprint(i))
			}
		}
	}
	wg.Wait()
	require.Zero(t, f.queue.backlog())
}

// consumeSome attaches a consumer, settles some of its messages, and closes it. It reports messages that are in
// flight at two consumers or redelivered after an acknowledgement.
func (f *fixture) consumeSome(rng *rand.Rand, holders *sync.Map) {
	c, err := f.registry.Attach(dispatch.Key{Queue: 1, Sub: 1}, "", nil)
	if err != nil {
		f.t.Error(err)
		return
	}
	var mine []uint64
	defer func() {
		for _, s := range mine {
			holders.Delete(s)
		}
		c.Close()
	}()
	for range 1 + rng.Intn(20) {
		if err := c.AddCredit(uint32(rng.Intn(20))); err != nil {
			f.t.Error(err)
		}
		ctx, cancel := context.WithTimeout(f.ctx, 5*time.Millisecond)
		event, _ := c.Next(ctx)
		cancel()
		for _, m := range event.Messages {
			if _, held := holders.LoadOrStore(m.Sequence, c); held {
				f.t.Errorf("message %d is in flight at two consumers", m.Sequence)
			}
			if f.queue.isAcked(m.Sequence) {
				f.t.Errorf("message %d was redelivered after its acknowledgement", m.Sequence)
			}
			mine = append(mine, m.Sequence)
		}
		for len(mine) > 0 && rng.Intn(10) > 0 {
			last := mine[len(mine)-1]
			mine = mine[:len(mine)-1]
			holders.Delete(last)
			acks, nacks := one(last), []dispatch.Range(nil)
			if rng.Intn(4) == 0 {
				acks, nacks = nil, acks
			}
			if err := c.Settle(f.ctx, dispatch.Outcomes{Acks: acks, Nacks: nacks}); err != nil {
				f.t.Error(err)
			}
		}
	}
}

// Messages delivered to consumers that have detached are counted only once.
func TestTakeDetached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limits())
		f.ctx = t.Context()
		f.queue.publish("1", "2", "3")
		require.Empty(t, f.registry.TakeDetached())
		c := f.attach(2)
		f.take(c, 2)
		require.Equal(t, uint64(2), f.registry.Activity()[1].Delivered)
		require.NoError(t, c.Settle(f.ctx, dispatch.Outcomes{Acks: one(1)}))
		c.Close()
		<-time.After(time.Minute) // the dispatcher is removed in that time
		synctest.Wait()
		require.Empty(t, f.registry.Activity())
		require.Equal(t, map[uint64]uint64{1: 2}, f.registry.TakeDetached())
		require.Empty(t, f.registry.TakeDetached())
	})
}
