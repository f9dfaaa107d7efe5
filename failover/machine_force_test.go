// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// leftStandby returns a standby a that is not in sync. Its active b has terminated, and b's lease has expired.
func leftStandby(t *testing.T, set Settings) *rig {
	t.Helper()
	r := newRig(t, set)
	r.start(usedIdentity(), recordWith(1, 1), 0)
	r.report(FollowerLost{Cause: LostRefused})
	require.Equal(t, RoleCatchingUp, r.s.Role())
	requireNo[SwapRecord](t, r.after(time.Hour))
	return r
}

// forceRequest returns a request with the config of the node's record.
func forceRequest(r *rig) ForceRequested {
	return ForceRequested{
		ID: "x", Config: r.s.rec.Config, End: usedIdentity().End, Committed: 7,
		At: time.Unix(100, 0).UTC(), By: "ann", Reason: "b is lost",
	}
}

// Apart from the membership, a forced failover is a takeover: the node stops following, raises its fence, swaps in a
// new term, and only then becomes active.
func TestForced(t *testing.T) {
	r := leftStandby(t, Settings{})
	effects := r.step(forceRequest(r))
	require.Equal(t, []string{"stop-follower", "fence", "swap"}, kinds(effects), "INV-4, except for the in-sync set")
	require.Contains(t, effect[Warn](t, effects).Text, "by ann")
	require.Equal(t, Fence{Config: 5, Term: 3}, effect[SetFence](t, effects).Fence)
	require.Equal(t, RoleCandidate, r.s.Role())
	swap := effect[SwapRecord](t, effects)
	require.Equal(t, Revision(100), swap.Expect)
	require.NoError(t, swap.Next.Validate())
	require.Equal(t, Fence{Config: 6, Term: 3}, swap.Next.Fence())
	require.Equal(t, []Member{memberOf(0)}, swap.Next.InSync)
	require.Equal(t, Forced{
		At: time.Unix(100, 0).UTC(), By: "ann", Reason: "b is lost", Node: testNodes[0].ID,
		Term: 3, After: 10,
	}, *swap.Next.Forced)
	require.Len(t, swap.Next.Nodes, 2, "the record still describes the lost node")
	require.ErrorIs(t, effect[ForceEnded](t, r.step(forceRequest(r))).Failure, errForceBusy)

	effects = r.won()
	require.Equal(t, ForceEnded{ID: "x"}, effect[ForceEnded](t, effects))
	require.Equal(t, []string{"fence", "start-active"}, kinds(effects))
	r.report(ActiveReady{})
	require.Equal(t, RoleActiveAlone, r.s.Role())

	// The other node returns and is added to in_sync, after its discarded records were truncated.
	r.report(StandbyConnected{Member: memberOf(1)})
	cfg := effect[ConfigureActive](t, r.report(StandbyCaughtUp{Member: memberOf(1)})).Config
	swap = effect[SwapRecord](t, r.report(StandbySynced{Member: memberOf(1), Requirement: cfg.Requirement}))
	require.True(t, swap.Next.Forced.Settled)
	require.False(t, r.s.rec.Forced.Settled, "a record is not modified in place")
}

