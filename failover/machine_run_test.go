// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// Generations of runs of a's and b's stores before the one under test.
var (
	runBefore = uuid.MustParse("a0a0a0a0-0000-0000-0000-000000000000")
	runTried  = uuid.MustParse("a1a1a1a1-0000-0000-0000-000000000000")
	runOther  = uuid.MustParse("cccccccc-0000-0000-0000-000000000000")
	runOfB    = uuid.MustParse("b0b0b0b0-0000-0000-0000-000000000000")
)

// newRunRig is a rig of two nodes of this release.
func newRunRig(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, Settings{})
	r.features = KnownFeatures()
	return r
}

// knowing gives the nodes of a record the features of this build.
func knowing(rec Record) Record {
	rec = rec.Clone()
	for i := range rec.Nodes {
		rec.Nodes[i].Features = KnownFeatures()
	}
	return rec
}

// inRuns names runs in the entries of a and b.
func inRuns(rec Record, a, b uuid.UUID) Record {
	rec = knowing(rec)
	for i := range rec.InSync {
		rec.InSync[i].Run = map[uuid.UUID]uuid.UUID{testNodes[0].ID: a, testNodes[1].ID: b}[rec.InSync[i].Node]
	}
	return rec
}

// ranIdentity is usedIdentity after runs that claimed generations.
func ranIdentity(run, claimed uuid.UUID) Identity {
	id := usedIdentity()
	id.Run, id.ClaimedRun = run, claimed
	return id
}

// next is the record by which the coordinator answers the last swap's place.
func next(rec Record, op string) Record {
	rec = rec.Clone()
	rec.Config++
	rec.OpID = op
	return rec
}

// TestRunRenewed: each start claims a generation before it takes part, names it in the record, and notes when that is
// done.
func TestRunRenewed(t *testing.T) {
	for _, c := range []struct {
		name         string
		run, claimed uuid.UUID // on the disk
		named        uuid.UUID // in the record
	}{
		{"named", runBefore, uuid.Nil, runBefore},
		{"stopped before it knew that it was named", runBefore, runTried, runTried},
		{"stopped before it was named", runBefore, runTried, runBefore},
		{"by a release that knows no runs", uuid.Nil, uuid.Nil, uuid.Nil},
	} {
		t.Run(c.name+", active", func(t *testing.T) {
			r := newRunRig(t)
			effects := r.start(ranIdentity(c.run, c.claimed), inRuns(recordWith(0, 0), c.named, uuid.Nil), 0)
			claim := effect[ClaimRun](t, effects)
			require.Equal(t, runOf("p"), claim.Run)
			if c.named != uuid.Nil {
				require.Equal(t, c.named, claim.Named, "whatever happens next, the record's run is still on the disk")
			}
			swap := effect[SwapRecord](t, effects)
			require.Equal(t, runOf("p"), swap.Next.InSync[0].Run, "the record names this run")
			effects = r.won()
			require.Equal(t, ConfirmRun{Run: runOf("p")}, effect[ConfirmRun](t, effects))
			effect[StartActive](t, effects)
		})
		t.Run(c.name+", standby", func(t *testing.T) {
			r := newRunRig(t)
			effects := r.start(ranIdentity(c.run, c.claimed), inRuns(recordWith(1, 1, 0), c.named, runOfB), 0, 1)
			effect[ClaimRun](t, effects)
			if c.named != uuid.Nil {
				requireNo[StartFollower](t, effects) // its acks would not count
			}
			swap := effect[SwapRecord](t, effects)
			require.Equal(t, recordWith(1).Active, swap.Next.Active)
			me, _ := swap.Next.Member(testNodes[0].ID)
			require.Equal(t, runOf("p"), me.Run)
			effects = r.won()
			effect[ConfirmRun](t, effects)
			require.Equal(t, RoleStandby, r.s.Role())
		})
	}
}

