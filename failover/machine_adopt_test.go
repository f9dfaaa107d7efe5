// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// INV-9: a node whose store has been part of a pair waits while the coordinator has no record, or a record below
// the node's fence. The node does not serve, and continues when the correct record returns.
func TestWaitsForCorrectRecord(t *testing.T) {
	old := recordWith(1, 1)
	old.Config = 3
	for name, c := range map[string]struct {
		load Loaded
		want error
	}{
		"lost": {Loaded{Err: ErrNoRecord}, ErrRecordLost},
		"old":  {Loaded{Record: old, Revision: 1}, ErrRecordOld},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Settings{})
			r.step(Started{Identity: usedIdentity()})
			r.observe(true)
			for range 3 {
				require.Empty(t, kinds(r.step(c.load)))
				require.Equal(t, RoleRecovering, r.s.Role())
				require.ErrorIs(t, r.s.refused, c.want)
				require.Contains(t, r.s.Reason(), "pair adopt")
				if c.load.Err == nil {
					require.Empty(t, kinds(r.seeRecord(c.load.Record, c.load.Revision)))
				}
				effect[LoadRecord](t, r.after(time.Second))
			}
			require.Contains(t, kinds(r.step(Loaded{Record: recordWith(1, 0, 1), Revision: 7})), "start-follower")
			require.NoError(t, r.s.refused)
		})
	}
}

// waiting returns a node that waits because the record is lost.
func waiting(t *testing.T, id Identity) *rig {
	t.Helper()
	r := newRig(t, Settings{})
	r.step(Started{Identity: id})
	r.observe(true, 0, 1)
	r.step(Loaded{Err: ErrNoRecord})
	require.ErrorIs(t, r.s.refused, ErrRecordLost)
	return r
}

func TestAdoptLostRecord(t *testing.T) {
	r := waiting(t, usedIdentity()) // fence 4/2, log end 2/10
	swap := effect[SwapRecord](t, r.step(AdoptRequested{ID: "x", Above: Fence{Config: 9, Term: 6}}))
	require.Zero(t, swap.Expect)
	require.Equal(t, testPair, swap.Next.PairID)
	require.Equal(t, Fence{Config: 10, Term: 7}, swap.Next.Fence(), "above both nodes' fences")
	require.Equal(t, []Member{memberOf(0)}, swap.Next.InSync)
	require.NoError(t, swap.Next.Validate())
	require.Len(t, swap.Next.Nodes, 2)
	require.ErrorIs(t, effect[AdoptEnded](t, r.step(AdoptRequested{ID: "y"})).Failure, errAdoptBusy)

	effects := r.step(Swapped{OpID: swap.Next.OpID, Revision: 1})
	require.Equal(t, AdoptEnded{ID: "x"}, effect[AdoptEnded](t, effects))
	require.Contains(t, kinds(effects), "start-active")
	r.report(ActiveReady{})
	require.Equal(t, RoleActiveAlone, r.s.Role())
	require.NoError(t, r.s.refused)
	require.Equal(t, uint64(7), r.s.act.term)
}

// An adoption without the other node discards that node's additional log records. The cluster record states this.
// Otherwise, that node would refuse to truncate log records it knows to be committed (INV-13).
func TestAdoptWithoutTheOtherNode(t *testing.T) {
	id := usedIdentity()
	id.Committed = 8
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	swap := effect[SwapRecord](t, waiting(t, id).step(AdoptRequested{ID: "x", WithoutOther: true, At: at}))
	f := swap.Next.Forced
	require.NotNil(t, f)
	require.Equal(t, uint64(8), f.After, "later records are not known to be committed")
	require.Equal(t, swap.Next.Term, f.Term)
	require.Equal(t, swap.Next.Active, f.Node)
	require.Equal(t, at, f.At)
	require.False(t, f.Settled)

	swap = effect[SwapRecord](t, waiting(t, id).step(AdoptRequested{ID: "x", At: at}))
	require.Nil(t, swap.Next.Forced, "the other node reports no additional records")

	old := recordWith(1, 1)
	old.Config = 3
	old.Forced = &Forced{Node: old.Active, Term: 2, After: 5}
	swap = effect[SwapRecord](t, waiting(t, id).step(
		AdoptRequested{ID: "x", Found: old, Revision: 41, WithoutOther: true, At: at}))
	require.Equal(t, uint64(5), swap.Next.Forced.After, "the earlier forced failover is not settled")
}

