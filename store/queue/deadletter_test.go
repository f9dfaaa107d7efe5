// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// A move repeated after a failover, or applied after an acknowledgement, does not move the message again (INV-14).
func TestMoveOnce(t *testing.T) {
	d := newDriver(t)
	q, target := d.queue("q", txn.Config{}, "s"), d.queue("dead", txn.Config{}, "s")
	d.publish(q, 4)
	rec, err := txn.AppendMessage(nil, 0, nil, nil, []byte("dead"))
	require.NoError(t, err)
	move := func(b *txn.Builder) {
		b.BeginMove(q.id, 1, target.id)
		b.Move(1, rec)
		b.Move(3, rec)
		b.EndMove()
	}
	d.do(func(b *txn.Builder) { b.Ack(q.id, 1, txn.Range{First: 1, Last: 1}) })
	require.Equal(t, []txn.OpResult{{FirstSequence: 1, Changed: 1}}, d.do(move).Ops)
	require.Equal(t, []txn.OpResult{{FirstSequence: 2}}, d.do(move).Ops)
	require.Equal(t, uint64(1), target.Messages(), "a message was moved twice")
	require.Equal(t, uint64(2), q.Messages())
	require.Equal(t, uint64(1), d.s.Counts().Moved)
	d.do(func(b *txn.Builder) {
		b.BeginMove(q.id, 1, txn.NoQueue)
		b.Move(2, nil)
		b.EndMove()
	})
	require.Equal(t, uint64(1), q.Messages())
	require.Equal(t, uint64(1), d.s.Counts().Dropped)
	require.Empty(t, d.s.Check())
}
