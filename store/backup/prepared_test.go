// SPDX-License-Identifier: Apache-2.0

package backup_test

import (
	"bytes"
	"testing"

	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
	"github.com/stretchr/testify/require"
)

// A restored store has the prepared transactions and outcomes of the backup.
func TestPreparedIsRestored(t *testing.T) {
	mem := memfs.New()
	n := openNode(t, mem, "/data", 2048)
	n.steps(20)
	for _, xid := range []string{"a", "b"} {
		var inner txn.Builder
		inner.Begin(nil, 0, nil)
		inner.BeginPublish(1)
		inner.Message(0, nil, bytes.Repeat([]byte(xid), 600<<10))
		inner.EndPublish()
		payload, err := inner.Finish()
		require.NoError(t, err)
		n.commit(func(b *txn.Builder) { b.Prepare(xid, payload) })
	}
	n.commit(func(b *txn.Builder) { b.RollbackPrepared("b", txn.ByCoordinator, 0) })
	lsn := n.s.End().LSN
	set := n.backup("/backups")
	n.commit(func(b *txn.Builder) { b.CommitPrepared("a", txn.ByCoordinator, 0) })
	_, err := backup.Restore(t.Context(), set.Path, "/restored", backup.RestoreOptions{FS: mem, SegmentBytes: 64 << 10})
	require.NoError(t, err)
	s := restored(t, mem, "/restored")
	require.Equal(t, n.replayed(lsn).Content, digest(t, s).Content)
	list, _, _, err := query.PreparedList(s, 0, 10)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "a", list[0].XID)
	require.Equal(t, []query.PreparedQueue{{Queue: "q", Publishes: 1}}, list[0].Queues)
	before, err := query.QueueByName(s, "q")
	require.NoError(t, err)
	require.NoError(t, s.Append(n.raw[lsn+1], n.ends[lsn+1])) // the decision
	require.NoError(t, s.Sync())
	require.NoError(t, s.Apply(lsn+1, func(_ uint64, r *txn.Result) { require.NoError(t, r.Err()) }))
	after, err := query.QueueByName(s, "q")
	require.NoError(t, err)
	require.Equal(t, before.Messages+1, after.Messages)
}