// TestRunNotNamedBesideAnOlderRelease: a node of the release before drops generations when it writes the record.
func TestRunNotNamedBesideAnOlderRelease(t *testing.T) {
	r := newRig(t, Settings{})
	effects := r.start(ranIdentity(runBefore, uuid.Nil), recordWith(1, 1, 0), 0, 1)
	effect[StartFollower](t, effects)
	requireNo[SwapRecord](t, effects)
	require.Equal(t, RoleStandby, r.s.Role())
}

// TestSuperseded: a running node that finds another run in its place stops, and takes part no more.
func TestSuperseded(t *testing.T) {
	t.Run("active", func(t *testing.T) {
		r := newRunRig(t)
		r.start(ranIdentity(runBefore, uuid.Nil), inRuns(recordWith(0, 0), runBefore, uuid.Nil), 0)
		r.won()
		r.report(ActiveReady{})
		require.True(t, r.s.act.sent.Serve)
		// A copy of the directory was started elsewhere: it has renewed the run, and begun a term.
		stolen := next(inRuns(r.s.rec, runOther, uuid.Nil), "c/7/0")
		stolen.Term++
		effects := r.seeRecord(stolen, 102)
		require.Equal(t, []string{"stop-active"}, kinds(effects))
		require.Contains(t, r.s.Reason(), "superseded")
		requireNo[SwapRecord](t, r.after(time.Hour))
		// Not even if that one has gone.
		later := next(stolen, "d")
		later.Term, later.InSync[0].Run = later.Term+1, runOf("p")
		require.Empty(t, kinds(r.seeRecord(later, 103)))
	})
	t.Run("standby", func(t *testing.T) {
		r := newRunRig(t)
		r.start(ranIdentity(runBefore, uuid.Nil), inRuns(recordWith(1, 1, 0), runBefore, runOfB), 0, 1)
		r.won()
		require.Equal(t, []string{"stop-follower"},
			kinds(r.seeRecord(next(inRuns(r.s.rec, runOther, runOfB), "c"), 102)))
		require.Contains(t, r.s.Reason(), "superseded")
	})
}

// TestOldCopy: a directory whose runs the record does not name any more is a copy or an older image: it has lost
// (INV-6).
func TestOldCopy(t *testing.T) {
	t.Run("the other node is in sync", func(t *testing.T) {
		r := newRunRig(t)
		effects := r.start(ranIdentity(runBefore, runTried), inRuns(recordWith(0, 0, 1), runOther, runOfB), 0, 1)
		effect[MarkLoss](t, effects)
		requireNo[StartActive](t, effects)
		swap := effect[SwapRecord](t, effects)
		require.Len(t, swap.Next.InSync, 1)
		require.Equal(t, testNodes[1].ID, swap.Next.InSync[0].Node)
		require.Contains(t, r.s.Reason(), "put back")
		effects = r.won()
		effect[ClearLoss](t, effects)
		healed := r.s.ident
		healed.MayHaveLost, healed.Incarnation = false, healed.Incarnation+1
		r.step(IdentityChanged{Identity: healed})
		rec := next(r.s.rec, "b/7/0")
		rec.Active, rec.InSync = testNodes[1].ID, append(slices.Clone(rec.InSync), healed.Member())
		r.seeRecord(rec, 102)
		require.Empty(t, r.s.run.putBack, "it has got what it lacked")
	})
	t.Run("no other node is", func(t *testing.T) {
		r := newRunRig(t)
		effects := r.start(ranIdentity(runBefore, uuid.Nil), inRuns(recordWith(0, 0), runOther, uuid.Nil), 0)
		effect[MarkLoss](t, effects)
		requireNo[SwapRecord](t, effects)
		requireNo[SwapRecord](t, r.after(time.Hour))
		require.Contains(t, r.s.Reason(), "lockstep failover --force")
	})
}

