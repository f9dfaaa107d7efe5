package failover

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// The standby is gone while the coordinator is, too; it comes back, lacking nothing, while the swap that releases it is
// under way, and is synced before it is caught up. Whichever comes first, it must be named in sync again.
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
		swap := effect[SwapRecord](t, r.won()) // the release is done: it is taken back at once
		require.Equal(t, []Member{memberOf(0), memberOf(1)}, swap.Next.InSync)
		require.True(t, r.s.act.sent.RequireStandby, "its acks are required all the time (INV-3)")
		r.won()
		require.Equal(t, RoleActive, r.s.Role())
	}
}

// A third node, which fetches a snapshot, does not hide the standby that the active waits for.
func TestRequiredStandbyBesideAThirdNode(t *testing.T) {
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
