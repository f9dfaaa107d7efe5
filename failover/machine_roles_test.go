// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func TestFirstStart(t *testing.T) {
	r := newRig(t, Settings{})
	empty := Identity{Node: testNodes[0].ID, Store: testStores[0], Incarnation: 1}
	r.step(Started{Identity: empty})
	r.observe(true)
	swap := effect[SwapRecord](t, r.step(Loaded{Err: ErrNoRecord}))
	require.Equal(t, Revision(0), swap.Expect)
	require.NoError(t, swap.Next.Validate())
	require.Equal(t, []Member{memberOf(0)}, swap.Next.InSync)
	effects := r.won()
	require.Equal(t, []string{"join", "fence", "start-active"}, kinds(effects))
	require.Equal(t, uint64(1), effect[StartActive](t, effects).Spec.Term)
	r.report(ActiveReady{})
	require.Equal(t, RoleActiveAlone, r.s.Role())
}

func TestFirstStartLosesSwap(t *testing.T) {
	r := newRig(t, Settings{})
	r.step(Started{Identity: Identity{Node: testNodes[0].ID, Store: testStores[0], Incarnation: 1}})
	r.observe(true)
	r.step(Loaded{Err: ErrNoRecord})
	require.Equal(t, []Effect{LoadRecord{}}, r.step(Swapped{OpID: r.s.swapping, Err: ErrConflict}))
	effects := r.step(Loaded{Record: recordWith(1, 1), Revision: 1})
	require.Equal(t, []string{"join", "fence", "start-follower"}, kinds(effects))
	require.Equal(t, RoleCatchingUp, r.s.Role())
}

// A node that joins has the roles CATCHING_UP, SYNCING and STANDBY, in this order.
func TestStandbyJoins(t *testing.T) {
	r := newRig(t, Settings{})
	effects := r.start(usedIdentity(), recordWith(1, 1), 0, 1)
	require.Equal(t, testNodes[1], effect[StartFollower](t, effects).Spec.Active)
	require.Equal(t, RoleCatchingUp, r.s.Role())
	r.report(FollowerConnected{Config: 5, Term: 2})
	require.Equal(t, RoleCatchingUp, r.s.Role())
	r.report(FollowerRequired{})
	require.Equal(t, RoleSyncing, r.s.Role())
	rec := recordWith(1, 1, 0)
	rec.Config, rec.OpID = 6, "add"
	require.Empty(t, r.seeRecord(rec, 101), "the follower raises the fence, because the active may not have config 6 yet")
	require.Equal(t, RoleStandby, r.s.Role())
}

// The active requires the acks of a standby before it adds the standby to in_sync (INV-3).
func TestAdmitStandby(t *testing.T) {
	r := newRig(t, Settings{})
	r.start(usedIdentity(), recordWith(0, 0), 0, 1)
	r.won()
	r.report(ActiveReady{})
	require.Empty(t, r.report(StandbyConnected{Member: memberOf(1)}))
	require.False(t, r.s.act.sent.RequireStandby)
	effects := r.report(StandbyCaughtUp{Member: memberOf(1)})
	cfg := effect[ConfigureActive](t, effects).Config
	require.True(t, cfg.RequireStandby)
	requireNo[SwapRecord](t, effects)

	require.Empty(t, r.report(StandbySynced{Member: memberOf(1), Requirement: cfg.Requirement - 1}),
		"the acks belong to another requirement")
	swap := effect[SwapRecord](t, r.report(StandbySynced{Member: memberOf(1), Requirement: cfg.Requirement}))
	require.Equal(t, []Member{memberOf(0), memberOf(1)}, swap.Next.InSync)
	r.won()
	require.Equal(t, RoleActive, r.s.Role())
}

// A standby that is lost before it was added to in_sync does not block the active.
func TestStandbyLostWhileSyncing(t *testing.T) {
	r := newRig(t, Settings{})
	r.start(usedIdentity(), recordWith(0, 0), 0, 1)
	r.won()
	r.report(ActiveReady{})
	r.report(StandbyConnected{Member: memberOf(1)})
	r.report(StandbyCaughtUp{Member: memberOf(1)})
	cfg := effect[ConfigureActive](t, r.report(StandbyLost{Node: testNodes[1].ID, Cause: LostReset})).Config
	require.False(t, cfg.RequireStandby)
	require.Equal(t, RoleActiveAlone, r.s.Role())
}