// TestOriginalIsNamedBesideItsCopy: a copy of a standby that was not in sync runs beside the original, which it could
// not ask. When the active names the original in sync, the copy, which has the original's generation on its disk, must
// not take that for its own past: what the original has acknowledged is not in the copy.
func TestOriginalIsNamedBesideItsCopy(t *testing.T) {
	alone := func() Record { return inRuns(recordWith(1, 1), uuid.Nil, runOfB) }
	original := func() Record { return next(inRuns(recordWith(1, 1, 0), runBefore, runOfB), "b/7/0") }
	t.Run("while it runs", func(t *testing.T) {
		r := newRunRig(t)
		effects := r.start(ranIdentity(runBefore, runTried), alone(), 0, 1)
		require.Equal(t, ClaimRun{Run: runOf("p")}, effect[ClaimRun](t, effects),
			"a start from the same disk must not take it for its own either")
		effect[MarkLoss](t, r.seeRecord(original(), 101))
		require.False(t, r.s.eligible())
		require.Contains(t, r.s.Reason(), "put back")
	})
	t.Run("that was in sync at its start", func(t *testing.T) {
		r := newRunRig(t)
		r.start(ranIdentity(runBefore, uuid.Nil), inRuns(recordWith(1, 1, 0), runBefore, runOfB), 0, 1)
		effects := r.seeRecord(next(alone(), "b/6/0"), 101)
		require.Equal(t, ClaimRun{Run: runOf("p")}, effect[ClaimRun](t, effects))
		late := original()
		late.Config++
		effect[MarkLoss](t, r.seeRecord(late, 102))
		require.False(t, r.s.eligible())
	})
	t.Run("that was named itself", func(t *testing.T) {
		r := newRunRig(t)
		r.start(ranIdentity(runBefore, uuid.Nil), inRuns(recordWith(1, 1, 0), runBefore, runOfB), 0, 1)
		r.won()
		out := next(alone(), "b/7/0")
		out.Config = r.s.rec.Config + 1
		requireNo[ClaimRun](t, r.seeRecord(out, 102))
		back := original()
		back.Config = out.Config + 1
		r.seeRecord(back, 103)
		require.Contains(t, r.s.Reason(), "superseded")
	})
	t.Run("before it has read the record", func(t *testing.T) {
		// What the watch delivers first may be older than the record that names the run before this one.
		r := newRunRig(t)
		r.step(Started{Identity: ranIdentity(runBefore, uuid.Nil)})
		r.observe(true, 0, 1)
		requireNo[ClaimRun](t, r.seeRecord(alone(), 100))
		effects := r.step(Loaded{Record: original(), Revision: 101})
		requireNo[MarkLoss](t, effects)
		require.Equal(t, ClaimRun{Named: runBefore, Run: runOf("p")}, effect[ClaimRun](t, effects))
	})
}

