// SPDX-License-Identifier: Apache-2.0

package replication_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// A new connection of the same standby replaces the old one without a StandbyLost event.
func TestNewConnectionReplacesTheOld(t *testing.T) { synctest.Test(t, testNewConnectionReplacesTheOld) }

func testNewConnectionReplacesTheOld(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	a.lead(1, 1, b)
	old := w.handshake(b, a)
	m, err := old.Recv()
	require.NoError(t, err)
	require.NotNil(t, m.HelloResponse)
	b.follow(a)
	await[replication.StandbySynced](a, nil)
	require.Eventually(t, func() bool {
		_, err := old.Recv()
		return errors.Is(err, replication.ErrReplaced)
	}, waitLimit, time.Millisecond)
	for _, e := range a.seen() {
		_, is := e.(replication.StandbyLost)
		require.False(t, is, "%+v", e)
	}
	a.createQueue()
	requireEqual(a, b)
}

// A standby that lost acknowledged records is refused until it has left in_sync.
func TestStandbyLostAcknowledgedRecords(t *testing.T) {
	synctest.Test(t, testStandbyLostAcknowledgedRecords)
}

func testStandbyLostAcknowledgedRecords(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	a.lead(1, 1, nil)
	b.follow(a)
	a.createQueue()
	a.sync(b)
	a.publish(a.queueID, 10, 10, 1)
	b.stop()
	await[replication.StandbyLost](a, nil)
	a.clearEvents()
	// The standby restarts without its last records.
	s := w.handshake(b, a, func(m *replication.StandbyMessage) {
		m.Hello.LogEnd, m.Hello.Applied, m.Hello.TermEnds = lsn.Position{}, lsn.Position{}, nil
	})
	_, err := s.Recv()
	require.ErrorIs(t, err, replication.ErrLostRecords)
	e := await(a, lostStandby(replication.LostRejected))
	require.Equal(t, b.member(), e.Member)
}

// Only acks of the member listed in the cluster record count (INV-6).
func TestAckOfAnotherIncarnationDoesNotCount(t *testing.T) {
	synctest.Test(t, testAckOfAnotherIncarnationDoesNotCount)
}

func testAckOfAnotherIncarnationDoesNotCount(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	other := b.member()
	other.Incarnation++
	a.leadWith(1, replication.PrimaryConfig{Config: 1, Serve: true, RequireStandby: true, Standby: other})
	b.follow(a)
	await[replication.StandbyCaughtUp](a, nil)
	require.Eventually(t, func() bool { return b.store.End().LSN == 1 }, waitLimit, time.Millisecond)
	await(a, lostStandby(replication.LostSilence))
	require.Zero(t, a.primary.CommitLSN())
	a.configure(func(c *replication.PrimaryConfig) { c.Standby = b.member() })
	await[replication.StandbySynced](a, nil)
	await[replication.ActiveReady](a, nil)
}

// When the acks of a standby are no longer required, its session ends, so that its acks do not count later (INV-3).
func TestDroppedRequirementEndsSession(t *testing.T) {
	synctest.Test(t, testDroppedRequirementEndsSession)
}

func testDroppedRequirementEndsSession(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	a.lead(1, 1, nil)
	b.follow(a)
	a.createQueue()
	a.sync(b)
	a.clearEvents()
	a.configure(func(c *replication.PrimaryConfig) { c.RequireStandby = false })
	await[replication.StandbyLost](a, nil)
	await[replication.StandbyCaughtUp](a, nil)
	for _, e := range a.seen() {
		_, is := e.(replication.StandbySynced)
		require.False(t, is, "%+v", e)
	}
}
