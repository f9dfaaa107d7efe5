// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"fmt"
	"slices"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

type logView interface {
	End() lsn.Position
	// FirstLSN returns 0 for an empty log.
	FirstLSN() uint64
	// TermEnds returns the last position of each term in the log, newest first.
	TermEnds() []lsn.Position
	// PositionOf returns the position of a record of the log, or of the one just before its first.
	PositionOf(lsn uint64) (lsn.Position, bool)
}

// matchLogs finds the last record common to the active's log and a standby's. It decides whether the standby catches up
// from there with the log or with a snapshot.
//
// Only one node ever writes records of a term, so within a term the two logs are equal up to the end of the shorter
// one. The newest term that both have therefore decides: the smaller of its two ends is the last common record.
// Checksums of the whole history (Position.Chain) are compared wherever both ends have the record. The standby also
// checks the response against its own log.
func matchLogs(active logView, h *Hello) HelloResponse {
	w := HelloResponse{Protocol: ProtocolVersion, OldestProtocol: OldestProtocol, Features: Features()}
	w.HoldsCommitted, _ = holdsDurable(active, h)
	common, ok := lastCommon(active, h)
	switch {
	case !ok:
		w.SnapshotRequired = true
		w.Reason = fmt.Sprintf("no common record: the standby's log ends at %v, the active's begins at LSN %d and "+
			"ends at %v",
			h.LogEnd, active.FirstLSN(), active.End())
	case common.LSN < h.Applied.LSN:
		w.SnapshotRequired, w.ResumeAfter = true, common
		w.Reason = fmt.Sprintf("histories differ after %v, and the standby applied up to %v", common, h.Applied)
	default:
		w.ResumeAfter = common
		if common != h.LogEnd {
			w.Reason = fmt.Sprintf("the active does not have the standby's records after %v, up to %v", common,
				h.LogEnd)
			if w.HoldsCommitted {
				w.Reason += ", and the standby knows none of them to be committed"
			}
		}
	}
	return w
}

// holdsCommitted reports whether the active's log has a record that a standby knows to be committed, and whether it
// certainly lacks it. Both are false if the log begins too late, if the record is unreadable, or if the standby sent
// none.
//
// A position identifies a whole history, so a node that has the record lacks no committed one (INV-13).
func holdsCommitted(active logView, committed lsn.Position) (holds, lacks bool) {
	switch at, ok := active.PositionOf(committed.LSN); {
	case committed.IsZero():
		return false, false
	case ok:
		return at == committed, at != committed
	default:
		return false, committed.LSN > active.End().LSN
	}
}

// holdsDurable is holdsCommitted for a hello, unless a forced failover discarded the record. Then the active's history
// must include the forced term, unlike that of an active restored from a copy before it.
func holdsDurable(active logView, h *Hello) (holds, lacks bool) {
	void := h.DiscardedTerm > h.LogEnd.Term && slices.ContainsFunc(active.TermEnds(),
		func(p lsn.Position) bool { return p.Term == h.DiscardedTerm })
	if void {
		return true, false
	}
	return holdsCommitted(active, h.Committed)
}

// lastCommon returns the last common record; false if the active's log cannot continue from any.
func lastCommon(active logView, h *Hello) (lsn.Position, bool) {
	ends := h.TermEnds
	if len(ends) == 0 || ends[0] != h.LogEnd {
		// A log emptied by a snapshot installation has no term ends, but has a last record.
		ends = append([]lsn.Position{h.LogEnd}, ends...)
	}
	activeEnds := append([]lsn.Position{}, active.TermEnds()...)
	if len(activeEnds) == 0 || activeEnds[0] != active.End() {
		activeEnds = append([]lsn.Position{active.End()}, activeEnds...)
	}
	for _, end := range ends {
		if p, ok := commonInTerm(active, activeEnds, end); ok {
			return p, true
		}
	}
	// Only the beginning is common. It is usable if the active still has its first record.
	start, ok := active.PositionOf(0)
	return start, ok && start.IsZero()
}

// commonInTerm returns the last common record of the term in which the standby's log ended at end.
func commonInTerm(active logView, activeEnds []lsn.Position, end lsn.Position) (lsn.Position, bool) {
	for _, mine := range activeEnds {
		if mine.Term != end.Term {
			continue
		}
		if mine.LSN < end.LSN {
			// The standby checks the chain of ResumeAfter.
			return mine, true
		}
		p, ok := active.PositionOf(end.LSN)
		return p, ok && p == end
	}
	// The active may have the standby's end just before its first record, without records of that term.
	p, ok := active.PositionOf(end.LSN)
	return p, ok && p == end
}