// TestMark is INV-12.
func TestMark(t *testing.T) {
	mark := func(by, lsn uint64) Mark { return Mark{Pair: testPair, By: by, Term: 2, LSN: lsn} }
	start := func(t *testing.T, rec Record, key Mark) (*rig, []Effect) {
		t.Helper()
		r := newRig(t, Settings{})
		r.step(Started{Identity: usedIdentity()}) // its log ends with LSN 10 of term 2
		r.observe(true, 0, 1)
		r.read = Loaded{Record: rec, Revision: 100, Mark: key}
		effects := r.meet(r.step(r.read))
		return r, effects
	}
	t.Run("reached", func(t *testing.T) {
		_, effects := start(t, recordWith(0, 0, 1), mark(2, 10))
		requireNo[MarkLoss](t, effects)
		effect[SwapRecord](t, effects)
	})
	t.Run("not reached", func(t *testing.T) {
		r, effects := start(t, recordWith(0, 0, 1), mark(2, 11))
		effect[MarkLoss](t, effects)
		require.Equal(t, []Member{memberOf(1)}, effect[SwapRecord](t, effects).Next.InSync)
		require.Contains(t, r.s.Reason(), "LSN 11")
	})
	t.Run("not reached, alone", func(t *testing.T) {
		r, effects := start(t, recordWith(0, 0), mark(2, 11))
		requireNo[SwapRecord](t, effects)
		require.Contains(t, r.s.Reason(), "older image")
	})
	t.Run("in the record", func(t *testing.T) {
		rec := recordWith(0, 0, 1)
		rec.Mark = mark(2, 12)
		_, effects := start(t, rec, Mark{})
		effect[MarkLoss](t, effects)
	})
	t.Run("a log that ends in an older term", func(t *testing.T) {
		_, effects := start(t, recordWith(0, 0, 1), Mark{Pair: testPair, By: 3, Term: 3, LSN: 9})
		effect[MarkLoss](t, effects)
	})
	t.Run("of another pair", func(t *testing.T) {
		key := mark(2, 99)
		key.Pair = uuid.New()
		_, effects := start(t, recordWith(0, 0, 1), key)
		requireNo[MarkLoss](t, effects)
	})
	t.Run("from before a forced failover", func(t *testing.T) {
		rec := recordWith(0, 0)
		rec.Forced = &Forced{Node: testNodes[0].ID, Term: 2, After: 8}
		_, effects := start(t, rec, mark(1, 99))
		requireNo[MarkLoss](t, effects)
	})
	t.Run("of a node that is not in sync", func(t *testing.T) {
		_, effects := start(t, recordWith(1, 1), mark(2, 99))
		requireNo[MarkLoss](t, effects)
	})
	t.Run("that could not be read", func(t *testing.T) {
		r := newRig(t, Settings{})
		r.step(Started{Identity: usedIdentity()})
		r.observe(true, 0)
		require.Empty(t, kinds(r.seeRecord(recordWith(0, 0), 100)), "the watch was faster")
		require.Empty(t, kinds(r.step(Loaded{Err: ErrUnreachable})))
	})
}

// TestMarkWritten: the active raises the mark as it commits, and each swap carries it.
func TestMarkWritten(t *testing.T) {
	r := activePair(t, Settings{})
	term := r.s.act.term
	require.Equal(t, []Effect{WriteMark{Mark{Pair: testPair, By: term, Term: term, LSN: 20}}},
		r.step(Committed{Term: term, LSN: 20}))
	require.Empty(t, r.step(Committed{Term: term, LSN: 20}))
	require.Empty(t, r.step(Committed{Term: term - 1, LSN: 90}), "of a role that has ended")
	swap := effect[SwapRecord](t, r.report(StandbyLost{Node: testNodes[1].ID, Cause: LostReset}))
	require.Equal(t, uint64(20), swap.Next.Mark.LSN)
	r.won()
	require.Equal(t, uint64(20), r.s.highWater().LSN)
}

