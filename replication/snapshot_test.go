// SPDX-License-Identifier: Apache-2.0

package replication_test

import (
	"context"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// diverge makes b the active of a new term with a's acks required, while a has applied records that b lacks.
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
	a.clearEvents()
	b.clearEvents()
	b.lead(20, 2, a)
}

// dropLog publishes until the log's first record is deleted, so that a new standby needs a snapshot.
func (n *node) dropLog() {
	n.w.t.Helper()
	for n.store.FirstLSN() < 2 {
		n.publish(n.queueID, 500, 4000, 16)
		_, err := n.store.Checkpoint(n.w.t.Context())
		require.NoError(n.w.t, err)
	}
}

// lastOfStandby returns the last StandbyConnected or StandbyLost event.
func lastOfStandby(n *node) (last replication.Event) {
	for _, e := range n.seen() {
		switch e.(type) {
		case replication.StandbyConnected, replication.StandbyLost:
			last = e
		}
	}
	return last
}

// A required standby that needs a snapshot is reported as lost. It cannot acknowledge until it has left in_sync, so
// no transaction may wait for it.
func TestRequiredStandbyThatNeedsASnapshotIsLost(t *testing.T) {
	synctest.Test(t, testRequiredStandbyThatNeedsASnapshotIsLost)
}

func testRequiredStandbyThatNeedsASnapshotIsLost(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	diverge(a, b)
	// The standby stops after the response that requires a snapshot.
	s := w.handshake(a, b, func(*replication.StandbyMessage) {})
	m, err := s.Recv()
	require.NoError(t, err)
	require.True(t, m.HelloResponse.SnapshotRequired)
	await[replication.StandbyConnected](b, nil)
	await(b, lostStandby(replication.LostRejected))
	require.IsType(t, replication.StandbyLost{}, lastOfStandby(b), "the active would wait for its acks indefinitely")
}

// A broken snapshot transfer is reported like any lost connection.
func TestStandbyLostDuringSnapshot(t *testing.T) { synctest.Test(t, testStandbyLostDuringSnapshot) }

func testStandbyLostDuringSnapshot(t *testing.T) {
	w := newWorld(t)
	small := func(n *node) { n.tuning.SnapshotChunkBytes = 2 << 10 }
	// If b stops before its request, the loss is reported after 20 of these timeouts.
	quick := func(n *node) { n.tuning.StandbyTimeout = 20 * time.Millisecond }
	a, b := w.node("a", smallLog, small, quick), w.node("b", smallLog, small)
	a.lead(1, 1, nil)
	a.createQueue()
	a.dropLog()
	b.followVia(&breakingDialer{Dialer: w.dialer(), chunks: 1}, a.address)
	await(a, func(e replication.StandbyConnected) bool { return e.Snapshot })
	b.stop()
	require.Eventually(t, func() bool {
		_, is := lastOfStandby(a).(replication.StandbyLost)
		return is
	}, waitLimit, time.Millisecond)
}

// A standby that fails between the response that requires a snapshot and its request has no session that could end. It
// is reported as lost, and as connected when it requests the snapshot later.
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
	require.True(t, m.HelloResponse.SnapshotRequired)
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
	}, waitLimit, time.Millisecond)
}

// fetchSnapshot requests a snapshot for an otherwise disconnected node.
func (n *node) fetchSnapshot(send func(*replication.SnapshotChunk) error) error {
	return n.primary.FetchSnapshot(n.w.t.Context(),
		replication.SnapshotRequest{Pair: n.store.Identity().PairID, Node: uuid.New()}, send)
}

func isHeartbeat(c *replication.SnapshotChunk) bool {
	return c.Header == nil && len(c.Data) == 0 && !c.Finished
}

