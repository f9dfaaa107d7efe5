// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// A standby was downgraded to a release without generations while the record lists its generation. Its acks do not
// count, so it is not considered connected: it is dropped, and joins again.
func TestDowngradedStandbyIsDropped(t *testing.T) {
	r := newRig(t, Settings{})
	r.start(genIdentity(genBefore, uuid.Nil), withGens(recordWith(0, 0, 1), genBefore, genOfB), 0, 1)
	r.won()
	r.report(ActiveReady{})
	older := memberOf(1) // no generation
	r.report(StandbyConnected{Member: older})
	r.report(StandbyCaughtUp{Member: older})
	if r.s.swapping == "" {
		r.after(time.Minute)
	}
	require.NotEmpty(t, r.s.swapping, "%v %s", r.s.Role(), r.s.Reason())
	r.won()
	for range 5 {
		if r.s.swapping != "" {
			r.won()
		}
		r.report(StandbySynced{Member: older, Requirement: r.s.act.sent.Requirement})
	}
	require.Equal(t, RoleActive, r.s.Role(), r.s.Reason())
	other, _ := r.s.rec.Other(testNodes[0].ID)
	require.Equal(t, older, other)
}

// A standby restarts while the active still has the connection to its previous generation, and replaces that
// generation in the record. Earlier acks do not make the active list the previous generation again, which would
// supersede the new generation.
func TestFormerGenerationIsNotListedAgain(t *testing.T) {
	r := newGenRig(t)
	r.start(genIdentity(genBefore, uuid.Nil), withGens(recordWith(0, 0, 1), genBefore, genOfB), 0, 1)
	r.won()
	r.report(ActiveReady{})
	former := memberOf(1).WithGeneration(genOfB)
	r.report(StandbyConnected{Member: former})
	r.report(StandbyCaughtUp{Member: former})
	r.report(StandbySynced{Member: former, Requirement: r.s.act.sent.Requirement})
	require.Equal(t, RoleActive, r.s.Role(), r.s.Reason())
	names := func(run uuid.UUID) {
		t.Helper()
		other, ok := r.s.rec.Other(testNodes[0].ID)
		require.True(t, ok, r.s.Reason())
		require.Equal(t, run, other.Generation)
	}
	names(genOfB)

	r.seeRecord(next(withGens(r.s.rec, r.s.proc.id, genTried), "b/7/0"), 200)
	for range 5 {
		if r.s.swapping != "" {
			swap := r.s.pending[len(r.s.pending)-1]
			b, _ := swap.Member(testNodes[1].ID)
			require.NotEqual(t, genOfB, b.Generation, "the former generation is listed again")
			r.won()
		}
		r.report(StandbySynced{Member: former, Requirement: r.s.act.sent.Requirement})
	}
	later := memberOf(1).WithGeneration(genTried)
	r.report(StandbyConnected{Member: later})
	r.report(StandbyCaughtUp{Member: later})
	for range 5 {
		if r.s.swapping != "" {
			r.won()
		}
		r.report(StandbySynced{Member: later, Requirement: r.s.act.sent.Requirement})
	}
	require.Equal(t, RoleActive, r.s.Role(), r.s.Reason())
	names(genTried)
}

// The mark outlives the record. An adopted record has a term above the mark, because otherwise each restart would treat
// the node's directory as an older copy.
func TestAdoptAboveTheMark(t *testing.T) {
	old := Mark{Pair: testPair, By: 15, Term: 15, LSN: 900}
	r := newRig(t, Settings{})
	r.step(Started{Identity: usedIdentity()})
	r.observe(true, 0, 1)
	r.step(Loaded{Err: ErrNoRecord, Mark: old})
	swap := effect[SwapRecord](t, r.step(AdoptRequested{ID: "x", WithoutOther: true}))
	rec := swap.Next
	r.step(Swapped{OpID: swap.Next.OpID, Revision: 1})
	id := r.s.ident

	r = newRig(t, Settings{})
	r.step(Started{Identity: id})
	r.observe(true, 0)
	effects := r.step(Loaded{Record: rec, Revision: 1, Mark: old})
	requireNo[MarkLoss](t, effects)
	effect[SwapRecord](t, effects)
	require.Empty(t, r.s.proc.rolledBack)
}

