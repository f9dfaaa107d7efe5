// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// history is a logView: records[i] has LSN base.LSN+1+i.
type history struct {
	base    lsn.Position
	records []lsn.Position
}

// grow appends n records of a term.
func (h history) grow(term uint64, n int, salt byte) history {
	out := history{base: h.base, records: append([]lsn.Position{}, h.records...)}
	for range n {
		_, pos := wal.AppendFrame(nil, out.End(), term, wal.KindTxn, []byte{salt})
		out.records = append(out.records, pos)
	}
	return out
}

// trim drops the first n records.
func (h history) trim(n int) history {
	if n == 0 {
		return h
	}
	return history{base: h.records[n-1], records: h.records[n:]}
}

func (h history) End() lsn.Position {
	if len(h.records) == 0 {
		return h.base
	}
	return h.records[len(h.records)-1]
}

func (h history) FirstLSN() uint64 {
	if len(h.records) == 0 {
		return 0
	}
	return h.records[0].LSN
}

func (h history) TermEnds() (ends []lsn.Position) {
	for i := len(h.records) - 1; i >= 0; i-- {
		if len(ends) == 0 || ends[len(ends)-1].Term != h.records[i].Term {
			ends = append(ends, h.records[i])
		}
	}
	return ends
}

func (h history) PositionOf(n uint64) (lsn.Position, bool) {
	switch {
	case n == h.base.LSN:
		return h.base, true
	case n < h.base.LSN || n > h.End().LSN:
		return lsn.Position{}, false
	}
	return h.records[n-h.base.LSN-1], true
}

func (h history) hello(applied lsn.Position) *Hello {
	return &Hello{LogEnd: h.End(), Applied: applied, TermEnds: h.TermEnds()}
}

// TestMatchAllSmallHistories compares matchLogs with the longest common prefix, for all small pairs of logs that share
// a prefix and diverge under different terms.
func TestMatchAllSmallHistories(t *testing.T) {
	checked := 0
	for shape := range 5 * 5 * 5 * 5 * 5 * 5 {
		n := [6]int{}
		for i := range n {
			n[i], shape = shape%5, shape/5
		}
		common := history{}.grow(1, n[0], 0).grow(3, n[1], 0)
		// The standby wrote term 4 or only received it; the active continued with terms 5 and 6.
		standby := common.grow(4, n[2], 1)
		active := common.grow(5, n[3], 2).grow(6, 1, 2)
		if n[2] > 0 && n[4] > 0 { // both have the beginning of term 4
			shared := common.grow(4, min(n[2], n[4]), 1)
			active = shared.grow(5, n[3], 2).grow(6, 1, 2)
		}
		want := 0
		for want < len(standby.records) && want < len(active.records) && standby.records[want] == active.records[want] {
			want++
		}
		checkCommitted(t, active, standby, want)
		applied := lsn.Position{}
		if a := min(n[5], len(standby.records)); a > 0 {
			applied = standby.records[a-1]
		}
		w := matchLogs(active, standby.hello(applied))
		if uint64(want) < applied.LSN {
			require.True(t, w.SnapshotRequired, "shape %v: %+v", n, w)
			continue
		}
		require.False(t, w.SnapshotRequired, "shape %v: %+v", n, w)
		require.Equal(t, uint64(want), w.ResumeAfter.LSN, "shape %v: %+v", n, w)
		checked++
	}
	require.Greater(t, checked, 1000)
}

// checkCommitted checks holdsCommitted for each record of the standby and each possible first record of the active's
// log. want is the number of common records.
func checkCommitted(t *testing.T, active, standby history, want int) {
	t.Helper()
	for i, at := range standby.records {
		for trim := 0; trim <= len(active.records); trim += 3 {
			holds, lacks := holdsCommitted(active.trim(trim), at)
			require.False(t, holds && i >= want, "the active does not have the record")
			require.False(t, lacks && i < want, "the active has the record")
			if i+1 >= trim { // the log reaches back that far
				require.Equal(t, i < want, holds)
				require.Equal(t, i >= want, lacks)
			}
		}
		h := standby.hello(lsn.Position{})
		h.Committed = at
		w := matchLogs(active, h)
		require.Equal(t, i < want, w.HoldsCommitted)
		if w.HoldsCommitted && !w.SnapshotRequired {
			require.GreaterOrEqual(t, w.ResumeAfter.LSN, at.LSN, "nothing committed is truncated")
		}
	}
	holds, lacks := holdsCommitted(active, lsn.Position{})
	require.False(t, holds || lacks, "the standby sent no committed position")
}