// TestWokenWithOldMemory: a machine that goes on from an older snapshot of its memory has not started, so nothing is
// compared; but the mark that it wrote in its own term, and has forgotten, tells.
func TestWokenWithOldMemory(t *testing.T) {
	woken := func(t *testing.T) (r *rig, mark func(lsn uint64) Mark) {
		t.Helper()
		r = newRig(t, Settings{})
		r.start(usedIdentity(), recordWith(0, 0), 0)
		r.won()
		r.report(ActiveReady{})
		term := r.s.act.term
		mark = func(lsn uint64) Mark { return Mark{Pair: testPair, By: term, Term: term, LSN: lsn} }
		r.step(Committed{Term: term, LSN: 20}) // in the snapshot; since then it had committed up to 30
		effect[WriteMark](t, r.step(Committed{Term: term, LSN: 40}))
		require.Empty(t, r.step(MarkWritten{Before: mark(20)}))
		return r, mark
	}
	stopped := func(t *testing.T, r *rig, effects []Effect) {
		t.Helper()
		require.Equal(t, []string{"stop-active"}, kinds(effects))
		effect[MarkLoss](t, effects)
		require.Contains(t, r.s.Reason(), "woken with an older snapshot of its memory")
		requireNo[SwapRecord](t, r.after(time.Hour))
	}
	t.Run("it writes the next mark", func(t *testing.T) {
		r, mark := woken(t)
		r.s.run.mark = mark(20)
		effect[WriteMark](t, r.step(Committed{Term: r.s.act.term, LSN: 25}))
		stopped(t, r, r.step(MarkWritten{Before: mark(40)}))
	})
	t.Run("it reads the record again", func(t *testing.T) {
		r, mark := woken(t)
		stopped(t, r, r.step(Loaded{Record: r.s.rec, Revision: r.s.rev, Mark: mark(41)}))
	})
	t.Run("its own, sent twice", func(t *testing.T) {
		r, mark := woken(t)
		require.Empty(t, r.step(MarkWritten{Before: mark(40)}))
	})
	t.Run("of an earlier term, and none", func(t *testing.T) {
		r, _ := woken(t)
		require.Empty(t, r.step(MarkWritten{Before: Mark{Pair: testPair, By: 2, Term: 2, LSN: 99}}))
		require.Empty(t, r.step(MarkWritten{}))
		require.True(t, r.s.act.sent.Serve)
	})
	t.Run("of its own, while the coordinator loses its data", func(t *testing.T) {
		r, mark := woken(t)
		r.step(Loaded{Err: ErrNoRecord}) // and no mark
		require.Equal(t, mark(40), r.s.run.mark, "that there is none says nothing")
		r.step(MarkWritten{Before: mark(40)}) // the answer to what was written before
		require.NotContains(t, r.s.Reason(), "woken")
		require.False(t, r.s.ident.MayHaveLost)
	})
}

// TestComparesBeforeItTakesTheRoleAgain is the last part of INV-13: of two members that start, the one with the longer
// log goes on.
func TestComparesBeforeItTakesTheRoleAgain(t *testing.T) {
	begin := func(t *testing.T) *rig {
		t.Helper()
		r := newRig(t, Settings{})
		r.step(Started{Identity: usedIdentity()})
		r.observe(true, 0, 1)
		r.read = Loaded{Record: recordWith(0, 0, 1), Revision: 100}
		require.Equal(t, "b:1", effect[Meet](t, r.step(r.read)).Address)
		return r
	}
	answer := func(term, at uint64) Met {
		return Met{Address: "b:1", Peer: Peer{
			Node: testNodes[1].ID, Store: testStores[1],
			End: lsn.Position{Term: term, LSN: at},
		}}
	}
	met := func(r *rig, m Met) []Effect { return r.meet(r.step(m)) }
	t.Run("the other one has more", func(t *testing.T) {
		for _, m := range []Met{answer(2, 11), answer(3, 2)} {
			swap := effect[SwapRecord](t, begin(t).step(m))
			require.Equal(t, testNodes[1].ID, swap.Next.Active)
			require.Equal(t, uint64(3), swap.Next.Term)
			require.Equal(t, []Member{memberOf(1)}, swap.Next.InSync)
		}
	})
	t.Run("the other one has no more", func(t *testing.T) {
		for _, m := range []Met{answer(2, 10), answer(2, 9), answer(1, 50)} {
			require.Equal(t, testNodes[0].ID, effect[SwapRecord](t, met(begin(t), m)).Next.Active)
		}
	})
	t.Run("the other one does not come", func(t *testing.T) {
		r := begin(t)
		require.Empty(t, kinds(r.step(Met{Address: "b:1", Gone: true, Err: ErrGone})))
		effect[Meet](t, r.after(100*time.Millisecond))
		require.Equal(t, testNodes[0].ID, effect[SwapRecord](t,
			r.meet(append(r.step(Met{Address: "b:1", Gone: true, Err: ErrGone}), r.after(time.Second)...))).Next.Active)
	})
	t.Run("it was asked once at least", func(t *testing.T) {
		// The coordinator took longer to answer than this node waits for the other one.
		r := newRig(t, Settings{})
		r.step(Started{Identity: usedIdentity()})
		r.observe(true, 0, 1)
		r.after(5 * time.Second)
		r.read = Loaded{Record: recordWith(0, 0, 1), Revision: 100}
		effects := r.step(r.read)
		effect[Meet](t, effects)
		requireNo[SwapRecord](t, effects)
		effect[SwapRecord](t, r.meet(r.step(Met{Address: "b:1", Gone: true, Err: ErrGone})))
	})
}

