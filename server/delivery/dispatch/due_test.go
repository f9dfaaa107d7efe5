// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// release makes a delayed message deliverable, as the store does.
func (q *memoryQueue) release(sequence uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.delayed, sequence)
}

// A delayed message is delivered exactly once, regardless of whether it becomes deliverable behind the read
// position, ahead of it, or during a read that may return it.
func TestDueIsDelivered(t *testing.T) { synctest.Test(t, testDueIsDelivered) }

func testDueIsDelivered(t *testing.T) {
	for _, prioritized := range []bool{false, true} {
		f := newFixture(t, limits())
		f.queue.prioritized = prioritized
		f.queue.delayed = map[uint64]bool{2: true, 4: true, 6: true}
		bodies := make([]string, 6)
		for i := range bodies {
			bodies[i] = string(timed(t, txn.Attributes{Subject: "s"}))
		}
		f.queue.publish(bodies...)
		c := f.attach(100)
		require.Equal(t, []uint64{1, 3, 5}, sequences(f.take(c, 3)))
		f.nothing(c)
		f.queue.release(2)
		f.registry.Due(1, []uint64{2})
		require.Equal(t, []uint64{2}, sequences(f.take(c, 1)), "it is behind the read position")
		f.nothing(c)

		// 7 is published while 4 becomes deliverable behind the read position, and 8 ahead of it.
		f.queue.mu.Lock()
		f.queue.delayed[7], f.queue.delayed[8] = true, true
		f.queue.onRead = func() {
			f.queue.release(4)
			f.queue.release(8)
			f.registry.Due(1, []uint64{4, 8})
		}
		f.queue.mu.Unlock()
		f.queue.publish(bodies[:3]...)
		require.ElementsMatch(t, []uint64{4, 8, 9}, sequences(f.take(c, 3)))
		f.nothing(c)

		// 10 becomes deliverable before the read that returns it, and Due is called during that read.
		f.queue.mu.Lock()
		f.queue.onRead = func() { f.registry.Due(1, []uint64{10}) }
		f.queue.mu.Unlock()
		f.queue.publish(bodies[0])
		require.Equal(t, []uint64{10}, sequences(f.take(c, 1)))
		f.nothing(c)
		f.registry.Due(9, []uint64{1}) // a sequence of another queue
		f.confirm(c, span(1, 5), nil, 1)
		require.Zero(t, f.counters.Redelivered.Load(), "the first delivery is not a redelivery")
	}
}

func timed(t *testing.T, a txn.Attributes) []byte {
	t.Helper()
	rec, err := txn.AppendMessage(nil, time.Now().UnixMilli(), &a, nil, []byte("body"))
	require.NoError(t, err)
	return rec
}

// A message that expires before it is sent is not sent and uses no credit. This applies to the expiry time of the
// message and to the TTL of its queue. If the TTL is removed, the message is delivered.
func TestExpiredIsNotDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limits())
		f.ctx = t.Context() // a context without a timeout
		now := time.Now()
		dead := &txn.DeadLetter{
			Queue: "o", Subscription: "s", Sequence: 1, Reason: txn.DeadRejected, MovedMS: now.UnixMilli(),
		}
		f.queue.publish(
			string(timed(t, txn.Attributes{ExpiresAtMS: now.Add(-time.Second).UnixMilli()})),
			string(timed(t, txn.Attributes{ExpiresAtMS: now.Add(time.Hour).UnixMilli()})),
			string(timed(t, txn.Attributes{Subject: "none"})),
			string(timed(t, txn.Attributes{ExpiresAtMS: now.Add(2 * time.Second).UnixMilli()})),
			string(timed(t, txn.Attributes{DeadLetter: dead})),
		)
		c := f.attach(2)
		require.Equal(t, []uint64{2, 3}, sequences(f.take(c, 2)))
		time.Sleep(3 * time.Second) //nolint:forbidigo // the clock is that of synctest
		require.NoError(t, c.AddCredit(1))
		require.Equal(t, []uint64{5}, sequences(f.take(c, 1)))

		time.Sleep(10 * time.Second) //nolint:forbidigo // the clock is that of synctest
		f.queue.mu.Lock()
		f.queue.ttl = (5 * time.Second).Milliseconds()
		f.queue.mu.Unlock()
		rec, err := txn.AppendMessage(nil, time.Now().Add(-6*time.Second).UnixMilli(), nil, nil, nil)
		require.NoError(t, err)
		f.queue.publish(string(rec), string(timed(t, txn.Attributes{Subject: "none"})))
		require.NoError(t, c.AddCredit(1))
		require.Equal(t, []uint64{7}, sequences(f.take(c, 1)))

		f.queue.mu.Lock()
		f.queue.ttl = 0
		f.queue.mu.Unlock()
		f.queue.publish(string(timed(t, txn.Attributes{Subject: "none"})))
		require.NoError(t, c.AddCredit(10))
		require.Equal(t, []uint64{8}, sequences(f.take(c, 1)))
		got := f.take(c, 1) // within a minute
		require.Equal(t, []uint64{6}, sequences(got), "its queue no longer has a TTL")
	})
}

