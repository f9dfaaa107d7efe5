// SPDX-License-Identifier: Apache-2.0

package replication_test

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store/lsn"
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
	synctest.Test(t, testRequiredStandbyThatNeedsASnapshotIsLost)
}

func testRequiredStandbyThatNeedsASnapshotIsLost(t *testing.T) {
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
func TestStandbyLostDuringSnapshot(t *testing.T) { synctest.Test(t, testStandbyLostDuringSnapshot) }

func testStandbyLostDuringSnapshot(t *testing.T) {
	w := newWorld(t)
	small := func(n *node) { n.tuning.SnapshotChunkBytes = 2 << 10 }
	a, b := w.node("a", smallLog, small), w.node("b", smallLog, small)
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
	synctest.Test(t, testStandbyThatDoesNotFetchIsLost)
}

func testStandbyThatDoesNotFetchIsLost(t *testing.T) {
	w := newWorld(t)
	quick := func(n *node) { n.tuning.StandbyTimeout = 20 * time.Millisecond }
	a, b := w.node("a", smallLog, quick), w.node("b")
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

// fetchSnapshot has a node send a snapshot to one that is not there otherwise.
func (n *node) fetchSnapshot(send func(*replication.SnapshotChunk) error) error {
	return n.primary.FetchSnapshot(n.w.t.Context(),
		replication.SnapshotRequest{Pair: n.store.Identity().PairID, Node: uuid.New()}, send)
}

// isSignOfLife tells whether a chunk says only that the active is there.
func isSignOfLife(c *replication.SnapshotChunk) bool {
	return c.Header == nil && len(c.Data) == 0 && !c.Finished
}

// slowCommits has a node believe that its commits get slower and slower, until the test ends.
func (n *node) slowCommits() {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for took := time.Millisecond; ; took += took / 10 {
			n.store.Governor().Told(took)
			select {
			case <-end:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	n.w.t.Cleanup(func() {
		close(end)
		<-ended
	})
}

// stalledStream is a connection whose standby takes nothing until it is let go.
type stalledStream struct {
	hello *replication.StandbyMessage
	sent  chan *replication.ActiveMessage
	ended <-chan struct{}
}

func (s *stalledStream) Recv() (*replication.StandbyMessage, error) {
	if m := s.hello; m != nil {
		s.hello = nil
		return m, nil
	}
	select {
	case <-time.After(10 * time.Millisecond):
		return &replication.StandbyMessage{Config: 1, Term: 1}, nil
	case <-s.ended:
		return nil, io.EOF
	}
}

func (s *stalledStream) Send(m *replication.ActiveMessage) error {
	if m.Welcome == nil && len(m.Records) == 0 {
		return nil
	}
	select {
	case s.sent <- m:
		return nil
	case <-s.ended:
		return io.EOF
	}
}

// TestLogAfterTheSnapshotStays: when the standby comes back with the snapshot, that is let go, and checkpoints go on.
// Nothing that it needs of the log may go before it was sent, or it would fetch one snapshot after the other.
func TestLogAfterTheSnapshotStays(t *testing.T) { synctest.Test(t, testLogAfterTheSnapshotStays) }

func testLogAfterTheSnapshotStays(t *testing.T) {
	w := newWorld(t)
	a := w.node("a", smallLog, func(n *node) { n.tuning.TailBytes = 64 << 10 })
	a.lead(1, 1, nil)
	a.createQueue()
	a.dropLog()
	var has lsn.Position
	require.NoError(t, a.fetchSnapshot(func(c *replication.SnapshotChunk) error {
		if c.Header != nil {
			has = c.Header.Position
		}
		return nil
	}))
	a.publish(a.queueID, 100, 4000, 4)

	ctx, cancel := context.WithCancel(t.Context())
	s := &stalledStream{sent: make(chan *replication.ActiveMessage), ended: ctx.Done()}
	s.hello = &replication.StandbyMessage{Hello: &replication.Hello{
		Pair: a.store.Identity().PairID, Member: replication.Member{Node: uuid.New(), Store: uuid.New()},
		LogEnd: has, Applied: has, TermEnds: []lsn.Position{has}, Protocol: replication.ProtocolVersion,
	}}
	result := make(chan error, 1)
	go func() { result <- a.primary.Replicate(ctx, s) }()
	defer func() {
		cancel()
		<-result
	}()
	await(a, func(e replication.StandbyConnected) bool { return !e.Snapshot })
	for range 3 {
		a.publish(a.queueID, 100, 4000, 4)
		_, err := a.store.Checkpoint(t.Context())
		require.NoError(t, err)
	}
	require.LessOrEqual(t, a.store.FirstLSN(), has.LSN+1)

	require.Equal(t, has, (<-s.sent).Welcome.ResumeAfter)
	for at := has; at != a.store.End(); {
		select {
		case m := <-s.sent:
			require.Equal(t, at, m.Previous)
			at = m.Last
		case err := <-result:
			result <- err
			require.NoError(t, err)
		}
	}
	// What was sent is free to go.
	require.Eventually(t, func() bool { return a.store.FirstLSN() > has.LSN+200 }, patience, time.Millisecond)
}

// transferBusy is how long a chunk takes in tests of a transfer that pauses: the pauses are then 19 times as long.
const transferBusy = 10 * time.Millisecond

// TestTransferPausesWithSignsOfLife: where commits suffer from it a transfer pauses for up to a second, which is as
// long as a standby waits for the active.
func TestTransferPausesWithSignsOfLife(t *testing.T) {
	synctest.Test(t, testTransferPausesWithSignsOfLife)
}

func testTransferPausesWithSignsOfLife(t *testing.T) {
	w := newWorld(t)
	a := w.node("a", smallLog)
	a.lead(1, 1, nil)
	a.createQueue()
	a.dropLog()
	a.slowCommits()
	var data, signs int
	require.NoError(t, a.fetchSnapshot(func(c *replication.SnapshotChunk) error {
		switch {
		case len(c.Data) > 0:
			data++
			<-time.After(transferBusy)
		case isSignOfLife(c):
			signs++
		}
		return nil
	}))
	require.NotZero(t, data)
	require.GreaterOrEqual(t, signs, data)
}

// TestStandbyLostDuringPause: a connection that breaks in a pause of the transfer is told like one that breaks in a
// chunk, and not taken for one that another transfer replaced.
func TestStandbyLostDuringPause(t *testing.T) { synctest.Test(t, testStandbyLostDuringPause) }

func testStandbyLostDuringPause(t *testing.T) {
	w := newWorld(t)
	a := w.node("a", smallLog)
	a.lead(1, 1, nil)
	a.createQueue()
	a.dropLog()
	a.slowCommits()
	require.ErrorIs(t, a.fetchSnapshot(func(c *replication.SnapshotChunk) error {
		if isSignOfLife(c) {
			return io.ErrClosedPipe
		}
		<-time.After(transferBusy)
		return nil
	}), io.ErrClosedPipe)
	await(a, lostStandby(replication.LostReset))
}

// TestSlowRateIsNotSilence: a standby that takes a snapshot in slowly, as it was told to, hears nothing while it waits,
// and must not take the active for gone.
func TestSlowRateIsNotSilence(t *testing.T) { synctest.Test(t, testSlowRateIsNotSilence) }

func testSlowRateIsNotSilence(t *testing.T) {
	w := newWorld(t)
	a := w.node("a", smallLog)
	b := w.node("b")
	a.lead(1, 1, nil)
	a.createQueue()
	a.publish(a.queueID, 400, 4000, 16)
	a.dropLog()
	// Beyond the burst of 4 MiB, a chunk of 1 MiB then takes twice the time for which an active may be silent.
	b.tuning.SnapshotBytesPerSecond = func() int64 { return 512 << 10 }
	b.follow(a)
	await[replication.SnapshotInstalled](b, nil)
	for _, e := range b.seen() {
		_, is := e.(replication.FollowerLost)
		require.False(t, is, "%+v", e)
	}
}
