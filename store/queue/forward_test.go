// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// A publish also adds its messages to the targets of the queue; with Move, only to the target. The client receives one
// result per operation of its request.
func TestForward(t *testing.T) {
	d := newDriver(t)
	q, copies, moved := d.queue("q", txn.Config{}, "s"), d.queue("copies", txn.Config{}, "s"), d.queue("moved",
		txn.Config{}, "s")
	d.do(func(b *txn.Builder) {
		b.SetForwards(q.id, []txn.Forward{{Target: copies.id}, {Target: moved.id, Move: true, Filter: "size > 3"}})
	})
	r := d.do(func(b *txn.Builder) {
		publish(b, q.id, 4, 1)
		b.Forward(q.id, copies.id, false, nil)
		b.Forward(q.id, moved.id, true, []int{1, 3})
		publish(b, q.id, 1, 1)
	})
	require.Equal(t, []txn.OpResult{{FirstSequence: 1, Changed: 4}, {FirstSequence: 5, Changed: 1}}, r.Ops)
	require.Equal(t, uint64(3), q.Messages())
	require.True(t, q.Dead(2))
	require.True(t, q.Dead(4))
	require.Equal(t, uint64(4), copies.Messages())
	require.Equal(t, uint64(2), moved.Messages())
	want, _ := q.TailRecord(1)
	got, ok := copies.TailRecord(1)
	require.True(t, ok)
	require.Equal(t, want, got)
	require.Empty(t, d.s.Check())
}

// Messages that a forward drops from its target are counted with the transaction of the forward. If that transaction is
// not counted, they are not counted with the next one.
func TestForwardCountsOverflow(t *testing.T) {
	d := newDriver(t)
	config := txn.Config{MaxMessages: 4, Overflow: txn.OverflowDropHead}
	q, target := d.queue("q", txn.Config{}, "s"), d.queue("target", config, "s")
	publishAndForward := func() {
		d.do(func(b *txn.Builder) {
			publish(b, q.id, 3, 1)
			b.Forward(q.id, target.id, false, nil)
		})
	}
	for _, dropped := range []uint64{0, 2, 5} {
		publishAndForward()
		require.Equal(t, dropped, d.s.Counts().Overflowed)
	}
	d.s.CountAfter(d.s.Applied() + 1)
	publishAndForward()
	d.publish(q, 1)
	require.Equal(t, uint64(5), d.s.Counts().Overflowed)
}

// A forward to a queue that was deleted after the active encoded the record has no effect. Messages to move remain in
// the original queue.
func TestForwardToMissingQueue(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{}, "s")
	d.do(func(b *txn.Builder) {
		publish(b, q.id, 2, 1)
		b.Forward(q.id, 77, true, nil)
	})
	require.Equal(t, uint64(2), q.Messages())
}

// If a forward target is full, the whole transaction is rejected with the operation number of the publish.
func TestForwardIsAtomic(t *testing.T) {
	d := newDriver(t)
	q, full := d.queue("q", txn.Config{}, "s"), d.queue("full", txn.Config{MaxMessages: 2}, "s")
	r := d.apply(nil, func(b *txn.Builder) {
		publish(b, q.id, 2, 1)
		b.Forward(q.id, full.id, false, nil)
		publish(b, q.id, 1, 1)
		b.Forward(q.id, full.id, false, nil)
	})
	require.Equal(t, txn.ErrQueueFull, r.Code)
	require.Equal(t, 1, r.Op, "the client's second operation")
	require.Zero(t, q.Messages())
	require.Zero(t, full.Messages())
	for name, fill := range map[string]func(b *txn.Builder){
		"no preceding publish": func(b *txn.Builder) { b.Forward(q.id, full.id, false, nil) },
		"another queue's publish": func(b *txn.Builder) {
			publish(b, full.id, 1, 1)
			b.Forward(q.id, full.id, false, nil)
		},
		"another operation between": func(b *txn.Builder) {
			publish(b, q.id, 1, 1)
			b.PutMeta("k", nil)
			b.Forward(q.id, full.id, false, nil)
		},
		"a message beyond the publish": func(b *txn.Builder) {
			publish(b, q.id, 1, 1)
			b.Forward(q.id, full.id, false, []int{1})
		},
		"itself": func(b *txn.Builder) {
			publish(b, q.id, 1, 1)
			b.Forward(q.id, q.id, false, nil)
		},
	} {
		require.Equal(t, txn.ErrMalformed, d.apply(nil, fill).Code, name)
	}
	require.Empty(t, d.s.Check())
}

// Chains, cycles and missing targets are rejected, and a forwarding target cannot be deleted.
func TestForwardRules(t *testing.T) {
	d := newDriver(t)
	a, b, c := d.queue("a", txn.Config{}, "s"), d.queue("b", txn.Config{}, "s"), d.queue("c", txn.Config{}, "s")
	set := func(q *Queue, targets ...uint64) txn.Code {
		return d.apply(nil, func(b *txn.Builder) {
			var rules []txn.Forward
			for _, id := range targets {
				rules = append(rules, txn.Forward{Target: id})
			}
			b.SetForwards(q.id, rules)
		}).Code
	}
	require.Equal(t, txn.ErrForwardChain, set(a, a.id))
	require.Equal(t, txn.ErrQueueNotFound, set(a, 77))
	require.Equal(t, txn.ErrForwardTwice, set(a, b.id, b.id))
	require.Empty(t, a.Forwards())
	require.Equal(t, txn.OK, set(a, b.id))
	require.Equal(t, txn.ErrForwardChain, set(b, c.id), "b is forwarded to")
	require.Equal(t, txn.ErrForwardChain, set(c, a.id), "a forwards")
	remove := func(q *Queue) txn.Code {
		return d.apply(nil, func(b *txn.Builder) { b.DeleteQueue(q.id, false) }).Code
	}
	require.Equal(t, txn.ErrQueueInUse, remove(b))
	require.Equal(t, txn.OK, set(a, c.id))
	require.Equal(t, txn.OK, remove(b))
	require.Equal(t, txn.OK, remove(a), "with its rules")
	require.Equal(t, txn.OK, remove(c))
	require.Empty(t, d.s.Check())
}

// On commit, the publishes of a prepared transaction are forwarded by the rules at prepare time.
func TestForwardPrepared(t *testing.T) {
	d := newDriver(t)
	q, copies := d.queue("q", txn.Config{}, "s"), d.queue("copies", txn.Config{}, "s")
	var inner txn.Builder
	inner.Begin(nil, 0, nil)
	publish(&inner, q.id, 3, 1)
	inner.Forward(q.id, copies.id, true, []int{1})
	payload, err := inner.Finish()
	require.NoError(t, err)
	d.do(func(b *txn.Builder) { b.Prepare("x", payload) })
	require.Zero(t, copies.Messages())
	d.do(func(b *txn.Builder) { b.CommitPrepared("x", txn.ByCoordinator, 0) })
	require.Equal(t, uint64(2), q.Messages())
	require.Equal(t, uint64(1), copies.Messages())
	require.Empty(t, d.s.Check())
}
