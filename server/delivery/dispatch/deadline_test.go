// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
)

const ackTimeout = 10 * time.Second

func (f *fixture) ackTimeout(d time.Duration) {
	f.queue.mu.Lock()
	f.queue.ackTimeout = d
	f.queue.mu.Unlock()
	f.registry.Altered(1)
}

// extendTimeout extends the timeout of the fixture's context to three hours.
func (f *fixture) extendTimeout() {
	ctx, cancel := context.WithTimeout(f.t.Context(), 3*time.Hour)
	f.t.Cleanup(cancel)
	f.ctx = ctx
}

// withDeadline runs a subtest with a fixture and an ack_timeout of ackTimeout.
func withDeadline(t *testing.T, name string, test func(t *testing.T, f *fixture)) {
	t.Helper()
	simulated(t, name, func(t *testing.T) {
		f := newFixture(t, limits())
		f.extendTimeout()
		f.ackTimeout(ackTimeout)
		test(t, f)
	})
}

// next returns the next event, which must arrive within the given time.
func (f *fixture) next(c *dispatch.Consumer, within time.Duration) dispatch.Event {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.ctx, within)
	defer cancel()
	event, err := c.Next(ctx)
	require.NoError(f.t, err)
	return event
}

// A message that is not acknowledged in time is redelivered to another consumer, and its delivery is counted. The
// first consumer is notified. Its late ack is refused, but the other outcomes in the same request are applied
// (INV-22).
func TestAckDeadline(t *testing.T) {
	withDeadline(t, "expires", func(t *testing.T, f *fixture) {
		f.queue.publish("a", "b", "c")
		c := f.attach(10)
		require.Equal(t, ackTimeout, c.AckTimeout())
		f.take(c, 3)
		require.Empty(t, f.confirm(c, []dispatch.Range{{First: 2, Last: 2}}, nil, 1))
		pass(ackTimeout - 2*time.Second)
		f.nothing(c) // waits for a second
		require.Equal(t, []uint64{1, 3}, f.next(c, 2*time.Second).Expired)
	})
	withDeadline(t, "is released once", func(t *testing.T, f *fixture) {
		f.queue.publish("a", "b", "c")
		c := f.attach(10)
		f.take(c, 3)
		other := f.attach(10)
		began := time.Now()
		again := f.take(other, 3)
		require.LessOrEqual(t, time.Since(began), ackTimeout+time.Second)
		require.EqualValues(t, 1, again[0].DeliveryCount)
		require.EqualValues(t, 3, f.counters.AckExpired.Load())
		require.Equal(t, []uint64{1, 2, 3}, f.next(c, time.Second).Expired)

		f.queue.publish("d")
		require.EqualValues(t, 4, f.take(other, 1)[0].Sequence, "a silent consumer received a message")
		require.NoError(t, c.Settle(f.ctx, dispatch.Outcomes{Acks: []dispatch.Range{{First: 1, Last: 2}}, Confirm: 1}))
		event := f.next(c, time.Second)
		require.Equal(t, []uint64{1, 2}, event.Refused, "a late ack was accepted")
		for event.Confirmed == 0 {
			event = f.next(c, time.Second)
		}
		require.False(t, f.queue.isAcked(1))
		require.Empty(t, f.confirm(other, []dispatch.Range{{First: 1, Last: 4}}, nil, 1))
		require.Zero(t, f.queue.backlog())
		require.Zero(t, f.registry.OldestInFlight(dispatch.Key{Queue: 1, Sub: 1}))
	})
}

// Extend sets a new deadline. Without an ack_timeout, it has no effect. A consumer can have a shorter ack_timeout
// than its subscription. If the ack_timeout of a subscription is changed, the new deadline of messages in flight
// starts at the change.
func TestExtendAckDeadline(t *testing.T) {
	withDeadline(t, "extend", func(t *testing.T, f *fixture) {
		f.queue.publish("a", "b")
		c := f.attach(2)
		f.take(c, 2)
		for range 5 {
			pass(ackTimeout / 2)
			c.Extend([]dispatch.Range{{First: 1, Last: 1}}, 0)
		}
		require.Equal(t, []uint64{2}, f.next(c, time.Second).Expired)
		c.Extend([]dispatch.Range{{First: 1, Last: 100}}, time.Hour)
		pass(time.Hour - 2*time.Second)
		f.nothing(c) // waits for a second
		require.Equal(t, []uint64{1}, f.next(c, 2*time.Second).Expired)
	})
	withDeadline(t, "of a consumer", func(t *testing.T, f *fixture) {
		f.queue.publish("a", "b")
		c := f.attach(0)
		c.SetAckTimeout(time.Second)
		require.NoError(t, c.AddCredit(1))
		other := f.attach(1)
		f.take(c, 1)
		f.take(other, 1)
		require.Equal(t, time.Second, c.AckTimeout())
		require.Len(t, f.next(c, 2*time.Second).Expired, 1)
	})
	withDeadline(t, "changed", func(t *testing.T, f *fixture) {
		f.ackTimeout(0)
		f.queue.publish("a")
		c := f.attach(1)
		f.take(c, 1)
		c.Extend([]dispatch.Range{{First: 1, Last: 1}}, time.Second)
		pass(time.Hour)
		require.Equal(t, time.Hour, f.registry.OldestInFlight(dispatch.Key{Queue: 1, Sub: 1}).Round(time.Second))
		f.ackTimeout(time.Minute)
		require.Equal(t, time.Minute, *f.next(c, time.Second).AckTimeout)
		pass(time.Minute - 1)
		require.Equal(t, []uint64{1}, f.next(c, time.Second).Expired)
		f.ackTimeout(0)
		require.Zero(t, *f.next(c, time.Second).AckTimeout)
	})
}

