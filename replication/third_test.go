// SPDX-License-Identifier: Apache-2.0

package replication_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/replication"
)

// A pair has one standby. Another node with the pair's identity does not replace it.
func TestThirdNodeIsRefused(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		a, b, c := w.node("a"), w.node("b"), w.node("c")
		a.lead(1, 1, nil)
		b.follow(a)
		a.createQueue()
		a.sync(b)
		a.clearEvents()
		_, err := w.handshake(c, a).Recv()
		require.ErrorIs(t, err, replication.ErrSecondStandby)
		require.Contains(t, err.Error(), b.member().Node.String())
		a.publish(a.queueID, 10, 10, 1)
		require.Empty(t, a.seen(), "the standby stays connected")
	})
}

// The required standby replaces a connected node if the acks of that node are not required.
func TestRequiredStandbyReplacesAThirdNode(t *testing.T) {
	synctest.Test(t, testRequiredStandbyReplacesAThirdNode)
}

func testRequiredStandbyReplacesAThirdNode(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.node("a"), w.node("b"), w.node("c")
	a.lead(1, 1, b)
	w.handshake(c, a)
	await(a, func(e replication.StandbyConnected) bool { return e.Member == c.member() })
	b.follow(a)
	await[replication.ActiveReady](a, nil)
	var order []replication.Event
	require.Eventually(t, func() bool {
		order = order[:0]
		for _, e := range a.seen() {
			switch e := e.(type) {
			case replication.StandbyConnected:
				order = append(order, replication.StandbyConnected{Member: e.Member})
			case replication.StandbyLost:
				order = append(order, replication.StandbyLost{Member: e.Member})
			}
		}
		return len(order) >= 3
	}, waitLimit, time.Millisecond)
	require.Equal(t, []replication.Event{
		replication.StandbyConnected{Member: c.member()},
		replication.StandbyLost{Member: c.member()},
		replication.StandbyConnected{Member: b.member()},
	}, order)
}

// A required standby that does not connect is reported, even if a third node connects and leaves in the meantime.
func TestAbsentStandbyIsReportedAfterAThirdNode(t *testing.T) {
	synctest.Test(t, testAbsentStandbyIsReportedAfterAThirdNode)
}

func testAbsentStandbyIsReportedAfterAThirdNode(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.node("a"), w.node("b"), w.node("c")
	a.lead(1, 1, b)
	c.follow(a)
	await(a, func(e replication.StandbyConnected) bool { return e.Member == c.member() })
	c.stop()
	await(a, func(e replication.StandbyLost) bool { return e.Member == c.member() })
	e := await(a, func(e replication.StandbyLost) bool { return e.Member == b.member() })
	require.Equal(t, replication.LostSilence, e.Cause)
}