// A forced failover and its dry run are rejected in these states.
func TestForceRefusals(t *testing.T) {
	fails := func(r *rig, want error) {
		t.Helper()
		before := r.s.rec
		only := forceRequest(r)
		only.DryRun = true
		require.ErrorIs(t, effect[ForceEnded](t, r.step(only)).Failure, want)
		effects := r.step(forceRequest(r))
		require.ErrorIs(t, effect[ForceEnded](t, effects).Failure, ErrForce)
		require.ErrorIs(t, effect[ForceEnded](t, effects).Failure, want)
		require.Empty(t, kinds(effects))
		require.Equal(t, before, r.s.rec)
	}
	fails(activePair(t, Settings{}), errForceActive)
	fails(standbyPair(t, Settings{}), errForceInSync)
	fails(waiting(t, usedIdentity()), errForceRecord)

	r := standbyPair(t, Settings{})
	paused := r.s.rec
	paused.Config, paused.OpID, paused.Paused = 6, "pause", &Pause{}
	r.seeRecord(paused, 101)
	fails(r, errForcePaused)

	r = leftStandby(t, Settings{})
	r.observe(true, 0, 1)
	fails(r, ErrOtherLives) // INV-4: only one active
	r.observe(false, 0)
	fails(r, errForceCoordinator)

	r = newRig(t, Settings{})
	r.start(usedIdentity(), recordWith(1, 1), 0)
	r.report(FollowerConnected{Config: 5, Term: 2})
	fails(r, errForceConnected)

	r = leftStandby(t, Settings{})
	e := forceRequest(r)
	e.DryRun = true
	require.Equal(t, []Effect{ForceEnded{ID: "x"}}, r.step(e), "a dry run changes nothing")
	e.DryRun = false
	e.Config--
	require.ErrorIs(t, effect[ForceEnded](t, r.step(e)).Failure, errForceChanged)
}

// If another node has written the record, the forced failover fails, and the node continues as before.
func TestForceLosesTheSwap(t *testing.T) {
	r := leftStandby(t, Settings{})
	swap := effect[SwapRecord](t, r.step(forceRequest(r)))
	r.step(Swapped{OpID: swap.Next.OpID, Err: ErrConflict})
	back := recordWith(1, 1)
	back.Config, back.Term, back.OpID = 6, 3, "it started again"
	effects := r.step(Loaded{Record: back, Revision: 101})
	require.ErrorIs(t, effect[ForceEnded](t, effects).Failure, errForceChanged)
	require.Equal(t, []string{"start-follower"}, kinds(effects), "the node follows the old active in its new term")
	require.Equal(t, forcing{}, r.s.forces)
}

// INV-8: a swap without a response is sent again, and the failover succeeds if it was applied. After the operator's
// request has timed out, the unchanged record is written again, so that the swap cannot be applied later.
func TestForceUnknownOutcome(t *testing.T) {
	unknown := func() (*rig, Record) {
		r := leftStandby(t, Settings{})
		swap := effect[SwapRecord](t, r.step(forceRequest(r)))
		effect[LoadRecord](t, r.step(Swapped{OpID: swap.Next.OpID, Err: ErrUnknownOutcome}))
		return r, swap.Next
	}
	r, next := unknown()
	effects := r.step(Loaded{Record: next, Revision: 101})
	require.Equal(t, ForceEnded{ID: "x"}, effect[ForceEnded](t, effects))
	require.Contains(t, kinds(effects), "start-active")

	r, next = unknown()
	require.Equal(t, next, effect[SwapRecord](t, r.step(Loaded{Record: r.s.rec, Revision: 100})).Next,
		"a retry, identified by its OpID")
	r.step(Swapped{OpID: next.OpID, Err: ErrUnknownOutcome})
	r.step(Loaded{Err: ErrUnreachable})
	err := effect[ForceEnded](t, r.after(time.Minute)).Failure
	require.ErrorIs(t, err, ErrForce)
	require.ErrorIs(t, err, ErrUnknownOutcome)
	again := effect[SwapRecord](t, r.step(Loaded{Record: r.s.rec, Revision: 100})).Next
	require.Equal(t, testNodes[1].ID, again.Active)
	require.Equal(t, uint64(2), again.Term)
	require.Equal(t, uint64(6), again.Config)
	effects = r.won()
	requireNo[ForceEnded](t, effects)
	require.Contains(t, kinds(effects), "start-follower")
	require.Equal(t, forcing{}, r.s.forces)

	// The swap was applied late: this node has the role.
	r, next = unknown()
	r.step(Loaded{Err: ErrUnreachable})
	r.after(time.Minute)
	require.Contains(t, kinds(r.step(Loaded{Record: next, Revision: 101})), "start-active")
}