// slowCommits simulates increasing commit latency until the test ends.
func (n *node) slowCommits() {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for took := time.Millisecond; ; took += took / 10 {
			n.store.Governor().Report(took)
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

// stalledStream is the stream of a standby that receives a message only when the test reads sent. It acknowledges
// the positions from acks.
type stalledStream struct {
	hello *replication.StandbyMessage
	sent  chan *replication.ActiveMessage
	acks  chan lsn.Position
	ended <-chan struct{}
}

// longAckTimeouts disables the timeouts for a standby that acknowledges nothing.
func longAckTimeouts(n *node) {
	n.tuning.StandbyTimeout, n.tuning.AckTimeout = time.Hour, time.Hour
}

// stall connects as a standby that has everything up to a position and receives messages only when the test reads
// them. cut ends the connection and returns the result of Replicate.
func (n *node) stall(has lsn.Position, member replication.Member) (s *stalledStream, cut func() error) {
	ctx, cancel := context.WithCancel(n.w.t.Context())
	s = &stalledStream{
		sent: make(chan *replication.ActiveMessage), acks: make(chan lsn.Position), ended: ctx.Done(),
		hello: &replication.StandbyMessage{Hello: &replication.Hello{
			Pair: n.store.Identity().PairID, Member: member, LogEnd: has, Applied: has, TermEnds: []lsn.Position{has},
			Protocol: replication.ProtocolVersion,
		}},
	}
	result := make(chan error, 1)
	go func() { result <- n.primary.Replicate(ctx, s) }()
	cut = sync.OnceValue(func() error {
		cancel()
		return <-result
	})
	n.w.t.Cleanup(func() { _ = cut() })
	return s, cut
}

// take receives all records after position at, and acknowledges them.
func (s *stalledStream) take(n *node, at lsn.Position) {
	n.w.t.Helper()
	for at != n.store.End() {
		m := <-s.sent
		if len(m.Records) == 0 {
			continue
		}
		require.Equal(n.w.t, at, m.Previous)
		at = m.Last
		s.acks <- at
	}
}

func (s *stalledStream) Recv() (*replication.StandbyMessage, error) {
	if m := s.hello; m != nil {
		s.hello = nil
		return m, nil
	}
	select {
	case at := <-s.acks:
		return &replication.StandbyMessage{Config: 1, Term: 1, Durable: at, AppliedLSN: at.LSN}, nil
	case <-time.After(10 * time.Millisecond):
		return &replication.StandbyMessage{Config: 1, Term: 1}, nil
	case <-s.ended:
		return nil, io.EOF
	}
}

func (s *stalledStream) Send(m *replication.ActiveMessage) error {
	if m.HelloResponse == nil && len(m.Records) == 0 {
		return nil
	}
	select {
	case s.sent <- m:
		return nil
	case <-s.ended:
		return io.EOF
	}
}

// When the standby reconnects with the snapshot, the active closes the snapshot and continues checkpoints. It
// retains the log that the standby needs until that log is sent. Otherwise the standby would fetch snapshots
// repeatedly.
func TestLogAfterSnapshotIsKept(t *testing.T) { synctest.Test(t, testLogAfterSnapshotIsKept) }

func testLogAfterSnapshotIsKept(t *testing.T) {
	w := newWorld(t)
	a := w.node("a", smallLog, longAckTimeouts, func(n *node) { n.tuning.TailBytes = 64 << 10 })
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

	s, _ := a.stall(has, replication.Member{Node: uuid.New(), Store: uuid.New()})
	await(a, func(e replication.StandbyConnected) bool { return !e.Snapshot })
	for range 3 {
		a.publish(a.queueID, 100, 4000, 4)
		_, err := a.store.Checkpoint(t.Context())
		require.NoError(t, err)
	}
	require.LessOrEqual(t, a.store.FirstLSN(), has.LSN+1)

	require.Equal(t, has, (<-s.sent).HelloResponse.ResumeAfter)
	s.take(a, has)
	// The acknowledged log can be deleted.
	require.Eventually(t, func() bool { return a.store.FirstLSN() > has.LSN+200 }, waitLimit, time.Millisecond)
}

// A standby can connect before the transfer of its snapshot has ended on the active. The active releases the snapshot,
// and does not keep the log for two minutes.
func TestStandbyConnectsBeforeItsTransferEnds(t *testing.T) {
	synctest.Test(t, testStandbyConnectsBeforeItsTransferEnds)
}

func testStandbyConnectsBeforeItsTransferEnds(t *testing.T) {
	w := newWorld(t)
	a := w.node("a", smallLog, longAckTimeouts, func(n *node) { n.tuning.TailBytes = 64 << 10 })
	a.lead(1, 1, nil)
	a.createQueue()
	a.dropLog()
	member := replication.Member{Node: uuid.New(), Store: uuid.New()}
	var has lsn.Position
	var s *stalledStream
	require.NoError(t, a.primary.FetchSnapshot(t.Context(), replication.SnapshotRequest{
		Pair: a.store.Identity().PairID, Node: member.Node,
	}, func(c *replication.SnapshotChunk) error {
		if c.Header != nil {
			has = c.Header.Position
		}
		if c.Finished {
			s, _ = a.stall(has, member)
			await(a, func(e replication.StandbyConnected) bool { return !e.Snapshot })
		}
		return nil
	}))
	for range 3 {
		a.publish(a.queueID, 100, 4000, 4)
		_, err := a.store.Checkpoint(t.Context())
		require.NoError(t, err)
	}
	require.Equal(t, has, (<-s.sent).HelloResponse.ResumeAfter)
	s.take(a, has)
	require.Eventually(t, func() bool { return a.store.FirstLSN() > has.LSN+100 }, waitLimit, time.Millisecond)
}

// A standby that starts from a snapshot receives some of the following log, does not acknowledge it, and loses its
// connection. Checkpoints continue in the meantime. After a reconnect it resumes with the log, without another
// snapshot.
func TestLogIsKeptAcrossReconnect(t *testing.T) { synctest.Test(t, testLogIsKeptAcrossReconnect) }

func testLogIsKeptAcrossReconnect(t *testing.T) {
	w := newWorld(t)
	a := w.node("a", smallLog, longAckTimeouts, func(n *node) { n.tuning.TailBytes = 64 << 10 })
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
	member := replication.Member{Node: uuid.New(), Store: uuid.New()}
	checkpoint := func() {
		for range 3 {
			a.publish(a.queueID, 100, 4000, 4)
			_, err := a.store.Checkpoint(t.Context())
			require.NoError(t, err)
		}
	}
	for range 2 {
		a.clearEvents()
		checkpoint()
		s, cut := a.stall(has, member)
		require.Equal(t, has, (<-s.sent).HelloResponse.ResumeAfter, "resumes with the log")
		for sent := 0; sent < 2<<20; sent += len((<-s.sent).Records) {
			checkpoint()
		}
		require.Error(t, cut())
		await[replication.StandbyLost](a, nil)
	}
	checkpoint()
	s, _ := a.stall(has, member)
	require.Equal(t, has, (<-s.sent).HelloResponse.ResumeAfter, "resumes with the log")
	s.take(a, has)
}

// transferBusy is the duration of a chunk in tests of a pausing transfer: the pauses are more than twice as long.
const transferBusy = 200 * time.Millisecond

// A transfer that slows commits down pauses for up to a second, which is the standby's timeout. During the pause, the
// active sends heartbeats.
func TestHeartbeatsDuringTransferPause(t *testing.T) {
	synctest.Test(t, testHeartbeatsDuringTransferPause)
}

func testHeartbeatsDuringTransferPause(t *testing.T) {
	w := newWorld(t)
	a := w.node("a", smallLog)
	a.lead(1, 1, nil)
	a.createQueue()
	a.dropLog()
	a.slowCommits()
	var data, heartbeats int
	require.NoError(t, a.fetchSnapshot(func(c *replication.SnapshotChunk) error {
		switch {
		case len(c.Data) > 0:
			data++
			<-time.After(transferBusy)
		case isHeartbeat(c):
			heartbeats++
		}
		return nil
	}))
	require.NotZero(t, data)
	require.GreaterOrEqual(t, heartbeats, data)
}

// A connection that breaks during a pause of the transfer is reported as lost, and not treated as replaced by another
// transfer.
func TestStandbyLostDuringPause(t *testing.T) { synctest.Test(t, testStandbyLostDuringPause) }

func testStandbyLostDuringPause(t *testing.T) {
	w := newWorld(t)
	a := w.node("a", smallLog)
	a.lead(1, 1, nil)
	a.createQueue()
	a.dropLog()
	a.slowCommits()
	require.ErrorIs(t, a.fetchSnapshot(func(c *replication.SnapshotChunk) error {
		if isHeartbeat(c) {
			return io.ErrClosedPipe
		}
		<-time.After(transferBusy)
		return nil
	}), io.ErrClosedPipe)
	await(a, lostStandby(replication.LostReset))
}

// A standby that receives nothing because of its low snapshot rate does not report the active as lost.
func TestLowSnapshotRateIsNotReportedAsLoss(t *testing.T) {
	synctest.Test(t, testLowSnapshotRateIsNotReportedAsLoss)
}

func testLowSnapshotRateIsNotReportedAsLoss(t *testing.T) {
	w := newWorld(t)
	a := w.node("a", smallLog)
	b := w.node("b")
	a.lead(1, 1, nil)
	a.createQueue()
	a.publish(a.queueID, 400, 4000, 16)
	a.dropLog()
	// Beyond the burst of 4 MiB, a chunk of 1 MiB takes 2 s, which is the active timeout.
	b.tuning.SnapshotBytesPerSecond = func() int64 { return 512 << 10 }
	b.follow(a)
	await[replication.SnapshotInstalled](b, nil)
	for _, e := range b.seen() {
		_, is := e.(replication.FollowerLost)
		require.False(t, is, "%+v", e)
	}
}