// If the standby is in sync before its announcement arrives, its name and address are added to the record afterwards.
func TestStandbyAnnouncedLate(t *testing.T) {
	r := newRig(t, Settings{})
	rec := recordWith(0, 0)
	rec.Nodes = rec.Nodes[:1]
	r.start(usedIdentity(), rec, 0)
	r.won()
	r.report(ActiveReady{})
	r.report(StandbyConnected{Member: memberOf(1)})
	need := effect[ConfigureActive](t, r.report(StandbyCaughtUp{Member: memberOf(1)})).Config.Requirement
	r.report(StandbySynced{Member: memberOf(1), Requirement: need})
	requireNo[SwapRecord](t, r.won())
	require.Equal(t, testNodes[:1], r.s.rec.Nodes)

	next := effect[SwapRecord](t, r.observe(true, 0, 1)).Next
	require.Equal(t, testNodes[:], next.Nodes)
	require.Equal(t, r.s.rec.InSync, next.InSync)
	requireNo[SwapRecord](t, r.won())
	require.Equal(t, RoleActive, r.s.Role())
}

// If the swap that adds a lost standby may still be applied, the active blocks until a second swap resolves it.
func TestStandbyLostWhileSwapUnknown(t *testing.T) {
	r := newRig(t, Settings{})
	r.start(usedIdentity(), recordWith(0, 0), 0, 1)
	r.won()
	r.report(ActiveReady{})
	r.report(StandbyConnected{Member: memberOf(1)})
	need := effect[ConfigureActive](t, r.report(StandbyCaughtUp{Member: memberOf(1)})).Config.Requirement
	r.report(StandbySynced{Member: memberOf(1), Requirement: need})
	effects := r.step(Swapped{OpID: r.s.swapping, Err: ErrUnknownOutcome})
	cfg := effect[ConfigureActive](t, effects).Config
	require.False(t, cfg.Serve, "INV-8")
	require.False(t, cfg.Deliver, "INV-8")
	effect[LoadRecord](t, effects)
	require.Equal(t, RoleBlocked, r.s.Role())

	r.report(StandbyLost{Node: testNodes[1].ID, Cause: LostReset})
	require.True(t, r.s.act.sent.RequireStandby, "the swap that adds the standby may be applied")
	effects = r.step(Loaded{Record: r.s.rec, Revision: r.s.rev}) // not applied yet
	require.True(t, r.s.act.sent.RequireStandby, "the swap may be applied later")
	swap := effect[SwapRecord](t, effects)
	require.Equal(t, []Member{memberOf(0)}, swap.Next.InSync)
	cfg = effect[ConfigureActive](t, r.won()).Config
	require.False(t, cfg.RequireStandby)
	require.Equal(t, RoleActiveAlone, r.s.Role())
}

// A standby that takes over has the roles CANDIDATE, ACTIVATING and ACTIVE_ALONE, in this order.
func TestTakeover(t *testing.T) {
	r := standbyPair(t, Settings{})
	effects := r.report(FollowerLost{Cause: LostRefused, Err: errors.New("refused")})
	require.Equal(t, []string{"stop-follower", "fence", "swap"}, kinds(effects), "INV-4")
	require.Equal(t, Fence{Config: 5, Term: 3}, effect[SetFence](t, effects).Fence)
	swap := effect[SwapRecord](t, effects)
	require.Equal(t, Revision(100), swap.Expect)
	require.Equal(t, []Member{memberOf(0)}, swap.Next.InSync)
	require.Equal(t, testNodes[0].ID, swap.Next.Active)
	require.Equal(t, uint64(3), swap.Next.Term)
	require.Equal(t, RoleCandidate, r.s.Role())
	require.Contains(t, r.s.Reason(), "refused")

	effects = r.won()
	require.Equal(t, []string{"fence", "start-active"}, kinds(effects),
		"INV-1: no other effect precedes the start")
	spec := effect[StartActive](t, effects).Spec
	require.Equal(t, uint64(3), spec.Term)
	require.True(t, spec.Serve)
	require.False(t, spec.RequireStandby)
	require.Equal(t, RoleActivating, r.s.Role())
	r.report(ActiveReady{})
	require.Equal(t, RoleActiveAlone, r.s.Role())
}

