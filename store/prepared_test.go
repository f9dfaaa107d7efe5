// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// Prepared transactions and outcomes survive a restart, a rewrite to another page size, and a snapshot. After each
// of these, the transactions can be committed.
func TestPreparedInRewriteAndSnapshot(t *testing.T) {
	mem := memfs.New()
	o := options(mem)
	n := openNode(t, o)
	large := bytes.Repeat([]byte("x"), 700<<10) // larger than the maximum size of a value in the tree
	n.commit(func(b *txn.Builder) { b.CreateQueue("in", txn.Config{}, "s") })
	n.commit(func(b *txn.Builder) { b.CreateQueue("out", txn.Config{}, "s") })
	n.commit(func(b *txn.Builder) {
		b.BeginPublish(1)
		for range 5 {
			b.Message(1, nil, []byte("in"))
		}
		b.EndPublish()
	})
	for i, xid := range []string{"a", "b", "c", "d", "e"} {
		inner := encode(t, nil, func(b *txn.Builder) {
			b.BeginPublish(2)
			b.Message(1, nil, large)
			b.EndPublish()
			b.Take(1, 1, txn.Range{First: uint64(i + 1), Last: uint64(i + 1)})
		})
		require.NoError(t, new(n.commit(func(b *txn.Builder) { b.Prepare(xid, inner) })).Err())
	}
	n.commit(func(b *txn.Builder) { b.CommitPrepared("a", txn.ByCoordinator, 0) })
	n.commit(func(b *txn.Builder) { b.RollbackPrepared("b", txn.ByOperator, 0) })
	left := 3
	check := func(s *store.Store) {
		t.Helper()
		list, total, _, err := query.PreparedList(s, 0, 100)
		require.NoError(t, err)
		require.Equal(t, left, total)
		require.Equal(t, []query.PreparedQueue{{Queue: "in", Acks: 1}, {Queue: "out", Publishes: 1}}, list[0].Queues)
		got, _, err := s.Read(t.Context(), store.ReadRequest{Queue: 1, Sub: 1, From: 1, MaxMessages: 10}, nil)
		require.NoError(t, err)
		require.Len(t, got, 1, "prepared messages are not delivered")
		require.Equal(t, uint64(2), got[0].Sequence)
	}
	decided := func(n *node, xid string) {
		t.Helper()
		left--
		require.NoError(t, new(n.commit(func(b *txn.Builder) { b.CommitPrepared(xid, txn.ByCoordinator, 0) })).Err())
		require.NoError(t, new(n.commit(func(b *txn.Builder) { b.CommitPrepared("a", txn.ByCoordinator, 0) })).Err())
		require.ErrorIs(t, new(n.commit(func(b *txn.Builder) { b.CommitPrepared("b", txn.ByCoordinator, 0) })).Err(),
			txn.ErrHeuristicRollback)
		q, err := query.QueueByName(n.s, "out")
		require.NoError(t, err)
		require.Equal(t, uint64(4-left), q.Messages)
	}
	check(n.s)
	require.NoError(t, n.s.Close())
	n = openNode(t, o)
	n.applyAll()
	check(n.s)
	decided(n, "c")
	for _, size := range []int{16384, 2048} {
		before, err := digestOf(t.Context(), n.s)
		require.NoError(t, err)
		_, err = n.s.Maintenance().Rewrite(t.Context(), rewrite.Options{PageSize: size, Reason: "test"})
		require.NoError(t, err)
		after, err := digestOf(t.Context(), n.s)
		require.NoError(t, err)
		require.Equal(t, before.Content, after.Content)
		check(n.s)
	}
	decided(n, "d")
	_, err := n.s.Checkpoint(t.Context()) // the content of the snapshot
	require.NoError(t, err)
	other := openNode(t, options(memfs.New()))
	n.copyTo(other)
	check(other.s)
	want, err := digestOf(t.Context(), n.s)
	require.NoError(t, err)
	got, err := digestOf(t.Context(), other.s)
	require.NoError(t, err)
	require.Equal(t, want.Content, got.Content)
	_, err = n.s.Checkpoint(t.Context())
	require.NoError(t, err)
	require.NoError(t, n.s.Close())
	crashed := openNode(t, options(mem.CrashClone(nil)))
	crashed.applyAll()
	check(crashed.s)
	decided(crashed, "e")
	crashed.check()
}