// TestStandbyAhead is INV-13: an active that lacks what its standby knows to be committed does not stay active.
func TestStandbyAhead(t *testing.T) {
	t.Run("in sync: it gets the role", func(t *testing.T) {
		r := newRig(t, Settings{})
		r.start(usedIdentity(), recordWith(0, 0, 1), 0, 1)
		r.won()
		r.report(ActiveReady{})
		swap := effect[SwapRecord](t, r.report(StandbyAhead{
			Member: memberOf(1), End: lsn.Position{Term: 2, LSN: 30},
			Committed: 30,
		}))
		require.Equal(t, testNodes[1].ID, swap.Next.Active)
		require.Equal(t, []Member{memberOf(1)}, swap.Next.InSync)
		require.Equal(t, []string{"stop-active", "fence", "start-follower"}, kinds(r.won()))
	})
	t.Run("not in sync: the active stops serving until that node comes without it", func(t *testing.T) {
		r := newRig(t, Settings{})
		r.start(usedIdentity(), recordWith(0, 0), 0)
		r.won()
		r.report(ActiveReady{})
		effects := r.report(StandbyAhead{Member: memberOf(1), End: lsn.Position{Term: 2, LSN: 30}, Committed: 30})
		requireNo[SwapRecord](t, effects)
		require.False(t, effect[ConfigureActive](t, effects).Config.Serve)
		require.Equal(t, RoleBlocked, r.s.Role())
		require.Contains(t, r.s.Reason(), "HISTORIES DIFFER")
		r.report(StandbyConnected{Member: Member{Node: testNodes[1].ID, Store: uuid.New(), Incarnation: 1}})
		require.True(t, r.s.act.sent.Serve)
	})
}

// TestActiveBehind: a node that is not in sync and knows more than the active gives no advice that would lose one of
// the two histories.
func TestActiveBehind(t *testing.T) {
	r := newRig(t, Settings{})
	r.start(usedIdentity(), recordWith(1, 1), 0, 1)
	r.report(FollowerLost{Cause: LostBehind})
	require.Contains(t, r.s.Reason(), "When histories differ")
	require.NotContains(t, r.s.Reason(), "--force")
	require.Contains(t, r.s.ahead(), "lacks records")
}

// TestLacks: a standby in sync that hears of commits beyond its log was put back. It must not take over as it is.
func TestLacks(t *testing.T) {
	for _, tt := range []struct {
		name  string
		lacks FollowerLacks
		took  bool
	}{
		{"in the configuration that names it", FollowerLacks{Config: 5, Common: 4, Committed: 9}, true},
		{"the active says that it had acknowledged more", FollowerLacks{}, true},
		{"before it was named in sync", FollowerLacks{Config: 4, Common: 4, Committed: 9}, false},
		{"in a configuration that it does not know", FollowerLacks{Config: 6, Common: 4, Committed: 9}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Settings{})
			r.start(usedIdentity(), recordWith(1, 0, 1), 0, 1)
			effects := r.report(tt.lacks)
			if !tt.took {
				requireNo[MarkLoss](t, effects)
				requireNo[SwapRecord](t, effects)
				return
			}
			effect[MarkLoss](t, effects)
			effect[StopFollower](t, effects)
			require.Equal(t, []Member{memberOf(1)}, effect[SwapRecord](t, effects).Next.InSync)
			require.Contains(t, r.s.Reason(), "put back")
		})
	}
}

