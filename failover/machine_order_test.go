// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// A lost standby reconnects with all records while the swap that removes it is in progress. It is added to in_sync
// again, even if StandbySynced precedes StandbyCaughtUp.
func TestStandbyIsSyncedBeforeItIsCaughtUp(t *testing.T) {
	for _, caughtUpFirst := range []bool{false, true} {
		r := activePair(t, Settings{})
		effect[SwapRecord](t, r.report(StandbyLost{Node: testNodes[1].ID, Cause: LostReset}))
		r.after(100 * time.Millisecond)
		r.report(StandbyConnected{Member: memberOf(1)})
		events := []DataEvent{
			StandbySynced{Member: memberOf(1), Requirement: r.s.act.sent.Requirement},
			StandbyCaughtUp{Member: memberOf(1)},
		}
		if caughtUpFirst {
			events[0], events[1] = events[1], events[0]
		}
		for _, e := range events {
			r.report(e)
		}
		swap := effect[SwapRecord](t, r.won()) // the removal was applied, and is reverted immediately
		require.Equal(t, []Member{memberOf(0), memberOf(1)}, swap.Next.InSync)
		require.True(t, r.s.act.sent.RequireStandby, "the standby's acks are always required (INV-3)")
		r.won()
		require.Equal(t, RoleActive, r.s.Role())
	}
}

// A third node that fetches a snapshot does not replace the required standby.
func TestThirdNodeDoesNotReplaceRequiredStandby(t *testing.T) {
	r := newRig(t, Settings{})
	r.start(usedIdentity(), recordWith(0, 0, 1), 0, 1)
	r.won()
	r.report(StandbyConnected{Member: Member{Node: uuid.New(), Store: uuid.New(), Incarnation: 1}})
	r.report(StandbyConnected{Member: memberOf(1)})
	r.report(StandbyCaughtUp{Member: memberOf(1)})
	r.report(ActiveReady{})
	require.Equal(t, RoleActive, r.s.Role(), r.s.Reason())
	requireNo[SwapRecord](t, r.after(10*time.Second))
}

// The outcome of a change is unknown, and the change is obsolete. It may be applied at any time, which blocks other
// changes. The active writes the unchanged record again, after which a switchover is possible.
func TestUnknownOutcomeIsResolved(t *testing.T) {
	r := activePair(t, Settings{})
	release := effect[SwapRecord](t, r.report(StandbyLost{Node: testNodes[1].ID, Cause: LostReset}))
	effect[LoadRecord](t, r.step(Swapped{OpID: release.Next.OpID, Err: ErrUnknownOutcome}))
	requirement := r.s.act.sent.Requirement
	r.report(StandbyConnected{Member: memberOf(1)})
	r.report(StandbyCaughtUp{Member: memberOf(1)})
	r.report(StandbySynced{Member: memberOf(1), Requirement: requirement})
	effects := r.step(Loaded{Record: r.s.rec, Revision: r.s.rev})
	require.Equal(t, RoleActive, r.s.Role(), r.s.Reason())

	again := effect[SwapRecord](t, effects)
	require.Equal(t, r.s.rev, again.Expect)
	require.Equal(t, r.s.rec.InSync, again.Next.InSync)
	require.NotEqual(t, release.Next.OpID, again.Next.OpID)
	require.True(t, r.s.act.sent.RequireStandby, "either swap may be applied")
	r.won()
	require.Empty(t, r.s.pending)
	requireNo[SwapRecord](t, r.after(10*time.Second))
	effect[BeginDrain](t, r.step(SwitchoverRequested{ID: "now"}))
}
