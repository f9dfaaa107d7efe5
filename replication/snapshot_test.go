// SPDX-License-Identifier: Apache-2.0

package replication_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/replication"
)

// diverge makes b the active of a new term with a's acks required, while a has applied what b does not have.
func diverge(a, b *node) {
	a.lead(1, 1, nil)
	b.follow(a)
	a.createQueue()
	a.sync(b)
	requireEqual(a, b)
	b.stop()
	a.configure(func(c *replication.PrimaryConfig) { c.RequireStandby = false })
	a.publish(a.queueID, 30, 50, 4)
	a.stop()
	a.forget()
	b.forget()
	b.lead(20, 2, a)
}

// dropLog publishes until the log no longer has its first record, so that a new standby needs a snapshot.
func (n *node) dropLog() {
	n.w.t.Helper()
	for n.store.FirstLSN() < 2 {
		n.publish(n.queueID, 500, 4000, 16)
		_, err := n.store.Checkpoint(n.w.t.Context())
		require.NoError(n.w.t, err)
	}
}

// lastOfStandby returns the last event that tells whether a standby is there.
func lastOfStandby(n *node) (last replication.Event) {
	for _, e := range n.seen() {
		switch e.(type) {
		case replication.StandbyConnected, replication.StandbyLost:
			last = e
		}
	}
	return last
}

// TestRequiredStandbyThatNeedsASnapshotIsLost: it cannot acknowledge until it has left in_sync, so nothing may wait for
// it.
func TestRequiredStandbyThatNeedsASnapshotIsLost(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	diverge(a, b)
	// It goes no further than to hear that it needs one.
	s := w.handshake(a, b, func(*replication.StandbyMessage) {})
	m, err := s.Recv()
	require.NoError(t, err)
	require.True(t, m.Welcome.SnapshotRequired)
	await[replication.StandbyConnected](b, nil)
	await(b, lostStandby(replication.LostRejected))
	require.IsType(t, replication.StandbyLost{}, lastOfStandby(b), "the active would wait for its acks for ever")
}

// TestStandbyLostDuringSnapshot: a transfer that breaks off is told like any other connection.
func TestStandbyLostDuringSnapshot(t *testing.T) {
	w := newWorld(t)
	small := func(n *node) {
		n.options.LogKeepBytes, n.options.SegmentBytes = 1, 64<<10
		n.tuning.SnapshotChunkBytes = 2 << 10
	}
	a, b := w.node("a", small), w.node("b", small)
	a.lead(1, 1, nil)
	a.createQueue()
	a.dropLog()
	b.followVia(&breakingDialer{Dialer: w.dialer(), chunks: 1}, a.address)
	await(a, func(e replication.StandbyConnected) bool { return e.Snapshot })
	b.stop()
	require.Eventually(t, func() bool {
		_, is := lastOfStandby(a).(replication.StandbyLost)
		return is
	}, patience, time.Millisecond)
}

// TestStandbyThatDoesNotFetchIsLost: a standby that dies between hearing that it needs a snapshot and fetching it has
// no session that could end, and is told as lost all the same; as there again when it comes after all.
func TestStandbyThatDoesNotFetchIsLost(t *testing.T) {
	w := newWorld(t)
	quick := func(n *node) {
		n.options.LogKeepBytes, n.options.SegmentBytes = 1, 64<<10
		n.tuning.StandbyTimeout = 20 * time.Millisecond
	}
	a, b := w.node("a", quick), w.node("b")
	a.lead(1, 1, nil)
	a.createQueue()
	a.dropLog()
	s := w.handshake(b, a)
	m, err := s.Recv()
	require.NoError(t, err)
	require.True(t, m.Welcome.SnapshotRequired)
	await(a, func(e replication.StandbyConnected) bool { return e.Snapshot })
	await(a, lostStandby(replication.LostSilence))

	conn, err := w.dialer().Dial(t.Context(), a.address)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	stream, err := conn.FetchSnapshot(t.Context(), replication.SnapshotRequest{
		Pair: b.store.Identity().PairID, Node: b.member().Node,
	})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, is := lastOfStandby(a).(replication.StandbyConnected)
		return is
	}, patience, time.Millisecond)
}