// After an operator has accepted the loss, the directory is no longer reported as an older copy.
func TestForcedRolledBack(t *testing.T) {
	r := newGenRig(t)
	r.start(genIdentity(genBefore, uuid.Nil), withGens(recordWith(0, 0), genOther, uuid.Nil), 0)
	require.NotEmpty(t, r.s.proc.rolledBack)
	effect[SwapRecord](t, r.step(forceRequest(r)))
	effect[ClearLoss](t, r.won())
	cleared := r.s.ident
	cleared.MayHaveLost, cleared.Incarnation = false, cleared.Incarnation+1
	effects := r.step(IdentityChanged{Identity: cleared})
	effect[StartActive](t, effects)
	effect[ConfirmGeneration](t, effects)
	require.Empty(t, r.s.proc.rolledBack)
	require.True(t, r.s.proc.named)
}

// A swap of a killed generation is applied after the next generation was claimed. If the next generation is also
// killed before it is listed, the one after it still recognizes the generation in the record.
func TestLateSwapOfPreviousGeneration(t *testing.T) {
	r := newGenRig(t)
	r.start(genIdentity(genBefore, genTried), withGens(recordWith(0, 0), genBefore, uuid.Nil), 0)
	require.NotEmpty(t, r.s.swapping)
	late := next(withGens(r.s.rec, genTried, uuid.Nil), "late")
	late.Term++
	r.seeRecord(late, 101)
	disk := r.s.ident

	r = newGenRig(t)
	r.s.process, r.s.proc.id = "q", generationOf("q")
	effects := r.start(disk, late, 0)
	requireNo[MarkLoss](t, effects)
	require.Empty(t, r.s.proc.rolledBack)
}

// A machine that crashed with sync off has lost the end of its log. It is not reported as an older copy.
func TestLossIsNotAnOlderImage(t *testing.T) {
	id := usedIdentity()
	id.MayHaveLost = true
	r := newRig(t, Settings{})
	r.step(Started{Identity: id})
	r.observe(true, 0)
	r.step(Loaded{Record: recordWith(0, 0), Revision: 100, Mark: Mark{Pair: testPair, By: 2, Term: 2, LSN: 11}})
	require.Empty(t, r.s.proc.rolledBack)
	require.Contains(t, r.s.Reason(), "lost acknowledged")
}

// A process that does not participate cannot be activated by an operator's command.
func TestExcludedProcessIsNotActivated(t *testing.T) {
	elsewhere := testNodes[0]
	elsewhere.Address = "a:2"
	stale := Live{Node: elsewhere, Process: "other"}
	begin := func(t *testing.T, l Loaded) *rig {
		t.Helper()
		r := newRig(t, Settings{})
		r.step(Started{Identity: usedIdentity()})
		r.step(Observed{Observation: Observation{Reachable: true, LiveKnown: true, Live: []Live{stale}}})
		r.step(l)
		return r
	}
	t.Run("adopt, next to a process that may be running", func(t *testing.T) {
		effects := begin(t, Loaded{Err: ErrNoRecord}).step(AdoptRequested{ID: "x"})
		requireNo[SwapRecord](t, effects)
		require.Error(t, effect[AdoptEnded](t, effects).Failure)
	})
	t.Run("adopt, next to a running process", func(t *testing.T) {
		r := begin(t, Loaded{Err: ErrNoRecord})
		r.step(HandshakeDone{Address: "a:2", Peer: Peer{Node: testNodes[0].ID, Process: "other"}})
		effects := r.step(AdoptRequested{ID: "x"})
		requireNo[SwapRecord](t, effects)
		failure := effect[AdoptEnded](t, effects).Failure
		require.ErrorIs(t, failure, ErrAdopt)
		require.Equal(t, "a:2", r.s.proc.copyOf)
		require.Contains(t, failure.Error(), "duplicate")
	})
	t.Run("force", func(t *testing.T) {
		r := begin(t, Loaded{Record: recordWith(1, 1), Revision: 100})
		r.step(HandshakeDone{Address: "a:2", Peer: Peer{Node: testNodes[0].ID, Process: "other"}})
		failure := effect[ForceEnded](t, r.step(forceRequest(r))).Failure
		require.ErrorIs(t, failure, ErrForce)
		require.Equal(t, "a:2", r.s.proc.copyOf)
		require.Contains(t, failure.Error(), "duplicate")
	})
}