func TestTakeoverAfterSilenceAndReset(t *testing.T) {
	r := standbyPair(t, Settings{})
	require.Equal(t, []string{"stop-follower", "fence", "swap"}, kinds(r.report(FollowerLost{Cause: LostSilence})))

	r = standbyPair(t, Settings{})
	r.now += 5 * time.Second
	require.Empty(t, r.report(FollowerLost{Cause: LostReset}), "the active may reconnect")
	require.Equal(t, RoleStandby, r.s.Role())
	require.Empty(t, r.after(1900*time.Millisecond))
	require.Equal(t, []string{"stop-follower", "fence", "swap"}, kinds(r.after(100*time.Millisecond)))

	r = standbyPair(t, Settings{})
	r.now += 5 * time.Second
	r.report(FollowerLost{Cause: LostReset})
	r.report(FollowerConnected{Config: 5, Term: 2})
	require.Empty(t, r.after(10*time.Second), "the active has reconnected")
}

// While the coordinator is unreachable, the standby does not fence its active, because that would stop all writes.
func TestNoTakeoverWithoutCoordinator(t *testing.T) {
	r := standbyPair(t, Settings{})
	r.observe(false, 0, 1)
	effects := r.report(FollowerLost{Cause: LostSilence})
	require.Equal(t, []Effect{LoadRecord{}}, effects)
	require.Equal(t, RoleStandby, r.s.Role())
	r.step(Loaded{Err: ErrUnreachable})
	require.Empty(t, kinds(r.after(10*time.Second)))
	require.Equal(t, []string{"stop-follower", "fence", "swap"}, kinds(r.step(Loaded{Record: r.s.rec, Revision: 100})))
}

func TestTakeoverLosesSwap(t *testing.T) {
	r := standbyPair(t, Settings{})
	r.report(FollowerLost{Cause: LostSilence})
	require.Equal(t, []Effect{LoadRecord{}}, r.step(Swapped{OpID: r.s.swapping, Err: ErrConflict}))
	rec := recordWith(1, 1)
	rec.Config, rec.OpID = 6, "drop"
	effects := r.step(Loaded{Record: rec, Revision: 101})
	require.Equal(t, []string{"fence", "start-follower"}, kinds(effects))
	require.Equal(t, Fence{Config: 6, Term: 2}, effect[SetFence](t, effects).Fence, "rejects {5, 2}, admits {6, 2}")
	require.Equal(t, RoleCatchingUp, r.s.Role())
	require.Empty(t, kinds(r.report(FollowerLost{Cause: LostRefused})), "not in sync: must not take over")
	require.Empty(t, kinds(r.after(time.Minute)))
}

// INV-8 for a candidate: the swap is retried with the same OpID until the record has changed.
func TestTakeoverUnknownOutcome(t *testing.T) {
	r := standbyPair(t, Settings{})
	first := effect[SwapRecord](t, r.report(FollowerLost{Cause: LostSilence}))
	require.Equal(t, []Effect{LoadRecord{}}, r.step(Swapped{OpID: r.s.swapping, Err: ErrUnknownOutcome}))
	require.Equal(t, RoleCandidate, r.s.Role())
	again := effect[SwapRecord](t, r.step(Loaded{Record: r.s.rec, Revision: 100}))
	require.Equal(t, first, again)
	r.step(Swapped{OpID: r.s.swapping, Err: ErrUnknownOutcome})
	effects := r.step(Loaded{Record: first.Next, Revision: 101})
	require.Equal(t, []string{"fence", "start-active"}, kinds(effects))
}

