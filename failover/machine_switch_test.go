// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func TestSwitchoverOfActive(t *testing.T) {
	r := activePair(t, Settings{})
	drain := effect[BeginDrain](t, r.step(SwitchoverRequested{ID: "x"}))
	require.Equal(t, time.Second, drain.Limit)
	r.now += 20 * time.Millisecond
	swap := effect[SwapRecord](t, r.step(DrainEnded{Drain: drain.Drain}))
	require.Equal(t, testNodes[1].ID, swap.Next.Active)
	require.Equal(t, r.s.rec.Term+1, swap.Next.Term)
	require.Len(t, swap.Next.InSync, 2, "both stores are complete")
	effects := r.won()
	require.Equal(t, []string{"stop-active", "fence", "start-follower"}, kinds(effects))
	requireNo[SwitchoverEnded](t, effects)
	r.now += 20 * time.Millisecond
	end := effect[SwitchoverEnded](t, r.report(FollowerConnected{Config: swap.Next.Config, Term: swap.Next.Term}))
	require.Equal(t, SwitchoverEnded{ID: "x", Pause: 40 * time.Millisecond}, end)
	require.Equal(t, RoleStandby, r.s.Role())
}

// The standby takes the role as soon as it receives the record, without another swap.
func TestSwitchoverToStandby(t *testing.T) {
	r := standbyPair(t, Settings{})
	rec := recordWith(0, 0, 1)
	rec.Config, rec.Term, rec.OpID = 6, 3, "handover"
	effects := r.seeRecord(rec, 101)
	require.Equal(t, []string{"stop-follower", "fence", "start-active"}, kinds(effects))
	spec := effect[StartActive](t, effects).Spec
	require.Equal(t, uint64(3), spec.Term)
	require.True(t, spec.RequireStandby)
	r.report(ActiveReady{})
	r.report(StandbyConnected{Member: memberOf(1)})
	require.Equal(t, RoleActive, r.s.Role())
}

func TestSwitchoverRequestedOnStandby(t *testing.T) {
	r := standbyPair(t, Settings{})
	swap := effect[SwapRecord](t, r.step(SwitchoverRequested{ID: "x"}))
	require.Equal(t, &Switchover{ID: "x", To: testNodes[0].ID}, swap.Next.Switchover)
	require.Equal(t, testNodes[1].ID, swap.Next.Active)
	r.won()
	require.Equal(t, RoleStandby, r.s.Role())
	rec := recordWith(0, 0, 1)
	rec.Config, rec.Term, rec.OpID = 7, 3, "handover"
	requireNo[SwitchoverEnded](t, r.seeRecord(rec, 102))
	r.now += time.Millisecond
	require.Equal(t, SwitchoverEnded{ID: "x", Pause: time.Millisecond},
		effect[SwitchoverEnded](t, r.report(ActiveReady{})))
}

// The active executes a switchover requested by the standby.
func TestSwitchoverRequestedByStandby(t *testing.T) {
	r := activePair(t, Settings{})
	rec := r.s.rec
	rec.Config, rec.OpID, rec.Switchover = rec.Config+1, "ask", &Switchover{ID: "x", To: testNodes[1].ID}
	drain := effect[BeginDrain](t, r.seeRecord(rec, 102))
	swap := effect[SwapRecord](t, r.step(DrainEnded{Drain: drain.Drain}))
	require.Equal(t, testNodes[1].ID, swap.Next.Active)
	require.Nil(t, swap.Next.Switchover)
	require.Contains(t, kinds(r.won()), "stop-active")
}

func TestSwitchoverDrainFails(t *testing.T) {
	r := activePair(t, Settings{})
	drain := effect[BeginDrain](t, r.step(SwitchoverRequested{ID: "x"}))
	effects := r.step(DrainEnded{Drain: drain.Drain, Err: errors.New("too slow")})
	effect[Resume](t, effects)
	require.Contains(t, effect[SwitchoverEnded](t, effects).Failure, "too slow")
	require.Equal(t, RoleActive, r.s.Role())

	// If the standby requested the switchover, the request is removed from the record once.
	rec := r.s.rec
	rec.Config, rec.OpID, rec.Switchover = rec.Config+1, "ask", &Switchover{ID: "y", To: testNodes[1].ID}
	drain = effect[BeginDrain](t, r.seeRecord(rec, 102))
	effects = r.step(DrainEnded{Drain: drain.Drain, Err: errors.New("too slow")})
	effect[Resume](t, effects)
	requireNo[BeginDrain](t, effects)
	require.Nil(t, effect[SwapRecord](t, effects).Next.Switchover)
	requireNo[BeginDrain](t, r.won())
}