func TestAdoptOldRecord(t *testing.T) {
	old := recordWith(1, 1)
	old.Config, old.Term = 3, 8 // an impossible term, which is tolerated
	r := newRig(t, Settings{})
	r.step(Started{Identity: usedIdentity()})
	r.observe(true)
	r.step(Loaded{Record: old, Revision: 41})
	require.ErrorIs(t, r.s.refused, ErrRecordOld)
	swap := effect[SwapRecord](t, r.step(AdoptRequested{ID: "x", Found: old, Revision: 41}))
	require.Equal(t, Revision(41), swap.Expect)
	require.Equal(t, Fence{Config: 5, Term: 9}, swap.Next.Fence())

	// Another node was faster: the adoption has no effect, and the new record applies.
	require.ErrorIs(t, effect[AdoptEnded](t, r.step(Swapped{OpID: swap.Next.OpID, Err: ErrConflict})).Failure, ErrAdopt)
	require.Equal(t, RoleRecovering, r.s.Role())
	effect[LoadRecord](t, r.after(time.Second))
	require.Contains(t, kinds(r.step(Loaded{Record: recordWith(1, 0, 1), Revision: 42})), "start-follower")
}

// INV-8: an adoption without a response may have been applied.
func TestAdoptUnknownOutcome(t *testing.T) {
	for _, done := range []bool{true, false} {
		r := waiting(t, usedIdentity())
		swap := effect[SwapRecord](t, r.step(AdoptRequested{ID: "x"}))
		effects := r.step(Swapped{OpID: swap.Next.OpID, Err: ErrUnknownOutcome})
		require.ErrorIs(t, effect[AdoptEnded](t, effects).Failure, ErrUnknownOutcome)
		require.Equal(t, RoleRecovering, r.s.Role())
		r.after(time.Second)
		if done {
			require.Contains(t, kinds(r.step(Loaded{Record: swap.Next, Revision: 1})), "start-active")
			continue
		}
		r.step(Loaded{Err: ErrNoRecord})
		require.ErrorIs(t, r.s.refused, ErrRecordLost)
		again := effect[SwapRecord](t, r.step(AdoptRequested{ID: "y"}))
		// The first swap is applied late.
		require.Contains(t, kinds(r.seeRecord(swap.Next, 1)), "start-active")
		require.NotEqual(t, swap.Next.OpID, again.Next.OpID)
		require.Error(t, effect[AdoptEnded](t, r.step(Swapped{OpID: again.Next.OpID, Err: ErrConflict})).Failure)
		require.Equal(t, RoleActivating, r.s.Role())
	}
}

func TestAdoptRefusals(t *testing.T) {
	fails := func(r *rig, e AdoptRequested, want error) {
		t.Helper()
		e.ID = "x"
		effects := r.step(e)
		err := effect[AdoptEnded](t, effects).Failure
		require.ErrorIs(t, err, ErrAdopt)
		require.ErrorIs(t, err, want)
		require.Empty(t, kinds(effects))
	}
	good := recordWith(1, 0, 1)
	fails(waiting(t, usedIdentity()), AdoptRequested{Found: good, Revision: 5}, errAdoptFine)
	other := recordWith(1, 1)
	other.PairID = uuid.New()
	fails(waiting(t, usedIdentity()), AdoptRequested{Found: other, Revision: 5}, ErrOtherPair)
	follower := newRig(t, Settings{})
	follower.start(usedIdentity(), good, 0, 1)
	fails(follower, AdoptRequested{}, errAdoptStandby)
	empty := newRig(t, Settings{})
	empty.step(Started{Identity: Identity{Node: testNodes[0].ID, Store: testStores[0], Incarnation: 1}})
	fails(empty, AdoptRequested{}, errAdoptNoPair)
}