// An active that was replaced has the roles FENCED and CATCHING_UP, in this order.
func TestActiveIsFenced(t *testing.T) {
	r := activePair(t, Settings{})
	rec := recordWith(1, 1)
	rec.Config, rec.Term, rec.OpID = 7, 4, "takeover"
	effects := r.seeRecord(rec, 200)
	require.Equal(t, []string{"stop-active", "fence", "start-follower"}, kinds(effects))
	require.Equal(t, testNodes[1], effect[StopActive](t, effects).Next)
	require.Equal(t, RoleFenced, r.s.Role())
	require.Contains(t, r.s.Reason(), "b is active")
	r.report(FollowerConnected{Config: 7, Term: 4})
	require.Equal(t, RoleCatchingUp, r.s.Role())
}

func TestLostSwapFencesActive(t *testing.T) {
	r := activePair(t, Settings{})
	r.report(StandbyLost{Node: testNodes[1].ID, Cause: LostSilence})
	require.Equal(t, []Effect{LoadRecord{}}, r.step(Swapped{OpID: r.s.swapping, Err: ErrConflict}))
	require.True(t, r.s.act.sent.RequireStandby)
	rec := recordWith(1, 1)
	rec.Config, rec.Term, rec.OpID = 7, 4, "takeover"
	require.Equal(t, []string{"stop-active", "fence", "start-follower"},
		kinds(r.step(Loaded{Record: rec, Revision: 200})))
}

// When two in-sync nodes restart, the previous active resumes the role.
func TestBothRestart(t *testing.T) {
	// The previous active resumes the role, keeps a live standby in sync, and drops it if it does not connect.
	r := newRig(t, Settings{})
	effects := r.start(usedIdentity(), recordWith(0, 0, 1), 0, 1)
	require.Equal(t, []string{"fence", "swap"}, kinds(effects))
	require.Len(t, effect[SwapRecord](t, effects).Next.InSync, 2)
	require.True(t, effect[StartActive](t, r.won()).Spec.RequireStandby)
	require.Equal(t, RoleActivating, r.s.Role())
	requireNo[SwapRecord](t, r.after(1400*time.Millisecond))
	require.Len(t, effect[SwapRecord](t, r.after(100*time.Millisecond)).Next.InSync, 1)

	// If the previous active is live, the other node leaves the role to it for a second.
	r = newRig(t, Settings{})
	r.start(usedIdentity(), recordWith(1, 0, 1), 0, 1)
	require.Empty(t, r.report(FollowerLost{Cause: LostRefused}))
	require.Empty(t, kinds(r.after(900*time.Millisecond)))
	require.Contains(t, kinds(r.handshake(r.after(100*time.Millisecond))), "swap")

	// The same applies if the lease of the previous active has expired, because both nodes may have been down for
	// longer.
	r = newRig(t, Settings{})
	r.start(usedIdentity(), recordWith(1, 0, 1), 0)
	require.Empty(t, kinds(r.handshake(r.report(FollowerLost{Cause: LostRefused}))))
	require.Contains(t, kinds(r.handshake(r.after(time.Second))), "swap")
}

func TestRestartOfStandbyAlone(t *testing.T) {
	r := newRig(t, Settings{})
	r.start(usedIdentity(), recordWith(1, 1), 0)
	require.Empty(t, kinds(r.report(FollowerLost{Cause: LostRefused})))
	require.Empty(t, kinds(r.after(time.Hour)))
	require.Contains(t, r.s.Reason(), "the active")
	require.Contains(t, r.s.Reason(), r.s.waiting())
}

// A starting node halts on these records. machine_adopt_test.go tests records on which it waits (INV-9).
func TestStartHaltsOnInvalidRecord(t *testing.T) {
	other := recordWith(1, 1)
	other.PairID = uuid.New()
	foreign := usedIdentity()
	foreign.PairID = uuid.Nil
	for name, c := range map[string]struct {
		id   Identity
		load Loaded
		want error
	}{
		"other pair":        {usedIdentity(), Loaded{Record: other, Revision: 1}, ErrOtherPair},
		"data of no pair":   {foreign, Loaded{Record: recordWith(1, 1), Revision: 1}, ErrOtherPair},
		"newer version":     {usedIdentity(), Loaded{Err: ErrRecordVersion}, ErrRecordVersion},
		"record unreadable": {usedIdentity(), Loaded{Err: ErrRecordInvalid}, ErrRecordInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Settings{})
			r.step(Started{Identity: c.id})
			effects := r.step(c.load)
			require.ErrorIs(t, effect[Halt](t, effects).Err, c.want)
			require.Empty(t, kinds(effects))
			require.Empty(t, r.after(time.Hour), "the node has stopped")
		})
	}
}