// The reason only mentions committed records if the standby sent a committed position that supports it.
func TestMatchReason(t *testing.T) {
	active := history{}.grow(1, 4, 0).grow(3, 1, 0)
	h := history{}.grow(1, 4, 0).grow(2, 2, 1).hello(lsn.Position{})
	require.NotContains(t, matchLogs(active, h).Reason, "committed", "a release before 0.2 does not report it")
	h.Committed = active.records[3]
	require.Contains(t, matchLogs(active, h).Reason, "none is")
	h.Committed = h.LogEnd
	require.NotContains(t, matchLogs(active, h).Reason, "none is")
}

func TestMatchTrimmedLogs(t *testing.T) {
	full := history{}.grow(1, 10, 0).grow(2, 10, 0)
	t.Run("the standby is before the active's first record", func(t *testing.T) {
		old := history{}.grow(1, 5, 0)
		require.True(t, matchLogs(full.trim(8), old.hello(lsn.Position{})).SnapshotRequired)
	})
	t.Run("the standby ends just before the active's first record", func(t *testing.T) {
		for cut := 1; cut <= 20; cut++ {
			have := history{records: full.records[:cut]}
			w := matchLogs(full.trim(cut), have.hello(have.End()))
			require.False(t, w.SnapshotRequired, "%+v", w)
			require.Equal(t, have.End(), w.ResumeAfter)
		}
	})
	t.Run("an empty standby and a trimmed log", func(t *testing.T) {
		require.True(t, matchLogs(full.trim(1), history{}.hello(lsn.Position{})).SnapshotRequired)
	})
	t.Run("an empty standby and a whole log", func(t *testing.T) {
		w := matchLogs(full, history{}.hello(lsn.Position{}))
		require.False(t, w.SnapshotRequired)
		require.True(t, w.ResumeAfter.IsZero())
	})
	t.Run("the standby's log is empty since it installed a snapshot", func(t *testing.T) {
		at := history{base: full.records[12]}
		w := matchLogs(full, at.hello(at.base))
		require.False(t, w.SnapshotRequired)
		require.Equal(t, at.base, w.ResumeAfter)
	})
	t.Run("both are empty", func(t *testing.T) {
		require.False(t, matchLogs(history{}, history{}.hello(lsn.Position{})).SnapshotRequired)
	})
	t.Run("the active's own log is empty since it installed a snapshot", func(t *testing.T) {
		at := history{base: full.records[12]}
		w := matchLogs(at, full.hello(full.records[11]))
		require.False(t, w.SnapshotRequired)
		require.Equal(t, at.base, w.ResumeAfter)
	})
}

// A record with the same term and LSN but another history is not common.
func TestMatchSameLSN(t *testing.T) {
	common := history{}.grow(1, 4, 0)
	standby, active := common.grow(2, 3, 1), common.grow(2, 3, 9).grow(3, 1, 9)
	w := matchLogs(active, standby.hello(common.End()))
	require.False(t, w.SnapshotRequired)
	require.Equal(t, common.End(), w.ResumeAfter)
	require.True(t, matchLogs(active, standby.hello(standby.records[4])).SnapshotRequired)
}

func TestMatchReturnsReasons(t *testing.T) {
	h := history{}.grow(1, 4, 0)
	other := history{}.grow(2, 4, 1)
	for _, w := range []HelloResponse{
		matchLogs(h.trim(2), history{}.hello(lsn.Position{})),
		matchLogs(other.grow(3, 1, 0), h.hello(h.End())),
		matchLogs(other.grow(3, 1, 0), h.hello(lsn.Position{})),
	} {
		require.NotEmpty(t, w.Reason, "%+v", w)
		require.EqualValues(t, ProtocolVersion, w.Protocol)
	}
}