// After the deadline, the unsent messages of a client that does not read are delivered to another consumer.
func TestUnsentMessagesExpire(t *testing.T) {
	withDeadline(t, "unsent", func(t *testing.T, f *fixture) {
		c := f.attach(10)
		f.queue.publish("a", "b")
		synctest.Wait() // the messages are assigned and never taken
		other := f.attach(10)
		pass(ackTimeout)
		again := f.take(other, 2)
		require.Zero(t, again[0].DeliveryCount)
		credit, unacknowledged := c.Load()
		require.EqualValues(t, 10, credit)
		require.Zero(t, unacknowledged)
		other.Close()
		f.queue.publish("c")
		synctest.Wait()
		_, unacknowledged = c.Load()
		require.Zero(t, unacknowledged)
		require.Len(t, f.take(c, 3), 3, "the client reads again")
	})
	withDeadline(t, "blocked", func(t *testing.T, f *fixture) {
		c := f.attach(10)
		synctest.Wait()
		f.queue.publish("a", "b")
		synctest.Wait()
		f.registry.SetPaused(true)
		pass(2 * ackTimeout)
		_, unacknowledged := c.Load()
		require.EqualValues(t, 2, unacknowledged, "messages do not expire while deliveries are paused")
		f.registry.SetPaused(false)
		pass(2 * ackTimeout)
		_, unacknowledged = c.Load()
		require.Zero(t, unacknowledged)
		require.Len(t, f.take(c, 2), 2)
	})
}

// After the deadline, the groups of a consumer move to other consumers, and the next consumer of an exclusive
// queue becomes active. A message at the delivery limit is dead-lettered.
func TestAckDeadlineOrder(t *testing.T) {
	withDeadline(t, "groups", func(t *testing.T, f *fixture) {
		f.grouped("g", "g", "h")
		c := f.attach(1)
		f.take(c, 1)
		other := f.attach(10)
		require.EqualValues(t, 3, f.take(other, 1)[0].Sequence)
		require.Empty(t, f.confirm(other, []dispatch.Range{{First: 3, Last: 3}}, nil, 1))
		require.EqualValues(t, 1, f.take(other, 1)[0].Sequence)
		next := f.confirm(other, []dispatch.Range{{First: 1, Last: 1}}, nil, 2)
		if len(next) == 0 {
			next = f.take(other, 1)
		}
		require.EqualValues(t, 2, next[0].Sequence)
	})
	withDeadline(t, "exclusive", func(t *testing.T, f *fixture) {
		f.queue.exclusive = true
		f.queue.publish("a", "b", "c", "d")
		c := f.attach(2)
		f.take(c, 2)
		pass(ackTimeout / 2)
		other := f.attach(10)
		pass(ackTimeout / 2)
		got := f.take(other, 4)
		require.EqualValues(t, 1, got[0].Sequence)
		require.EqualValues(t, 1, got[0].DeliveryCount)
		require.NoError(t, c.AddCredit(10))
		f.queue.publish("e")
		require.EqualValues(t, 5, f.take(other, 1)[0].Sequence, "two consumers of an exclusive queue are active")
	})
	withDeadline(t, "limit", func(t *testing.T, f *fixture) {
		f.queue.most = 2
		f.queue.publish("a")
		c := f.attach(2)
		for range 2 {
			f.take(c, 1)
			pass(ackTimeout)
			require.Len(t, f.next(c, time.Second).Expired, 1)
			require.NoError(t, c.AddCredit(0))
		}
		synctest.Wait()
		require.Len(t, f.queue.moved(), 1)
	})
}

// A consumer is stuck if it has had a message in flight for the given time and has settled none in that time.
func TestStuckConsumers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limits())
		f.extendTimeout()
		c, idle := f.attach(2), f.attach(0)
		pass(time.Hour)
		f.queue.publish("a", "b")
		f.take(c, 2)
		require.Empty(t, f.registry.Stuck(time.Minute))
		pass(time.Minute)
		require.Len(t, f.registry.Stuck(time.Minute), 1)
		require.Empty(t, f.confirm(c, []dispatch.Range{{First: 1, Last: 1}}, nil, 1))
		pass(time.Minute - 1)
		require.Empty(t, f.registry.Stuck(time.Minute))
		pass(time.Minute)
		stuck := f.registry.Stuck(time.Minute)
		require.Len(t, stuck, 1)
		require.Equal(t, 1, stuck[0].InFlight)
		idle.Close()
	})
}

// pass waits for a duration in simulated time.
func pass(d time.Duration) { <-time.After(d) }
