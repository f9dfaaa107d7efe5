// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// INV-12: if the log of an in-sync node ends before the pair's mark, the node was restored from an older copy.
func TestMark(t *testing.T) {
	mark := func(by, lsn uint64) Mark { return Mark{Pair: testPair, By: by, Term: 2, LSN: lsn} }
	start := func(t *testing.T, rec Record, key Mark) (*rig, []Effect) {
		t.Helper()
		r := newRig(t, Settings{})
		r.step(Started{Identity: usedIdentity()}) // its log ends with LSN 10 of term 2
		r.observe(true, 0, 1)
		r.read = Loaded{Record: rec, Revision: 100, Mark: key}
		effects := r.handshake(r.step(r.read))
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
		require.Contains(t, r.s.Reason(), "older copy")
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
		require.Empty(t, kinds(r.seeRecord(recordWith(0, 0), 100)), "the mark is not known yet")
		require.Empty(t, kinds(r.step(Loaded{Err: ErrUnreachable})))
	})
}

// The active raises the mark when it commits records, and each swapped record contains the mark.
func TestMarkWritten(t *testing.T) {
	r := activePair(t, Settings{})
	term := r.s.act.term
	require.Equal(t, []Effect{WriteMark{Mark{Pair: testPair, By: term, Term: term, LSN: 20}}},
		r.step(Committed{Term: term, LSN: 20}))
	require.Empty(t, r.step(Committed{Term: term, LSN: 20}))
	require.Empty(t, r.step(Committed{Term: term - 1, LSN: 90}), "the role has ended")
	swap := effect[SwapRecord](t, r.report(StandbyLost{Node: testNodes[1].ID, Cause: LostReset}))
	require.Equal(t, uint64(20), swap.Next.Mark.LSN)
	r.won()
	require.Equal(t, uint64(20), r.s.highWater().LSN)
}

// A machine that resumes from an older memory snapshot has not restarted, so its log is not compared with the mark. It
// detects a mark with its term that it has not written.
func TestResumedMemorySnapshot(t *testing.T) {
	resumed := func(t *testing.T) (r *rig, mark func(lsn uint64) Mark) {
		t.Helper()
		r = newRig(t, Settings{})
		r.start(usedIdentity(), recordWith(0, 0), 0)
		r.won()
		r.report(ActiveReady{})
		term := r.s.act.term
		mark = func(lsn uint64) Mark { return Mark{Pair: testPair, By: term, Term: term, LSN: lsn} }
		r.step(Committed{Term: term, LSN: 20}) // in the snapshot; LSN 30 was committed after it was taken
		effect[WriteMark](t, r.step(Committed{Term: term, LSN: 40}))
		require.Empty(t, r.step(MarkWritten{Before: mark(20)}))
		return r, mark
	}
	stopped := func(t *testing.T, r *rig, effects []Effect) {
		t.Helper()
		require.Equal(t, []string{"stop-active"}, kinds(effects))
		effect[MarkLoss](t, effects)
		require.Contains(t, r.s.Reason(), "resumed from")
		requireNo[SwapRecord](t, r.after(time.Hour))
	}
	t.Run("it writes the next mark", func(t *testing.T) {
		r, mark := resumed(t)
		r.s.proc.mark = mark(20)
		effect[WriteMark](t, r.step(Committed{Term: r.s.act.term, LSN: 25}))
		stopped(t, r, r.step(MarkWritten{Before: mark(40)}))
	})
	t.Run("it reads the record again", func(t *testing.T) {
		r, mark := resumed(t)
		stopped(t, r, r.step(Loaded{Record: r.s.rec, Revision: r.s.rev, Mark: mark(41)}))
	})
	t.Run("its own mark is sent twice", func(t *testing.T) {
		r, mark := resumed(t)
		require.Empty(t, r.step(MarkWritten{Before: mark(40)}))
	})
	t.Run("the previous mark has an earlier term, or is missing", func(t *testing.T) {
		r, _ := resumed(t)
		require.Empty(t, r.step(MarkWritten{Before: Mark{Pair: testPair, By: 2, Term: 2, LSN: 99}}))
		require.Empty(t, r.step(MarkWritten{}))
		require.True(t, r.s.act.sent.Serve)
	})
	t.Run("its own mark, while the coordinator loses its data", func(t *testing.T) {
		r, mark := resumed(t)
		r.step(Loaded{Err: ErrNoRecord}) // and no mark
		require.Equal(t, mark(40), r.s.proc.mark, "a missing mark proves nothing")
		r.step(MarkWritten{Before: mark(40)}) // the response to an earlier write
		require.NotContains(t, r.s.Reason(), "resumed")
		require.False(t, r.s.ident.MayHaveLost)
	})
}

// INV-13: of two starting in-sync members, the one with the longer log becomes active.
func TestComparesLogsBeforeActivation(t *testing.T) {
	begin := func(t *testing.T) *rig {
		t.Helper()
		r := newRig(t, Settings{})
		r.step(Started{Identity: usedIdentity()})
		r.observe(true, 0, 1)
		r.read = Loaded{Record: recordWith(0, 0, 1), Revision: 100}
		require.Equal(t, "b:1", effect[Handshake](t, r.step(r.read)).Address)
		return r
	}
	answer := func(term, at uint64) HandshakeDone {
		return HandshakeDone{Address: "b:1", Peer: Peer{
			Node: testNodes[1].ID, Store: testStores[1],
			End: lsn.Position{Term: term, LSN: at},
		}}
	}
	answered := func(r *rig, m HandshakeDone) []Effect { return r.handshake(r.step(m)) }
	t.Run("the other node has a longer log", func(t *testing.T) {
		for _, m := range []HandshakeDone{answer(2, 11), answer(3, 2)} {
			swap := effect[SwapRecord](t, begin(t).step(m))
			require.Equal(t, testNodes[1].ID, swap.Next.Active)
			require.Equal(t, uint64(3), swap.Next.Term)
			require.Equal(t, []Member{memberOf(1)}, swap.Next.InSync)
		}
	})
	t.Run("the other node has no additional records", func(t *testing.T) {
		for _, m := range []HandshakeDone{answer(2, 10), answer(2, 9), answer(1, 50)} {
			require.Equal(t, testNodes[0].ID, effect[SwapRecord](t, answered(begin(t), m)).Next.Active)
		}
	})
	t.Run("the other node does not respond", func(t *testing.T) {
		r := begin(t)
		require.Empty(t, kinds(r.step(HandshakeDone{Address: "b:1", Gone: true, Err: ErrGone})))
		effect[Handshake](t, r.after(100*time.Millisecond))
		require.Equal(t, testNodes[0].ID, effect[SwapRecord](t,
			r.handshake(append(r.step(HandshakeDone{Address: "b:1", Gone: true, Err: ErrGone}),
				r.after(time.Second)...))).Next.Active)
	})
	t.Run("the other node is queried at least once", func(t *testing.T) {
		// The coordinator responds only after this node's wait for the other node has ended.
		r := newRig(t, Settings{})
		r.step(Started{Identity: usedIdentity()})
		r.observe(true, 0, 1)
		r.after(5 * time.Second)
		r.read = Loaded{Record: recordWith(0, 0, 1), Revision: 100}
		effects := r.step(r.read)
		effect[Handshake](t, effects)
		requireNo[SwapRecord](t, effects)
		effect[SwapRecord](t, r.handshake(r.step(HandshakeDone{Address: "b:1", Gone: true, Err: ErrGone})))
	})
}