// A store restored from a backup may start a new pair; its log continues in an unused term.
func TestRestoredStoreBeginsPair(t *testing.T) {
	restored := usedIdentity()
	restored.PairID, restored.Fence, restored.Restored = uuid.Nil, Fence{}, true

	r := newRig(t, Settings{})
	r.step(Started{Identity: restored})
	r.observe(true)
	effects := r.step(Loaded{Err: ErrNoRecord})
	if len(kinds(effects)) == 0 {
		effects = r.after(time.Second)
	}
	first := effect[SwapRecord](t, effects).Next
	require.Equal(t, uint64(3), first.Term, "the log ends in term 2")
	require.Equal(t, []Member{restored.Member()}, first.InSync)

	// The node may stop before it has persisted the pair ID.
	r = newRig(t, Settings{})
	effects = r.start(restored, first)
	require.Equal(t, first.PairID, effect[JoinPair](t, effects).Pair)

	// A record that the node has not written belongs to an empty node that was faster. The restored node waits, and
	// creates a pair when the record is deleted.
	r = newRig(t, Settings{})
	require.Empty(t, kinds(r.start(restored, recordWith(1, 1))))
	require.ErrorIs(t, r.s.refused, ErrRestored)
	effect[LoadRecord](t, r.after(time.Minute))
	effects = r.step(Loaded{Err: ErrNoRecord})
	require.NoError(t, r.s.refused)
	if len(kinds(effects)) == 0 {
		effects = r.after(time.Second)
	}
	require.Equal(t, []Member{restored.Member()}, effect[SwapRecord](t, effects).Next.InSync)
}

// The roles of a running pair do not change when its record is reverted or lost, and no node writes the record.
func TestRecordRevertedOrLost(t *testing.T) {
	for name, ev := range map[string]func(r *rig) Event{
		"missing": func(*rig) Event { return Loaded{Err: ErrNoRecord} },
		"older":   func(*rig) Event { return Loaded{Record: recordWith(1, 1), Revision: 300} },
		"forked": func(r *rig) Event {
			rec := r.s.rec
			rec.OpID = "another's"
			return Loaded{Record: rec, Revision: 300}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := activePair(t, Settings{})
			require.Empty(t, kinds(r.step(ev(r))))
			require.Equal(t, RoleActive, r.s.Role())
			require.True(t, r.s.act.sent.Serve)
			require.NotEmpty(t, r.s.problem)
			requireNo[SwapRecord](t, r.report(StandbyLost{Node: testNodes[1].ID, Cause: LostSilence}))
			requireNo[SwapRecord](t, r.step(ev(r)))
			require.True(t, r.s.act.sent.RequireStandby)
			require.Equal(t, RoleBlocked, r.s.Role())
		})
	}
}