// While a duplicate process is being queried, another one announces itself.
func TestSecondDuplicateDuringHandshake(t *testing.T) {
	at := func(address, process string) Observed {
		n := testNodes[0]
		n.Address = address
		return Observed{Observation: Observation{
			Reachable: true, LiveKnown: true,
			Live: []Live{{Node: n, Process: process}},
		}}
	}
	r := newRig(t, Settings{})
	r.step(Started{Identity: usedIdentity()})
	require.Equal(t, "a:2", effect[Handshake](t, r.step(at("a:2", "x"))).Address)
	r.step(at("a:3", "y"))
	r.step(HandshakeDone{Address: "a:2", Gone: true, Err: ErrGone})
	require.Equal(t, "a:3", effect[Handshake](t, r.after(time.Minute)).Address)
	r.step(HandshakeDone{Address: "a:3", Peer: Peer{Node: testNodes[0].ID, Process: "y"}})
	require.Equal(t, "a:3", r.s.proc.copyOf)
	require.Equal(t, r.s.proc.superseded, r.s.Reason())
}

// With a record that lists no generation, the directory is no longer reported as an older copy when the node has
// fetched the missing records.
func TestRollbackEndsWithOlderRelease(t *testing.T) {
	r := newRig(t, Settings{})
	r.step(Started{Identity: usedIdentity()})
	r.observe(true, 0, 1)
	r.step(Loaded{Record: recordWith(1, 0, 1), Revision: 100, Mark: Mark{Pair: testPair, By: 2, Term: 2, LSN: 11}})
	require.NotEmpty(t, r.s.proc.rolledBack)
	effect[ClearLoss](t, r.won())
	cleared := r.s.ident
	cleared.MayHaveLost, cleared.Incarnation = false, cleared.Incarnation+1
	r.step(IdentityChanged{Identity: cleared})
	require.NotEmpty(t, r.s.proc.rolledBack, "the node has left in_sync, and has not fetched records yet")
	rec := next(r.s.rec, "b/7/0")
	me := memberOf(0)
	me.Incarnation = cleared.Incarnation
	rec.InSync = append(slices.Clone(rec.InSync), me)
	r.seeRecord(rec, 102)
	require.Empty(t, r.s.proc.rolledBack)
}

// The correct record returns before the adoption. The directory is then compared with the pair's mark, as at any start.
func TestRecordReturnsBeforeAdoption(t *testing.T) {
	r := waiting(t, usedIdentity())
	swap := effect[SwapRecord](t, r.step(AdoptRequested{ID: "x"}))
	r.step(Swapped{OpID: swap.Next.OpID, Err: ErrConflict})
	effects := r.step(Loaded{
		Record: recordWith(0, 0, 1), Revision: 100,
		Mark: Mark{Pair: testPair, By: 2, Term: 2, LSN: 11},
	})
	require.NotEmpty(t, r.s.proc.rolledBack)
	effect[MarkLoss](t, effects)
}

// While the coordinator is out of space, a restarted standby reports why it does not follow.
func TestStandbyNotListedYet(t *testing.T) {
	r := newGenRig(t)
	r.start(genIdentity(genBefore, uuid.Nil), withGens(recordWith(1, 0, 1), genBefore, genOfB), 0, 1)
	r.step(Swapped{OpID: r.s.swapping, Err: ErrRefused})
	require.Contains(t, r.s.Reason(), "process generation")
	require.Contains(t, r.s.Reason(), ErrRefused.Error())
}

// Pending operator requests fail when this process is superseded.
func TestSupersededFailsPendingRequests(t *testing.T) {
	r := newGenRig(t)
	r.start(genIdentity(genBefore, uuid.Nil), withGens(recordWith(1, 0, 1), genBefore, genOfB), 0, 1)
	r.won()
	r.report(FollowerConnected{Config: 6, Term: 2})
	require.Equal(t, RoleStandby, r.s.Role())
	r.step(SwitchoverRequested{ID: "s"})
	effects := r.seeRecord(next(withGens(r.s.rec, genOther, genOfB), "c"), 102)
	require.Contains(t, effect[SwitchoverEnded](t, effects).Failure, "superseded")
}