// TestTwin: a process takes no part while another one runs under its identity.
func TestTwin(t *testing.T) {
	elsewhere := testNodes[0]
	elsewhere.Address = "a:2"
	stale := Live{Node: elsewhere, Process: "other"}
	begin := func(t *testing.T, l Live) (*rig, []Effect) {
		t.Helper()
		r := newRig(t, Settings{})
		effects := r.step(Started{Identity: usedIdentity()})
		effects = append(effects, r.step(Observed{Observation: Observation{
			Reachable: true, LiveKnown: true,
			Live: []Live{l},
		}})...)
		r.read = Loaded{Record: recordWith(0, 0), Revision: 100}
		return r, append(effects, r.step(r.read)...)
	}
	t.Run("at this node's own address: it cannot run any more", func(t *testing.T) {
		_, effects := begin(t, Live{Node: testNodes[0], Process: "other"})
		effect[Announce](t, effects)
		effect[SwapRecord](t, effects)
	})
	t.Run("gone", func(t *testing.T) {
		r, effects := begin(t, stale)
		require.Equal(t, "a:2", effect[Meet](t, effects).Address)
		requireNo[Announce](t, effects)
		requireNo[SwapRecord](t, effects)
		effects = r.step(Met{Address: "a:2", Gone: true, Err: ErrGone})
		effect[Announce](t, effects)
		effect[LoadRecord](t, effects) // how far had that one committed?
		effect[SwapRecord](t, r.step(Loaded{Record: recordWith(0, 0), Revision: 100}))
	})
	t.Run("runs, and is gone later", func(t *testing.T) {
		r, _ := begin(t, stale)
		effects := r.step(Met{Address: "a:2", Peer: Peer{Node: testNodes[0].ID, Process: "other"}})
		requireNo[SwapRecord](t, effects)
		require.Contains(t, r.s.Reason(), "two processes with one identity")
		require.Equal(t, stale, *r.s.twin())
		requireNo[SwapRecord](t, r.observe(true))
		require.Equal(t, []Effect{Meet{Address: "a:2"}}, r.after(twinMemory), "so that the other one can tell, too")
		r.step(Met{Address: "a:2", Gone: true, Err: ErrGone})
		require.Equal(t, []Effect{Meet{Address: "a:2"}}, r.after(time.Hour), "what that one acknowledged is not here")
	})
	t.Run("runs, and was started again", func(t *testing.T) {
		r, _ := begin(t, stale)
		requireNo[SwapRecord](t, r.meet(r.step(Met{
			Address: "a:2",
			Peer:    Peer{Node: testNodes[0].ID, Process: "the next"},
		})))
		require.Contains(t, r.s.Reason(), "two processes with one identity")
	})
	t.Run("does not answer: its lease tells", func(t *testing.T) {
		r, _ := begin(t, stale)
		requireNo[SwapRecord](t, r.step(Met{Address: "a:2", Err: ErrUnreachable}))
		effect[LoadRecord](t, r.observe(true))
		effect[MarkLoss](t, r.step(Loaded{
			Record: recordWith(0, 0), Revision: 100,
			Mark: Mark{Pair: testPair, By: 2, Term: 2, LSN: 11},
		}))
	})
	t.Run("the one that runs hears of it", func(t *testing.T) {
		r := activePair(t, Settings{})
		r.step(Knocked{Live: stale})
		require.Equal(t, stale, *r.s.twin())
		r.after(twinMemory)
		require.Nil(t, r.s.twin())
		r.step(Observed{Observation: Observation{Reachable: true, Twin: &Twin{Live: stale, Stale: true}}})
		require.Nil(t, r.s.twin(), "perhaps a run before this one, which was killed")
		r.step(Observed{Observation: Observation{Reachable: true, Twin: &Twin{Live: stale}}})
		require.Equal(t, stale, *r.s.twin())
	})
}
