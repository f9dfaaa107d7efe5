// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"fmt"
	"slices"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

type logView interface {
	End() lsn.Position
	// FirstLSN returns the LSN of the oldest record in the log, or 0 if the log is empty.
	FirstLSN() uint64
	// TermEnds returns the last position of each term in the log, newest first.
	TermEnds() []lsn.Position
	// PositionOf returns the position of a record in the log, or of the record directly before the first one.
	PositionOf(lsn uint64) (lsn.Position, bool)
}

// matchLogs finds the last record common to the active's and the standby's log. Its response states whether the
// standby catches up after that record from the log, or needs a snapshot.
//
// Only one node ever writes records of a term, so within a term the two logs are equal up to the end of the shorter
// one. In the newest term that both have, the smaller of the two ends is the last common record. Checksums of the whole
// history (Position.Chain) are compared where both nodes have the record. The standby also checks the response against
// its own log.
func matchLogs(active logView, h *Hello) HelloResponse {
	w := HelloResponse{Protocol: ProtocolVersion, OldestProtocol: OldestProtocol, Features: Features()}
	w.HoldsCommitted, _ = holdsDurable(active, h)
	common, ok := lastCommon(active, h)
	switch {
	case !ok:
		w.SnapshotRequired = true
		w.Reason = fmt.Sprintf("no common record: the standby's log ends at %v, the active's log begins at LSN %d "+
			"and ends at %v", h.LogEnd, active.FirstLSN(), active.End())
	case common.LSN < h.Applied.LSN:
		w.SnapshotRequired, w.ResumeAfter = true, common
		w.Reason = fmt.Sprintf("histories differ after %v, and the standby applied up to %v", common, h.Applied)
	default:
		w.ResumeAfter = common
		if common != h.LogEnd {
			w.Reason = fmt.Sprintf("the standby's records after %v, up to %v, are missing on the active", common,
				h.LogEnd)
			if w.HoldsCommitted {
				w.Reason += "; none is known to be committed"
			}
		}
	}
	return w
}

// holdsCommitted reports whether the active's log contains a record that the standby knows to be committed (INV-13),
// and whether the record is certainly missing. Both are false if the log begins too late, if the record is
// unreadable, or if the standby sent no position.
func holdsCommitted(active logView, committed lsn.Position) (holds, missing bool) {
	switch at, ok := active.PositionOf(committed.LSN); {
	case committed.IsZero():
		return false, false
	case ok:
		return at == committed, at != committed
	default:
		return false, committed.LSN > active.End().LSN
	}
}

// holdsDurable is like holdsCommitted, for a hello. If the active's log has records of the term of a forced
// failover that discarded the record, holds is true and missing is false.
func holdsDurable(active logView, h *Hello) (holds, missing bool) {
	discarded := h.DiscardedTerm > h.LogEnd.Term && slices.ContainsFunc(active.TermEnds(),
		func(p lsn.Position) bool { return p.Term == h.DiscardedTerm })
	if discarded {
		return true, false
	}
	return holdsCommitted(active, h.Committed)
}

// lastCommon returns the position of the last common record, or false if the active's log cannot continue from any
// common record.
func lastCommon(active logView, h *Hello) (lsn.Position, bool) {
	ends := h.TermEnds
	if len(ends) == 0 || ends[0] != h.LogEnd {
		// A log emptied by a snapshot installation has an end, but no term ends.
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
	// Only the empty log is common. The active can continue from it if it still has the first record.
	start, ok := active.PositionOf(0)
	return start, ok && start.IsZero()
}

// commonInTerm returns the last common record in end.Term; end is the last record of that term in the standby's log.
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
	// The record directly before the active's first one may be end, although the active's log has no records of that
	// term.
	p, ok := active.PositionOf(end.LSN)
	return p, ok && p == end
}
