// SPDX-License-Identifier: Apache-2.0

package replication_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// forced makes b, which has left in_sync, the active of a new term by a forced failover. a has acknowledged 40 messages
// that b lacks. forced returns b's last LSN.
func forced(a, b *node) (after uint64) {
	a.lead(1, 1, nil)
	b.follow(a)
	a.createQueue()
	a.sync(b)
	b.stop()
	a.configure(func(c *replication.PrimaryConfig) { c.RequireStandby = false })
	a.publish(a.queueID, 40, 50, 4)
	a.stop()
	after = b.store.End().LSN
	require.Less(a.w.t, after, a.store.End().LSN)
	b.lead(20, 2, nil)
	b.queueID = a.queueID
	return after
}

// followDiscarded makes the node the standby of an active that was forced with term 2. The forced failover
// discarded this node's records after the given LSN.
func (n *node) followDiscarded(active *node, after uint64) {
	f := replication.StartFollower(replication.FollowerOptions{
		Store: n.store, Dialer: n.w.dialer(), Address: active.address, Events: n.event, Tuning: n.tuning,
		DiscardedRange: replication.DiscardedRange{Term: 2, After: after},
	})
	n.mu.Lock()
	n.follower = f
	n.mu.Unlock()
}

// rejoin makes n the standby of the forced active, and waits until both are equal.
func (n *node) rejoin(active *node, after uint64) {
	n.followDiscarded(active, after)
	require.Eventually(n.w.t, func() bool { return n.store.Applied() == active.store.Applied() }, waitLimit,
		time.Millisecond)
	requireEqual(n, active)
}

// kept reads the only file of saved records. It returns the first and last LSN, and the number of message bodies.
func (n *node) kept() (first, last uint64, bodies int) {
	names, err := n.disk.ReadDir("/data")
	require.NoError(n.w.t, err)
	var file string
	for _, name := range names {
		if strings.HasPrefix(name, "cut-") {
			require.Empty(n.w.t, file, "only one")
			file = name
		}
	}
	if file == "" {
		return 0, 0, 0
	}
	info, err := wal.InspectFile(n.disk, "/data/"+file, func(i wal.Item) error {
		if i.Seal || i.Frame.Kind != wal.KindTxn {
			return nil
		}
		var r txn.Reader
		require.NoError(n.w.t, r.Reset(i.Frame.Payload))
		for range r.Ops() {
			op, err := r.Next()
			require.NoError(n.w.t, err)
			bodies += op.Count
		}
		return nil
	})
	require.NoError(n.w.t, err)
	require.NoError(n.w.t, info.Stop)
	return info.Prev.LSN + 1, info.Last.LSN, bodies
}

// A node that applied records discarded by a forced failover needs a snapshot. The tail of its log is saved before
// the snapshot replaces it.
func TestDiscardedTailIsSavedBeforeSnapshot(t *testing.T) {
	synctest.Test(t, testDiscardedTailIsSavedBeforeSnapshot)
}

func testDiscardedTailIsSavedBeforeSnapshot(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	after := forced(a, b)
	end := a.store.End().LSN
	b.publish(b.queueID, 5, 50, 1)
	a.rejoin(b, after)
	await[replication.SnapshotInstalled](a, nil)
	first, last, bodies := a.kept()
	require.Equal(t, after+1, first)
	require.Equal(t, end, last)
	require.Equal(t, 40, bodies)
}

// If a restarted node has not applied the discarded records, they are truncated and saved.
func TestDiscardedTailIsSavedByTruncation(t *testing.T) {
	synctest.Test(t, testDiscardedTailIsSavedByTruncation)
}

func testDiscardedTailIsSavedByTruncation(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	after := forced(a, b)
	end := a.store.End().LSN
	require.NoError(t, a.store.Sync())
	a.disk = a.disk.CrashClone(nil)
	_ = a.store.Close()
	a.open()
	a.rejoin(b, after)
	first, last, bodies := a.kept()
	require.Equal(t, after+1, first)
	require.Equal(t, end, last)
	require.Equal(t, 40, bodies)
}

// If the active's log no longer contains the divergence point, the forced failover in the cluster record defines it.
func TestDiscardedTailIsSavedWithTrimmedLog(t *testing.T) {
	synctest.Test(t, testDiscardedTailIsSavedWithTrimmedLog)
}

func testDiscardedTailIsSavedWithTrimmedLog(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b", smallLog)
	after := forced(a, b)
	end := a.store.End().LSN
	for b.store.FirstLSN() <= end {
		pause(time.Second) // the log is retained for the lost standby for some time
		b.publish(b.queueID, 200, 4000, 16)
		_, err := b.store.Checkpoint(t.Context())
		require.NoError(t, err)
	}
	a.rejoin(b, after)
	first, last, bodies := a.kept()
	require.Equal(t, after+1, first)
	require.Equal(t, end, last)
	require.Equal(t, 40, bodies)
}

// A standby that is only far behind has no records that the pair lacks, so nothing is saved.
func TestStandbyFarBehindSavesNothing(t *testing.T) {
	synctest.Test(t, testStandbyFarBehindSavesNothing)
}

func testStandbyFarBehindSavesNothing(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b", smallLog)
	b.lead(1, 1, nil)
	a.follow(b)
	b.createQueue()
	b.sync(a)
	a.stop()
	b.configure(func(c *replication.PrimaryConfig) { c.RequireStandby = false })
	end := a.store.End().LSN
	for b.store.FirstLSN() <= end+1 { // the log is retained for the lost standby for some time
		pause(time.Second)
		b.publish(b.queueID, 200, 4000, 16)
		_, err := b.store.Checkpoint(t.Context())
		require.NoError(t, err)
	}
	a.rejoin(b, end+1000)
	await[replication.SnapshotInstalled](a, nil)
	first, _, _ := a.kept()
	require.Zero(t, first)
}

// The commit LSN of a lost active remains in the status, so that the operator can estimate the loss.
func TestCommitLSNOfLostActive(t *testing.T) { synctest.Test(t, testCommitLSNOfLostActive) }

func testCommitLSNOfLostActive(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	a.lead(1, 1, nil)
	f := b.follow(a)
	a.createQueue()
	a.sync(b)
	a.publish(a.queueID, 10, 50, 4)
	var commit uint64
	require.Eventually(t, func() bool { commit = f.Status().ActiveCommitLSN; return commit == a.store.End().LSN },
		waitLimit, time.Millisecond)
	a.close()
	a.stop()
	await[replication.FollowerLost](b, nil)
	require.Equal(t, commit, f.Status().ActiveCommitLSN)
}
