// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/store/txn"
)

func (q *memoryQueue) MaxDeliveries(dispatch.Key) uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.most
}

func (q *memoryQueue) Filters() uint64 { return q.filters.Load() }

func (q *memoryQueue) Filter(dispatch.Key) (func([]byte) bool, error) { return q.matches, q.noFilter }

func (q *memoryQueue) Exhausted(_ dispatch.Key, sequences []uint64) (dst []uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range sequences {
		if q.most > 0 && uint64(q.count[s]) >= q.most {
			dst = append(dst, s)
		}
	}
	return dst
}

func (q *memoryQueue) Move(ctx context.Context, _ dispatch.Key, dead []dispatch.Dead) (waiting []uint64, err error) {
	if err := q.held(ctx); err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.moveFails != nil && !errors.Is(q.moveFails, txn.ErrQueueFull) {
		return nil, q.moveFails
	}
	for _, m := range dead {
		switch {
		case q.moveFails != nil || q.deadRoom != nil && *q.deadRoom == 0:
			waiting = append(waiting, m.Sequence)
		case !q.acked[m.Sequence]:
			q.acked[m.Sequence] = true
			q.dead = append(q.dead, m)
			if q.deadRoom != nil {
				*q.deadRoom--
			}
		}
	}
	if len(waiting) > 0 {
		return waiting, &dispatch.FullError{Queue: "source", DeadLetter: "source.dead"}
	}
	return nil, nil
}

func (q *memoryQueue) setMove(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.moveFails = err
}

func (q *memoryQueue) moved() []dispatch.Dead {
	q.mu.Lock()
	defer q.mu.Unlock()
	return append([]dispatch.Dead(nil), q.dead...)
}

// settle settles messages and waits for the confirmation. It requires that no message arrives before the
// confirmation.
func (f *fixture) settle(c *dispatch.Consumer, a dispatch.Outcomes) {
	f.t.Helper()
	require.NoError(f.t, c.Settle(f.ctx, a))
	for {
		event, err := c.Next(f.ctx)
		require.NoError(f.t, err)
		require.Empty(f.t, event.Messages)
		if event.Confirmed >= a.Confirm {
			return
		}
	}
}

// A message is delivered up to the delivery limit and then dead-lettered, regardless of whether it is nacked or
// requeued from a lost consumer. Other messages are not affected.
func TestMaxDeliveries(t *testing.T) { synctest.Test(t, testMaxDeliveries) }

func testMaxDeliveries(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.most = 3
	f.queue.publish("poison", "good")
	for n := range uint32(3) {
		c := f.attach(1)
		got := f.take(c, 1)
		require.Equal(t, "poison", string(got[0].Record))
		require.Equal(t, n, got[0].DeliveryCount)
		if n%2 == 0 {
			f.confirm(c, nil, one(1), 1)
		}
		c.Close()
	}
	c := f.attach(10)
	require.Equal(t, "good", string(f.take(c, 1)[0].Record))
	require.Eventually(t, func() bool { return len(f.queue.moved()) == 1 }, 10*time.Second, time.Millisecond)
	require.Equal(t, []dispatch.Dead{{
		Sequence: 1, Reason: txn.DeadMaxDeliveries, Deliveries: 3, Record: []byte("poison"),
	}}, f.queue.moved())
	f.nothing(c)
}

// A rejected message is moved immediately. The reject is confirmed when the message is moved. Rejects of messages
// in flight at another consumer are ignored.
func TestReject(t *testing.T) { synctest.Test(t, testReject) }

func testReject(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.publish("a", "b", "c")
	first, second := f.attach(2), f.attach(1)
	require.Len(t, f.take(second, 1), 1)
	require.Len(t, f.take(first, 2), 2)
	f.settle(first, dispatch.Outcomes{Rejects: span(1, 3), Confirm: 1})
	moved := f.queue.moved()
	require.Len(t, moved, 2)
	for _, m := range moved {
		require.Equal(t, txn.DeadRejected, m.Reason)
		require.Equal(t, uint32(1), m.Deliveries, "the delivery that was rejected counts")
	}
	require.Equal(t, 1, f.queue.backlog())
	require.ErrorIs(t, first.Settle(f.ctx, dispatch.Outcomes{Rejects: one(4)}), dispatch.ErrNotDelivered)
}

// While the dead-letter queue is full, a rejected message has no consumer and its reject is not confirmed. Other
// acknowledgements are accepted and confirmed. The message is moved when there is space.
func TestDeadLetterQueueFull(t *testing.T) { synctest.Test(t, testDeadLetterQueueFull) }

func testDeadLetterQueueFull(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.setMove(txn.ErrQueueFull)
	f.queue.publish("a", "b", "c")
	c, other := f.attach(2), f.attach(1)
	others, mine := f.take(other, 1)[0].Sequence, f.take(c, 2)
	require.NoError(t, c.Settle(f.ctx, dispatch.Outcomes{Rejects: one(mine[0].Sequence), Confirm: 1}))
	f.nothing(c)
	f.settle(other, dispatch.Outcomes{Acks: one(others), Confirm: 7})
	require.NoError(t, c.Settle(f.ctx, dispatch.Outcomes{Acks: one(mine[1].Sequence)}))
	require.Eventually(t, func() bool { return f.queue.isAcked(mine[1].Sequence) }, 10*time.Second, time.Millisecond)
	f.nothing(c)
	f.queue.setMove(nil)
	event, err := c.Next(f.ctx)
	require.NoError(t, err)
	require.Equal(t, dispatch.Event{Confirmed: 1}, event)
	require.Len(t, f.queue.moved(), 1)
}

// If a move fails for a reason other than a full queue, the consumers end and the messages are redelivered.
func TestMoveFails(t *testing.T) { synctest.Test(t, testMoveFails) }

func testMoveFails(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.setMove(errNoMove)
	f.queue.publish("a")
	c := f.attach(1)
	f.take(c, 1)
	require.NoError(t, c.Settle(f.ctx, dispatch.Outcomes{Rejects: one(1), Confirm: 1}))
	_, err := c.Next(f.ctx)
	require.ErrorIs(t, err, errNoMove)
	require.Len(t, f.take(f.attach(1), 1), 1)
}

var errNoMove = errors.New("the node is no longer active")