// INV-6: an incomplete store is adopted only if the operator accepts the loss, and under a new incarnation.
func TestAdoptWithLoss(t *testing.T) {
	id := usedIdentity()
	id.MayHaveLost = true
	r := waiting(t, id)
	effects := r.step(AdoptRequested{ID: "x"})
	require.ErrorIs(t, effect[AdoptEnded](t, effects).Failure, errAdoptLoss)
	effects = r.step(AdoptRequested{ID: "x", AcceptLoss: true})
	effect[ClearLoss](t, effects)
	requireNo[SwapRecord](t, effects)
	id.MayHaveLost, id.Incarnation = false, 2
	swap := effect[SwapRecord](t, r.step(IdentityChanged{Identity: id}))
	require.Equal(t, []Member{id.Member()}, swap.Next.InSync)
	require.Contains(t, kinds(r.won()), "start-active")
}

// A running active writes the same record again: its standby stays in sync, and clients are not affected.
func TestAdoptByRunningActive(t *testing.T) {
	r := activePair(t, Settings{})
	r.step(Observed{
		Observation: Observation{Missing: true, Reachable: true, Live: r.s.live, LiveKnown: true},
		LeaseUntil:  r.s.leaseUntil,
	})
	r.step(Loaded{Err: ErrNoRecord})
	require.Contains(t, r.s.Reason(), "is missing")
	before := r.s.rec
	swap := effect[SwapRecord](t, r.step(AdoptRequested{ID: "x"}))
	require.Equal(t, before.Config+1, swap.Next.Config)
	require.Equal(t, before.Term, swap.Next.Term)
	require.Equal(t, before.InSync, swap.Next.InSync)
	effects := r.step(Swapped{OpID: swap.Next.OpID, Revision: 1})
	require.Equal(t, AdoptEnded{ID: "x"}, effect[AdoptEnded](t, effects))
	require.Empty(t, kinds(effects)[1:], "only the fence")
	require.Equal(t, RoleActive, r.s.Role())
	require.Empty(t, r.s.Reason())
}

// An active whose last swap received no response before the record was lost may have been replaced by that swap. The
// error describes the remedy.
func TestAdoptByActiveWithAnUnknownOutcome(t *testing.T) {
	r := activePair(t, Settings{})
	swap := effect[SwapRecord](t, r.report(StandbyLost{Node: testNodes[1].ID, Cause: LostSilence}))
	r.step(Swapped{OpID: swap.Next.OpID, Err: ErrUnknownOutcome})
	for range 3 {
		r.step(Loaded{Err: ErrNoRecord})
		require.ErrorIs(t, effect[AdoptEnded](t, r.step(AdoptRequested{ID: "x"})).Failure, errAdoptUnknown)
		r.after(time.Minute)
	}
	require.False(t, r.s.act.sent.Serve, "INV-8")
}

// A node that has joined a pair, but has no records, creates no other pair when the record is lost, because the node
// with the messages could not rejoin. It does not join another pair either.
func TestJoinedButEmptyStore(t *testing.T) {
	joined := Identity{Node: testNodes[0].ID, Store: testStores[0], Incarnation: 1, PairID: testPair}
	r := waiting(t, joined)
	for range 3 {
		require.Empty(t, kinds(r.after(time.Second)))
		require.Empty(t, kinds(r.step(Loaded{Err: ErrNoRecord})))
	}
	other := recordWith(1, 1)
	other.PairID = uuid.New()
	require.ErrorIs(t, effect[Halt](t, r.seeRecord(other, 5)).Err, ErrOtherPair)

	// The node continues with its pair's record.
	r = waiting(t, joined)
	require.Contains(t, kinds(r.seeRecord(recordWith(1, 1), 5)), "start-follower")
}
