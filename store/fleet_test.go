// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

func joinFleet(epoch uint64) func(b *txn.Builder) {
	return func(b *txn.Builder) {
		b.Fleet(txn.FleetChange{Action: txn.FleetJoin, ID: uuid.Max, Pair: "pair-1", Epoch: epoch})
	}
}

func ownNew(name string, epoch uint64) func(b *txn.Builder) {
	return func(b *txn.Builder) { b.OwnQueue(name, epoch); b.CreateQueue(name, txn.Config{}, "a") }
}

// checkFleet verifies the membership and the epochs that TestFleet has created.
func checkFleet(t *testing.T, s *store.Store, epochs map[string]uint64, last uint64) {
	t.Helper()
	require.Equal(t, queue.FleetState{ID: uuid.Max, Pair: "pair-1", JoinEpoch: 5, MaxEpoch: last}, query.Fleet(s))
	got := map[string]uint64{}
	query.OwnedQueues(s, func(q query.OwnedQueue) { got[q.Name] = q.Epoch })
	require.Equal(t, epochs, got)
	for name, want := range epochs {
		epoch, ok := query.OwnershipEpoch(s, name)
		require.True(t, ok)
		require.Equal(t, want, epoch)
		info, err := query.QueueByName(s, name)
		require.NoError(t, err)
		require.Equal(t, want, info.Epoch)
		epoch, ok = query.OwnershipEpochOf(s, info.ID)
		require.True(t, ok)
		require.Equal(t, want, epoch)
	}
	_, ok := query.OwnershipEpoch(s, "missing")
	require.False(t, ok)
	_, ok = query.OwnershipEpochOf(s, 10_000)
	require.False(t, ok)
}

// Membership and epochs survive checkpoints, crashes, restarts, a rewrite of page.db, a snapshot and a backup, and are
// equal on both nodes (INV-27).
func TestFleet(t *testing.T) {
	mem := memfs.New()
	o := options(mem)
	o.PageSize = 2048
	n := openNode(t, o)
	n.commit(func(b *txn.Builder) { b.CreateQueue("old", txn.Config{}, "a") })
	epoch, ok := query.OwnershipEpoch(n.s, "old")
	require.True(t, ok)
	require.Zero(t, epoch, "not in a fleet")
	query.OwnedQueues(n.s, func(query.OwnedQueue) { require.Fail(t, "the pair is not a member") })
	require.Equal(t, txn.OK, n.commit(joinFleet(5)).Code)
	epochs, last := map[string]uint64{"old": 5}, uint64(5)
	for i := range 1200 {
		last++
		name := fmt.Sprint("q", i)
		require.Equal(t, txn.OK, n.commit(ownNew(name, last)).Code)
		epochs[name] = last
		switch i % 100 {
		case 10:
			_, err := n.s.Checkpoint(t.Context())
			require.NoError(t, err)
		case 30:
			require.NoError(t, n.s.Close())
			n = openNode(t, o)
			n.applyAll()
		case 40:
			size := 2048 * (1 + i%3)
			_, err := n.s.Maintenance().Rewrite(t.Context(), rewrite.Options{PageSize: size})
			require.NoError(t, err)
			o.PageSize = size
		case 50:
			last++
			require.Equal(t, txn.OK, n.commit(func(b *txn.Builder) { b.OwnQueue("q0", last) }).Code)
			epochs["q0"] = last
		case 60:
			require.Equal(t, txn.ErrNotOwned, n.commit(func(b *txn.Builder) { b.CreateQueue("x", txn.Config{}) }).Code)
			require.Equal(t, txn.ErrFleetChanged, n.commit(func(b *txn.Builder) { b.OwnQueue("q0", 6) }).Code)
		}
	}
	n.check()
	checkFleet(t, n.s, epochs, last)

	again := openNode(t, options(mem.CrashClone(crashRand(rand.New(rand.NewPCG(1, 1))))))
	again.applyAll()
	again.check()
	checkFleet(t, again.s, epochs, last)

	want, err := digestOf(t.Context(), n.s)
	require.NoError(t, err)
	for name, other := range map[string]*store.Store{
		"snapshot": snapshotOf(n), "backup": restoredFrom(n, mem), "crash": again.s,
	} {
		checkFleet(t, other, epochs, last)
		got, err := digestOf(t.Context(), other)
		require.NoError(t, err)
		require.Equal(t, want.Content, got.Content, name)
	}
}

func snapshotOf(n *node) *store.Store {
	n.t.Helper()
	to := openNode(n.t, options(memfs.New()))
	require.NoError(n.t, to.s.JoinPair(n.s.Identity().PairID))
	_, err := n.s.Checkpoint(n.t.Context())
	require.NoError(n.t, err)
	n.copyTo(to)
	to.check()
	return to.s
}

func restoredFrom(n *node, mem *memfs.FS) *store.Store {
	n.t.Helper()
	ctx := context.Background()
	set, err := backup.Run(ctx, n.s, backup.Options{FS: mem, Path: "/backups", Software: "test"})
	require.NoError(n.t, err)
	_, err = backup.Restore(ctx, set.Path, "/restored", backup.RestoreOptions{FS: mem, SegmentBytes: 256 << 10})
	require.NoError(n.t, err)
	o := options(mem)
	o.Dir = "/restored"
	to := openNode(n.t, o)
	to.applyAll()
	return to.s
}

// A join, a leave and the installation of a snapshot are signaled. Epochs of queues are not signaled.
func TestFleetIsWatched(t *testing.T) {
	n := openNode(t, options(memfs.New()))
	changed, cancel := query.WatchFleet(n.s)
	defer cancel()
	signaled := func() bool {
		select {
		case <-changed:
			return true
		default:
			return false
		}
	}
	n.commit(createQueue)
	require.False(t, signaled())
	n.commit(joinFleet(5))
	require.True(t, signaled())
	n.commit(joinFleet(6)) // rejected
	n.commit(ownNew("q2", 6))
	require.False(t, signaled())

	copied := openNode(t, options(memfs.New()))
	installed, cancel := query.WatchFleet(copied.s)
	defer cancel()
	_, err := n.s.Checkpoint(t.Context())
	require.NoError(t, err)
	n.copyTo(copied)
	require.Len(t, installed, 1)
	require.True(t, query.Fleet(copied.s).Member())

	n.commit(func(b *txn.Builder) { b.Fleet(txn.FleetChange{Action: txn.FleetLeave}) })
	require.True(t, signaled())
	require.False(t, query.Fleet(n.s).Member())
}
