// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"fmt"
	"slices"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// logView is what the matching rule has to know of the active's log.
type logView interface {
	// End is the last record.
	End() lsn.Position
	// FirstLSN is the oldest record that the log still has; 0 when it has none.
	FirstLSN() uint64
	// TermEnds has the last position of each term in the log, newest first.
	TermEnds() []lsn.Position
	// PositionOf names a record of the log, or the one just before its first.
	PositionOf(lsn uint64) (lsn.Position, bool)
}

// matchLogs finds the last record that the active's log and a standby's have in common and decides how the standby goes
// on: from there with the log, or with a snapshot. It is a pure function of the two.
//
// The standby names the last record of each of its terms. Within a term, the two logs are equal up to the end of the
// shorter one, since only one node ever writes records of a term. So the newest term that both have settles it: the
// smaller of the two ends of it is the last common record. Checksums of the whole history (Position.Chain) are compared
// wherever both ends can name the record; the standby compares the answer with its own log once more.
func matchLogs(active logView, h *Hello) Welcome {
	w := Welcome{Protocol: ProtocolVersion, OldestProtocol: OldestProtocol, Features: Features()}
	w.HoldsCommitted, _ = holdsWhatStands(active, h)
	common, ok := lastCommon(active, h)
	switch {
	case !ok:
		w.SnapshotRequired = true
		w.Reason = fmt.Sprintf("no common record: the standby's log ends at %v, the active's begins at LSN %d and "+
			"ends at %v",
			h.LogEnd, active.FirstLSN(), active.End())
	case common.LSN < h.Applied.LSN:
		w.SnapshotRequired, w.ResumeAfter = true, common
		w.Reason = fmt.Sprintf("the histories differ after %v, and the standby applied up to %v", common, h.Applied)
	default:
		w.ResumeAfter = common
		if common != h.LogEnd {
			w.Reason = fmt.Sprintf("the active does not have the standby's records after %v, up to %v", common,
				h.LogEnd)
			if w.HoldsCommitted {
				w.Reason += ", and the standby knows of none of them that it is committed"
			}
		}
	}
	return w
}

// holdsCommitted tells whether the active's log has a record that a standby knows to be committed, and whether it
// surely lacks it. Neither is said if the log does not reach back that far, if the record cannot be read, or if the
// standby does not name one.
//
// A position names a whole history, so one record speaks for all that are committed: who has it lacks none of them
// (INV-13).
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

// holdsWhatStands is holdsCommitted for what a hello names, unless a forced failover has made it void: then it is
// enough that the active has gone on from that. (One that was put back to before it has not.)
func holdsWhatStands(active logView, h *Hello) (holds, lacks bool) {
	void := h.VoidTerm > h.LogEnd.Term && slices.ContainsFunc(active.TermEnds(),
		func(p lsn.Position) bool { return p.Term == h.VoidTerm })
	if void {
		return true, false
	}
	return holdsCommitted(active, h.Committed)
}

// lastCommon returns the last common record; false if there is none from which the active's log can go on.
func lastCommon(active logView, h *Hello) (lsn.Position, bool) {
	ends := h.TermEnds
	if len(ends) == 0 || ends[0] != h.LogEnd {
		// A log that is empty since a snapshot was installed has no term ends, and yet a last record.
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
	// Nothing in common but the beginning: of use if the active still has its first record.
	start, ok := active.PositionOf(0)
	return start, ok && start.IsZero()
}

// commonInTerm returns the last common record of the term that the standby's log ended at end.
func commonInTerm(active logView, activeEnds []lsn.Position, end lsn.Position) (lsn.Position, bool) {
	for _, mine := range activeEnds {
		if mine.Term != end.Term {
			continue
		}
		if mine.LSN < end.LSN {
			// The standby checks the chain when it gets this as ResumeAfter.
			return mine, true
		}
		p, ok := active.PositionOf(end.LSN)
		return p, ok && p == end
	}
	// The active may hold the standby's end just before its first record without having records of that term.
	p, ok := active.PositionOf(end.LSN)
	return p, ok && p == end
}