// The coordinator rejects the swap: the operator receives the reason, and nothing is applied later.
func TestForceRefusedByCoordinator(t *testing.T) {
	r := leftStandby(t, Settings{})
	swap := effect[SwapRecord](t, r.step(forceRequest(r)))
	r.step(Swapped{OpID: swap.Next.OpID, Err: ErrRefused})
	for range 3 {
		if e := r.after(time.Second); len(e) > 0 {
			r.step(Swapped{OpID: effect[SwapRecord](t, e).Next.OpID, Err: ErrRefused})
		}
	}
	effects := r.after(time.Minute)
	failure := effect[ForceEnded](t, effects).Failure
	require.ErrorIs(t, failure, errForceTime)
	require.Contains(t, failure.Error(), ErrRefused.Error())
	effects = append(effects, r.after(time.Second)...)
	require.Contains(t, kinds(effects), "start-follower")
	requireNo[SwapRecord](t, effects)
}

// INV-6: the only in-sync store may be incomplete. A forced failover continues with it, under a new incarnation.
func TestForceAfterALoss(t *testing.T) {
	id := usedIdentity()
	id.MayHaveLost = true
	r := newRig(t, Settings{})
	r.start(id, recordWith(0, 0), 0)
	require.Equal(t, RoleRecovering, r.s.Role())
	require.Contains(t, r.s.Reason(), "failover --force")
	effects := r.step(forceRequest(r))
	requireNo[ClearLoss](t, effects) // MayHaveLost must persist if the attempt fails
	swap := effect[SwapRecord](t, effects)
	effects = r.won()
	effect[ClearLoss](t, effects)
	requireNo[StartActive](t, effects)
	id.MayHaveLost, id.Incarnation = false, 2
	require.Equal(t, []Member{id.Member()}, swap.Next.InSync)
	require.Contains(t, kinds(r.step(IdentityChanged{Identity: id})), "start-active")
}

// The active that was considered lost is running. It yields the role, logs a warning, and follows.
func TestForcedActiveYields(t *testing.T) {
	r := newRig(t, Settings{})
	r.start(usedIdentity(), recordWith(0, 0), 0)
	r.won()
	r.report(ActiveReady{})
	forced := recordWith(1, 1)
	forced.Config, forced.Term, forced.OpID = r.s.rec.Config+1, r.s.rec.Term+1, "force"
	forced.Forced = &Forced{By: "ann", Node: testNodes[1].ID, Term: forced.Term, After: 7}
	effects := r.seeRecord(forced, 200)
	require.Equal(t, []string{"stop-active", "fence", "start-follower"}, kinds(effects))
	require.Contains(t, effect[Warn](t, effects).Text, "after LSN 7")
	require.Equal(t, forced.Forced, effect[StartFollower](t, effects).Spec.Forced)
}

// The end of a log in an older term may differ from the acknowledged history.
func TestForcedInALaterTerm(t *testing.T) {
	rec := recordWith(1, 1)
	rec.Term = 5
	r := newRig(t, Settings{})
	r.start(usedIdentity(), rec, 0)
	r.report(FollowerLost{Cause: LostRefused})
	require.Equal(t, uint64(7), effect[SwapRecord](t, r.step(forceRequest(r))).Next.Forced.After)
}

// After two forced failovers without an in-sync standby in between, a returning node may have records from before
// the first forced failover.
func TestForcedTwice(t *testing.T) {
	for settled, after := range map[bool]uint64{false: 4, true: 10} {
		rec := recordWith(1, 1)
		rec.Forced = &Forced{Node: uuid.New(), Term: 2, After: 4, Settled: settled}
		r := newRig(t, Settings{})
		r.start(usedIdentity(), rec, 0)
		r.report(FollowerLost{Cause: LostRefused})
		require.Equal(t, after, effect[SwapRecord](t, r.step(forceRequest(r))).Next.Forced.After)
	}
}
