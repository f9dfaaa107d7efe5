// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// A paused queue rejects publishes and forwards until it is resumed (INV-21). Dead letters are still moved to it, and a
// transaction that was prepared before can be committed.
func TestPausedQueueRejectsPublishes(t *testing.T) {
	d := newDriver(t)
	q, paused := d.queue("q", txn.Config{}, "s"), d.queue("paused", txn.Config{}, "s")
	d.publish(q, 1)
	rec, _ := q.TailRecord(1)
	var inner txn.Builder
	inner.Begin(nil, 0, nil)
	publish(&inner, paused.id, 1, 1)
	prepared, err := inner.Finish()
	require.NoError(t, err)
	d.do(func(b *txn.Builder) { b.Prepare("x", prepared) })

	d.do(func(b *txn.Builder) {
		b.Pause(paused.id, 0, txn.Pause{Publish: true, By: "ann", Reason: "maintenance"})
	})
	require.Equal(t, 1, d.s.PausedQueues())
	r := d.apply(nil, func(b *txn.Builder) { publish(b, paused.id, 1, 1) })
	require.Equal(t, txn.ErrQueuePaused, r.Code, "a paused queue accepted a publish")
	r = d.apply(nil, func(b *txn.Builder) {
		publish(b, q.id, 1, 1)
		b.Forward(q.id, paused.id, false, nil)
	})
	require.Equal(t, txn.ErrQueuePaused, r.Code, "a paused queue accepted a forward")
	require.Equal(t, 0, r.Op)
	r = d.apply(nil, func(b *txn.Builder) { b.Prepare("y", prepared) })
	require.Equal(t, txn.ErrQueuePaused, r.Code)
	d.do(func(b *txn.Builder) {
		b.BeginMove(q.id, 1, paused.id)
		b.Move(1, rec)
		b.EndMove()
	})
	d.do(func(b *txn.Builder) { b.CommitPrepared("x", txn.ByCoordinator, 0) })
	require.Equal(t, uint64(2), paused.Messages())

	d.do(func(b *txn.Builder) { b.Resume(paused.id, 0, true, true) })
	require.Zero(t, d.s.PausedQueues())
	d.publish(paused, 1)
	require.Empty(t, d.s.Check())
}

// Pauses of publishing and delivery accumulate and are resumed separately. The last pause determines the reason.
func TestPauseDirections(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{}, "s", "t")
	pause := func(sub uint32, p txn.Pause) { d.do(func(b *txn.Builder) { b.Pause(q.id, sub, p) }) }
	pause(0, txn.Pause{Publish: true, By: "ann", Reason: "first"})
	require.False(t, q.Sub(1).Paused())
	pause(0, txn.Pause{Deliver: true, By: "bob", Reason: "second"})
	require.Equal(t, txn.Pause{Publish: true, Deliver: true, By: "bob", Reason: "second"}, q.Pause())
	require.True(t, q.Sub(1).Paused())
	pause(2, txn.Pause{Deliver: true})
	d.do(func(b *txn.Builder) { b.Resume(q.id, 0, false, true) })
	require.Equal(t, txn.Pause{Publish: true, By: "bob", Reason: "second"}, q.Pause())
	require.False(t, q.Sub(1).Paused())
	require.True(t, q.Sub(2).Paused(), "a subscription that was paused itself stays paused")

	d.do(func(b *txn.Builder) { b.Resume(q.id, 0, true, true) })
	require.Equal(t, 1, d.s.PausedQueues())
	d.do(func(b *txn.Builder) { b.DeleteSubscription(q.id, 2) })
	require.Zero(t, d.s.PausedQueues())
	require.Empty(t, d.s.Check())
}