// INV-6: a node that may have lost records leaves in_sync before it acts.
func TestMayHaveLost(t *testing.T) {
	lossy := usedIdentity()
	lossy.MayHaveLost = true

	t.Run("standby leaves in_sync", func(t *testing.T) {
		r := newRig(t, Settings{})
		effects := r.start(lossy, recordWith(1, 0, 1), 0, 1)
		require.Equal(t, []string{"swap"}, kinds(effects))
		require.Equal(t, []Member{memberOf(1)}, effect[SwapRecord](t, effects).Next.InSync)
		require.Equal(t, testNodes[1].ID, effect[SwapRecord](t, effects).Next.Active)
		effects = r.won()
		effect[ClearLoss](t, effects)
		require.Contains(t, kinds(effects), "start-follower")
	})
	t.Run("active leaves in_sync", func(t *testing.T) {
		r := newRig(t, Settings{})
		require.Equal(t, []string{"swap"}, kinds(r.start(lossy, recordWith(0, 0, 1), 0, 1)))
		require.Empty(t, kinds(r.won()))
		require.Contains(t, r.s.Reason(), "take over")
		require.Empty(t, kinds(r.after(time.Hour)))
	})
	t.Run("only member", func(t *testing.T) {
		r := newRig(t, Settings{})
		require.Empty(t, kinds(r.start(lossy, recordWith(0, 0), 0)))
		require.Empty(t, kinds(r.after(time.Hour)))
		require.Equal(t, RoleRecovering, r.s.Role())
		require.Contains(t, r.s.Reason(), "lost acknowledged")
		require.Contains(t, r.s.Reason(), "failover --force")
		require.NotEmpty(t, r.s.startOther())
	})
	t.Run("only member, next to a node that has left", func(t *testing.T) {
		r := newRig(t, Settings{})
		require.Empty(t, kinds(r.start(lossy, recordWith(1, 0), 0, 1)))
		require.Contains(t, r.s.Reason(), "b (b:1)", "a forced failover is rejected while it is running")
		require.Empty(t, r.s.startOther())
		require.Contains(t, r.s.Reason(), "failover --force")
	})
	t.Run("accepted", func(t *testing.T) {
		r := newRig(t, Settings{AcceptLoss: true})
		effects := r.start(lossy, recordWith(0, 0), 0)
		effect[ClearLoss](t, effects)
		effect[Warn](t, effects)
		now := usedIdentity()
		now.Incarnation++
		effects = r.handshake(r.step(IdentityChanged{Identity: now}))
		require.Equal(t, []Member{now.Member()}, effect[SwapRecord](t, effects).Next.InSync)
	})
	t.Run("other store", func(t *testing.T) {
		wiped := Identity{Node: testNodes[0].ID, Store: uuid.New(), Incarnation: 1}
		r := newRig(t, Settings{})
		effects := r.start(wiped, recordWith(1, 0, 1), 0, 1)
		require.Equal(t, []string{"join", "swap"}, kinds(effects))
		require.Equal(t, []Member{memberOf(1)}, effect[SwapRecord](t, effects).Next.InSync)
	})
}

// The active has left the in-sync set (INV-6): the standby takes over immediately.
func TestTakeoverFromLossyActive(t *testing.T) {
	r := standbyPair(t, Settings{})
	rec := recordWith(1, 0)
	rec.Config, rec.OpID = 6, "leave"
	require.Equal(t, []string{"stop-follower", "fence", "swap"}, kinds(r.seeRecord(rec, 101)))
}

// INV-7: a failure of the store stops the node.
func TestStoreFailureStopsNode(t *testing.T) {
	for name, r := range map[string]*rig{"active": activePair(t, Settings{}), "standby": standbyPair(t, Settings{})} {
		err := errors.New("fsync: input/output error")
		got := effect[Halt](t, r.step(Reported{Event: Failed{Err: err}})).Err
		require.ErrorIs(t, got, ErrFailed, name)
		require.ErrorIs(t, got, err, name)
		require.Empty(t, r.after(time.Hour))
	}
}

func TestEventsOfAStoppedRoleAreIgnored(t *testing.T) {
	r := standbyPair(t, Settings{})
	epoch := r.s.epoch
	r.report(FollowerLost{Cause: LostRefused})
	r.won()
	require.Empty(t, r.step(Reported{Epoch: epoch, Event: FollowerLost{Cause: LostSilence}}))
	require.Equal(t, RoleActivating, r.s.Role())
}

func TestActiveChangesAddress(t *testing.T) {
	r := newRig(t, Settings{})
	r.start(usedIdentity(), recordWith(1, 1), 0)
	moved := testNodes[1]
	moved.Address = "elsewhere:2"
	o := Observation{Reachable: true, LiveKnown: true, Live: []Live{{Node: moved}}}
	effects := r.step(Observed{Observation: o})
	require.Equal(t, []string{"stop-follower", "start-follower"}, kinds(effects))
	require.Equal(t, moved, effect[StartFollower](t, effects).Spec.Active)
}
