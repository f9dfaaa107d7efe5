// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// A temporary queue is deleted with its messages if its grace period is unchanged. A retried or outdated proposal has
// no effect (INV-18).
func TestDeleteTemporary(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{TemporaryGrace: 1000}, "s")
	other := d.queue("other", txn.Config{}, "s")
	d.publish(q, 3)
	require.Equal(t, []*Queue{q}, d.s.Temporary())

	d.do(func(b *txn.Builder) { b.AlterQueue(q.id, txn.Config{TemporaryGrace: 5000}, txn.FieldTemporaryGrace) })
	remove := func(b *txn.Builder) { b.DeleteTemporary(q.id, 1000) }
	require.Zero(t, d.do(remove).Ops[0].Changed, "a queue that was altered was deleted")
	require.NotNil(t, d.s.Queue(q.id), "a queue that was altered was deleted")
	d.do(func(b *txn.Builder) { b.AlterQueue(q.id, txn.Config{}, txn.FieldTemporaryGrace) })
	require.Empty(t, d.s.Temporary())
	require.Zero(t, d.do(remove).Ops[0].Changed)
	require.NotNil(t, d.s.Queue(q.id), "a queue that is no longer temporary was deleted")

	d.do(func(b *txn.Builder) { b.AlterQueue(q.id, txn.Config{TemporaryGrace: 1000}, txn.FieldTemporaryGrace) })
	d.do(func(b *txn.Builder) { b.AlterQueue(other.id, txn.Config{DeadLetter: q.id}, txn.FieldDeadLetter) })
	require.Equal(t, txn.ErrQueueInUse, d.apply(nil, remove).Code)
	d.do(func(b *txn.Builder) { b.AlterQueue(other.id, txn.Config{}, txn.FieldDeadLetter) })
	require.Equal(t, uint64(3), d.do(remove).Ops[0].Changed)
	require.Nil(t, d.s.Queue(q.id))
	require.Equal(t, txn.ErrQueueNotFound, d.apply(nil, remove).Code)
	require.Empty(t, d.s.Temporary())
	require.Empty(t, d.s.Check())
}
