// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/mutate"
)

// This file implements INV-13 on the standby: a node never truncates records that it knows to be committed. The standby
// sends the position of the last of these records in its hello, and also checks the response. Records discarded by a
// forced failover are the only exception.

// errOldSnapshot is returned if a snapshot ends before a committed record that the active's log may contain. A retry
// after the active's next checkpoint can succeed.
var errOldSnapshot = errors.New("checkpoint of the active ends before a committed record")

// committed returns the last LSN that this node knows to be committed and that no forced failover discarded.
func (f *Follower) committed() uint64 {
	n := f.o.Store.Committed()
	if f.o.DiscardedRange.contains(f.o.Store.End()) {
		n = min(n, f.o.DiscardedRange.After)
	}
	return n
}

// committedPosition returns the position of the record with LSN committed(); zero if the record is missing or
// unreadable.
func (f *Follower) committedPosition() lsn.Position {
	at, ok := f.o.Store.PositionOf(f.committed())
	if !ok {
		return lsn.Position{}
	}
	return at
}

// discardedTerm returns the term of the pair's last forced failover if this node's log ends before that term;
// otherwise 0. All records of such a log that are missing from the forced history are discarded, including those up
// to DiscardedRange.After: the history of a node restored from an older copy may have diverged before that LSN.
func (f *Follower) discardedTerm() uint64 {
	if f.o.Store.End().Term >= f.o.DiscardedRange.Term {
		return 0
	}
	return f.o.DiscardedRange.Term
}

// checkHelloResponse rejects a response that would truncate or replace committed records. It records whether the
// active is known to have all committed records.
func (f *Follower) checkHelloResponse(w *HelloResponse) error {
	n, at := f.committed(), w.ResumeAfter
	if n == 0 || mutate.Off("INV-13-standby-accepts-any-active") {
		f.confirmed = true
		return nil
	}
	switch own, ok := f.o.Store.PositionOf(at.LSN); {
	case at.LSN < n && !w.SnapshotRequired && (f.discardedTerm() == 0 || !w.HoldsCommitted):
		return f.behind(n, fmt.Sprintf("it has this node's records up to %v", at))
	case w.HoldsCommitted:
		f.confirmed = true
		return nil
	case at.IsZero():
		return nil // the active's log begins too late to decide; see checkSnapshot
	case at.LSN < n:
		return f.behind(n, fmt.Sprintf("it has this node's records up to %v", at))
	case ok && own != at:
		return f.behind(n, fmt.Sprintf("it has %v, and this node has %v", at, own))
	default:
		f.confirmed = true
		return nil
	}
}

// checkSnapshot rejects a snapshot that would replace committed records, except if the active is known to have
// these records.
func (f *Follower) checkSnapshot(h *SnapshotHeader) error {
	n := f.committed()
	switch {
	case h.HoldsCommitted, f.confirmed, h.Position.LSN >= n:
		return nil
	case f.resync.Load() != nil:
		return fmt.Errorf("%w: it ends at %v, and LSN %d is committed", errOldSnapshot, h.Position, n)
	default:
		// The logs have no record in common. If the active had committed record n, its log would contain n or begin
		// after n, and its checkpoint would contain everything before its log.
		return f.behind(n, fmt.Sprintf("its checkpoint ends at %v", h.Position))
	}
}

func (f *Follower) behind(committed uint64, reason string) error {
	return fmt.Errorf("%w: LSN %d is committed; active at %s: %s; no record was truncated", ErrBehind, committed,
		f.o.Address, reason)
}