// Requeued messages are redelivered after the redelivery delay, which increases with each delivery. A nack can
// request a different delay.
func TestRedeliveryDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limits())
		f.queue.delay = time.Second
		f.queue.publish("1", "2", "3")
		c := f.attach(10)
		f.take(c, 3)
		begin := time.Now()
		again := func(want time.Duration, sequence uint64) {
			t.Helper()
			require.Equal(t, []uint64{sequence}, sequences(f.take(c, 1)))
			require.Equal(t, want, time.Since(begin))
		}
		f.confirm(c, nil, one(1), 1)
		again(time.Second, 1)
		f.confirm(c, nil, one(1), 2)
		short := 100 * time.Millisecond
		require.NoError(t, c.Settle(f.ctx, dispatch.Outcomes{Nacks: one(2), NackDelay: &short}))
		again(1100*time.Millisecond, 2)
		again(3*time.Second, 1)
		noDelay := time.Duration(0)
		require.NoError(t, c.Settle(f.ctx, dispatch.Outcomes{Nacks: one(3), NackDelay: &noDelay}))
		again(3*time.Second, 3)

		// A message that is acknowledged during its delay is not redelivered. Messages of a lost consumer are also
		// delayed.
		f.confirm(c, one(2), one(1), 3)
		f.registry.Settled(dispatch.Key{Queue: 1, Sub: 1}, one(1), nil)
		f.queue.mu.Lock()
		f.queue.acked[1] = true
		f.queue.mu.Unlock()
		other := f.attach(0)
		c.Close()
		require.NoError(t, other.AddCredit(10))
		synctest.Wait()
		require.Equal(t, []uint64{3}, sequences(f.take(other, 1)))
		require.Equal(t, 5*time.Second, time.Since(begin), "the delay after two deliveries")
		f.nothing(other)
	})
}

// InFlight returns only messages that are in flight at a consumer of the given queue.
func TestInFlight(t *testing.T) { synctest.Test(t, testInFlight) }

func testInFlight(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.publish("1", "2", "3")
	c := f.attach(2)
	f.take(c, 2)
	f.confirm(c, one(1), nil, 1)
	require.Equal(t, []uint64{2}, f.registry.InFlight(1, []uint64{1, 2, 3}))
	require.Empty(t, f.registry.InFlight(2, []uint64{1, 2, 3}))
	f.registry.Acknowledged(1, one(2))
	require.Empty(t, f.registry.InFlight(1, []uint64{1, 2, 3}))
}

// A message that a read returned before the call of Due is delivered only once, regardless of whether it is in
// flight or waits for a consumer.
func TestDueIsDeliveredOnce(t *testing.T) {
	for name, prioritized := range map[string]bool{"plain": false, "priorities": true} {
		simulated(t, name, func(t *testing.T) {
			f := newFixture(t, limits())
			f.queue.prioritized = prioritized
			for range 4 {
				f.queue.publish(string(timed(t, txn.Attributes{Subject: "s"})))
			}
			c := f.attach(2)
			require.Equal(t, []uint64{1, 2}, sequences(f.take(c, 2)))
			f.registry.Due(1, []uint64{1, 2, 3})
			require.NoError(t, c.AddCredit(10))
			require.Equal(t, []uint64{3, 4}, sequences(f.take(c, 2)))
			f.nothing(c)
		})
	}
}

// Due does not redeliver a message that a consumer has already settled. This applies while the outcome is pending or
// being committed, and during the redelivery delay.
func TestDueDuringSettlement(t *testing.T) {
	for name, c := range map[string]struct {
		outcome dispatch.Outcomes
		delay   time.Duration // redelivery delay
		again   []uint64
	}{
		"nack":              {outcome: dispatch.Outcomes{Nacks: one(1)}, again: []uint64{1}},
		"nack with a delay": {outcome: dispatch.Outcomes{Nacks: one(1)}, delay: time.Hour},
		"ack":               {outcome: dispatch.Outcomes{Acks: one(1)}},
		"reject":            {outcome: dispatch.Outcomes{Rejects: one(1)}},
	} {
		for _, prioritized := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, limits())
				f.ctx = t.Context() // a context without a timeout
				f.queue.prioritized, f.queue.delay = prioritized, c.delay
				f.queue.publish(string(timed(t, txn.Attributes{Subject: "s"})), string(timed(t, txn.Attributes{Subject: "s"})))
				consumer := f.attach(100)
				require.Equal(t, []uint64{1, 2}, sequences(f.take(consumer, 2)))
				hold := make(chan struct{})
				f.queue.mu.Lock()
				f.queue.hold = hold
				f.queue.mu.Unlock()
				require.NoError(t, consumer.Settle(f.ctx, dispatch.Outcomes{Nacks: one(2)})) // this outcome is being committed
				synctest.Wait()
				require.NoError(t, consumer.Settle(f.ctx, c.outcome)) // this outcome is pending
				f.registry.Due(1, []uint64{1, 2})
				synctest.Wait()
				f.nothing(consumer)
				f.queue.mu.Lock()
				f.queue.hold = nil
				f.queue.mu.Unlock()
				close(hold)
				synctest.Wait()
				f.registry.Due(1, []uint64{1, 2})
				want := c.again
				if c.delay == 0 {
					want = append(want, 2)
				}
				require.ElementsMatch(t, want, sequences(f.take(consumer, len(want))), "%s, priorities %v", name, prioritized)
				f.nothing(consumer)
			})
		}
	}
}
