// SPDX-License-Identifier: Apache-2.0

package backup_test

import (
	"context"
	"io"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// startLineage makes a node the primary of a new lineage.
func (n *node) startLineage() uuid.UUID {
	n.t.Helper()
	id := uuid.New()
	n.commit(func(b *txn.Builder) { b.Site(txn.SiteChange{Action: txn.SiteStart, Lineage: id}) })
	return id
}

// checkReplica verifies that a directory contains a replica of n at the end of its log.
func checkReplica(n *node, dir string) {
	n.t.Helper()
	s := restored(n.t, n.fs, dir)
	require.Equal(n.t, n.s.End().LSN+1, s.End().LSN)
	st, primary := s.Site(), n.s.Site()
	require.Equal(n.t, queue.SiteReplica, st.Role)
	require.Equal(n.t, primary.Lineage, st.Lineage)
	require.Equal(n.t, primary.Epoch, st.Epoch)
	require.Equal(n.t, n.s.End(), st.Upstream)
	require.Equal(n.t, n.s.End().LSN, st.Logical)
	require.NotEqual(n.t, n.s.Identity().StoreID, s.Identity().StoreID)
}

// Only a backup with a lineage, of a primary or a replica, can be restored as a replica.
func TestRestoreReplica(t *testing.T) {
	ctx := context.Background()
	n := openNode(t, memfs.New(), "/data", 2048)
	n.steps(20)
	o := backup.RestoreOptions{FS: n.fs, SegmentBytes: 64 << 10, Replica: true}
	before := n.backup("/before")
	_, err := backup.Restore(ctx, before.Path, "/restored", o)
	require.ErrorIs(t, err, backup.ErrNoSites)
	require.NoError(t, datadir.CheckRestore(n.fs, "/restored"))

	n.startLineage()
	n.steps(20)
	set := n.backup("/backups")
	with := o
	with.ArchiveDir = "/archive"
	_, err = backup.Restore(ctx, set.Path, "/restored", with)
	require.ErrorIs(t, err, backup.ErrTarget)
	res, err := backup.Restore(ctx, set.Path, "/restored", o)
	require.NoError(t, err)
	require.Equal(t, n.s.End(), res.End)
	checkReplica(n, "/restored")

	// A restore of a backup of a replica does not change the site state again.
	replica := *n
	replica.dir, replica.o.Dir = "/other", "/other"
	_, err = backup.Restore(ctx, set.Path, "/other", o)
	require.NoError(t, err)
	replica.open()
	defer func() { require.NoError(t, replica.s.Close()) }()
	require.NoError(t, replica.s.Apply(replica.s.End().LSN, nil))
	again := replica.backup("/again")
	_, err = backup.Restore(ctx, again.Path, "/third", o)
	require.NoError(t, err)
	third := restored(t, n.fs, "/third")
	require.Equal(t, replica.s.End(), third.End())
	require.Equal(t, replica.s.Site(), third.Site())
}

// Receive restores a complete snapshot as a replica. A missing or corrupt piece is an error and leaves no files.
func TestReceiveReplica(t *testing.T) {
	ctx := context.Background()
	n := openNode(t, memfs.New(), "/data", 2048)
	n.steps(50)
	lineage := n.startLineage()
	n.steps(10)
	_, err := n.s.Checkpoint(ctx)
	require.NoError(t, err)
	snap, err := n.s.OpenSnapshot()
	require.NoError(t, err)
	defer snap.Close()
	// options returns the options for the snapshot. change is called with each piece.
	options := func(change func(i int, data []byte) (kept bool)) backup.ReceiveOptions {
		offset, i := uint64(0), 0
		return backup.ReceiveOptions{
			FS: n.fs, Name: "snapshot", Header: snap.Header, Lineage: lineage, SegmentBytes: 64 << 10,
			Next: func() (uint64, []byte, error) {
				for {
					at, data, err := snap.ReadNext(offset, 4096, nil)
					if err != nil {
						return 0, nil, err
					}
					offset = at + uint64(len(data))
					i, data = i+1, slices.Clone(data) // change must not modify the snapshot's buffer
					if change == nil || change(i, data) {
						return at, data, nil
					}
				}
			},
		}
	}
	pieces := 0
	_, err = backup.Receive(ctx, "/count", options(func(int, []byte) bool { pieces++; return true }))
	require.NoError(t, err)
	require.Greater(t, pieces, 3)
	for i := 1; i <= pieces; i++ {
		_, err := backup.Receive(ctx, "/replica", options(func(at int, _ []byte) bool { return at != i }))
		require.Error(t, err, "piece %d of %d is missing", i, pieces)
		require.NoError(t, datadir.CheckRestore(n.fs, "/replica"))
		_, err = backup.Receive(ctx, "/replica", options(func(at int, data []byte) bool {
			if at == i {
				data[len(data)/2] ^= 1
			}
			return true
		}))
		require.Error(t, err, "piece %d of %d is corrupt", i, pieces)
		require.NoError(t, datadir.CheckRestore(n.fs, "/replica"))
	}
	o := options(nil)
	o.Next = func() (uint64, []byte, error) { return 0, nil, io.EOF }
	_, err = backup.Receive(ctx, "/replica", o)
	require.ErrorIs(t, err, backup.ErrCorrupt)
	o = options(nil)
	o.Lineage = uuid.New()
	_, err = backup.Receive(ctx, "/replica", o)
	require.ErrorIs(t, err, backup.ErrCorrupt)

	res, err := backup.Receive(ctx, "/replica", options(nil))
	require.NoError(t, err)
	require.Positive(t, res.Messages)
	checkReplica(n, "/replica")
	_, err = backup.Receive(ctx, "/replica", options(nil))
	require.ErrorIs(t, err, datadir.ErrNotEmpty)
}

// A detached copy of a pair of a fleet is not a member: the original pair owns the queues.
func TestReceiveDetachedMember(t *testing.T) {
	ctx := context.Background()
	n := openNode(t, memfs.New(), "/data", 2048)
	lineage := n.startLineage()
	n.commit(func(b *txn.Builder) {
		b.Fleet(txn.FleetChange{Action: txn.FleetJoin, ID: uuid.New(), Pair: "pair-1", Epoch: 5})
	})
	n.commit(func(b *txn.Builder) { b.OwnQueue("owned", 7); b.CreateQueue("owned", txn.Config{}) })
	_, err := n.s.Checkpoint(ctx)
	require.NoError(t, err)
	for name, detached := range map[string]uuid.UUID{"/detached": uuid.New(), "/replica": uuid.Nil} {
		snap, err := n.s.OpenSnapshot()
		require.NoError(t, err)
		offset := uint64(0)
		_, err = backup.Receive(ctx, name, backup.ReceiveOptions{
			FS: n.fs, Name: "snapshot", Header: snap.Header, Lineage: lineage, SegmentBytes: 64 << 10, Detached: detached,
			Next: func() (uint64, []byte, error) {
				at, data, err := snap.ReadNext(offset, 4096, nil)
				offset = at + uint64(len(data))
				return at, data, err
			},
		})
		require.NoError(t, err)
		snap.Close()
		s := restored(t, n.fs, name)
		if detached == uuid.Nil {
			require.Equal(t, query.Fleet(n.s), query.Fleet(s), name)
			continue
		}
		require.Equal(t, queue.FleetState{MaxEpoch: 7}, query.Fleet(s), name)
		epoch, ok := query.OwnershipEpoch(s, "owned")
		require.True(t, ok)
		require.Zero(t, epoch)
	}
}