func TestSwitchoverStandbyLostWhileDraining(t *testing.T) {
	r := activePair(t, Settings{})
	drain := effect[BeginDrain](t, r.step(SwitchoverRequested{ID: "x"}))
	effects := r.report(StandbyLost{Node: testNodes[1].ID, Cause: LostReset})
	effect[Resume](t, effects)
	require.Contains(t, effect[SwitchoverEnded](t, effects).Failure, "disconnected")
	require.Len(t, effect[SwapRecord](t, effects).Next.InSync, 1)
	require.Empty(t, r.step(DrainEnded{Drain: drain.Drain}), "the handover was aborted")
}

// The handover's swap has an unknown outcome: the active serves nothing until a read, and retries the swap until the
// deadline. Then it keeps the role, and requires the standby's acks, because the swap may still be applied.
func TestSwitchoverUnknownOutcome(t *testing.T) {
	r := activePair(t, Settings{})
	drain := effect[BeginDrain](t, r.step(SwitchoverRequested{ID: "x"}))
	first := effect[SwapRecord](t, r.step(DrainEnded{Drain: drain.Drain}))
	effects := r.step(Swapped{OpID: first.Next.OpID, Err: ErrUnknownOutcome})
	require.False(t, effect[ConfigureActive](t, effects).Config.Serve, "INV-8")
	effects = r.step(Loaded{Record: r.s.rec, Revision: r.s.rev})
	require.Equal(t, first, effect[SwapRecord](t, effects))
	r.step(Swapped{OpID: first.Next.OpID, Err: ErrUnknownOutcome})
	r.now += 5 * time.Second
	effects = r.step(Loaded{Record: r.s.rec, Revision: r.s.rev})
	effect[Resume](t, effects)
	require.NotEmpty(t, effect[SwitchoverEnded](t, effects).Failure)
	require.True(t, r.s.act.sent.Serve)
	require.True(t, r.s.act.sent.RequireStandby)
	require.Contains(t, kinds(r.seeRecord(first.Next, 300)), "stop-active", "the swap was applied")
}

func TestSwitchoverRefused(t *testing.T) {
	refused := func(r *rig, want string) {
		t.Helper()
		effects := r.step(SwitchoverRequested{ID: "x"})
		require.Contains(t, effect[SwitchoverEnded](t, effects).Failure, want)
		requireNo[BeginDrain](t, effects)
	}
	r := activePair(t, Settings{})
	r.step(SwitchoverRequested{ID: "first"})
	refused(r, "another switchover")
	r = activePair(t, Settings{})
	r.observe(false, 0, 1)
	refused(r, "coordinator")
	r = newRig(t, Settings{})
	r.start(usedIdentity(), recordWith(0, 0), 0)
	r.won()
	refused(r, "activation is in progress")
	r.report(ActiveReady{})
	refused(r, "no standby")
	r = newRig(t, Settings{})
	refused(r, "neither")
}

func TestSwitchoverRequestedOnStandbyTimesOut(t *testing.T) {
	r := standbyPair(t, Settings{})
	r.step(SwitchoverRequested{ID: "x"})
	r.won()
	effects := r.after(10 * time.Second)
	require.Contains(t, effect[SwitchoverEnded](t, effects).Failure, "in time")
	require.Nil(t, effect[SwapRecord](t, effects).Next.Switchover, "the request is removed from the record")
}

// A switchover to a named node is idempotent, and never activates the other node.
func TestSwitchoverToANode(t *testing.T) {
	a, b := testNodes[0].ID, testNodes[1].ID
	end := func(r *rig, to uuid.UUID) SwitchoverEnded {
		t.Helper()
		effects := r.step(SwitchoverRequested{ID: "x", To: to})
		require.Empty(t, kinds(effects))
		requireNo[BeginDrain](t, effects)
		return effect[SwitchoverEnded](t, effects)
	}
	require.Equal(t, SwitchoverEnded{ID: "x", Already: true}, end(activePair(t, Settings{}), a))
	require.Equal(t, SwitchoverEnded{ID: "x", Already: true}, end(standbyPair(t, Settings{}), b))
	require.Contains(t, end(activePair(t, Settings{}), uuid.New()).Failure, "target node")
	require.Contains(t, end(standbyPair(t, Settings{}), uuid.New()).Failure, "target node")

	effect[BeginDrain](t, activePair(t, Settings{}).step(SwitchoverRequested{ID: "x", To: b}))
	require.Equal(t, a, effect[SwapRecord](t,
		standbyPair(t, Settings{}).step(SwitchoverRequested{ID: "x", To: a})).Next.Switchover.To)

	r := activePair(t, Settings{})
	effect[BeginDrain](t, r.step(SwitchoverRequested{ID: "first", To: b}))
	require.Equal(t, reasonBusy, end(r, b).Failure)
	require.True(t, end(r, a).Already, "the node has the role until the handover is complete")
}
