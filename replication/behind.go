// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/mutate"
)

// This file implements INV-13 on the standby: a node never truncates records that it knows to be committed. An active
// that lacks some of them was restored from an older copy of its data directory. The standby sends the last of them in
// its hello, and an active of this release then refuses it (Primary.refuseBehind). The standby also checks the
// response, because an older release ignores that field.
//
// Records discarded by a forced failover are the only exception, since the operator accepted their loss.

// errOldSnapshot is returned if a snapshot ends before a committed record that the active's log may have. The active's
// next checkpoint decides it.
var errOldSnapshot = errors.New("the active's checkpoint is older than what this node knows to be committed")

// committed returns the last LSN that this node knows to be committed and that no forced failover discarded.
func (f *Follower) committed() uint64 {
	n := f.o.Store.Committed()
	if f.o.DiscardedRange.holds(f.o.Store.End()) {
		n = min(n, f.o.DiscardedRange.After)
	}
	return n
}

// committedPosition returns the position of that record; zero if missing or unreadable.
func (f *Follower) committedPosition() lsn.Position {
	at, ok := f.o.Store.PositionOf(f.committed())
	if !ok {
		return lsn.Position{}
	}
	return at
}

// discardedTerm returns the term of the pair's last forced failover if this node's log ends before it; otherwise 0.
// Records of such a log that the forced history lacks are discarded, also those below DiscardedRange.After: the history
// of a node restored from an older copy may have diverged long before.
func (f *Follower) discardedTerm() uint64 {
	if f.o.Store.End().Term >= f.o.DiscardedRange.Term {
		return 0
	}
	return f.o.DiscardedRange.Term
}

// checkHelloResponse rejects a response that would truncate or replace committed records. It records whether the active
// is known to have all of them.
func (f *Follower) checkHelloResponse(w *HelloResponse) error {
	n, at := f.committed(), w.ResumeAfter
	if n == 0 || mutate.Off("INV-13-standby-believes-any-active") {
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
		return nil // its log begins too late to decide; the snapshot decides
	case at.LSN < n:
		return f.behind(n, fmt.Sprintf("it has this node's records up to %v", at))
	case ok && own != at:
		return f.behind(n, fmt.Sprintf("common position is %v, and this node has %v there", at, own))
	default:
		f.confirmed = true
		return nil
	}
}

// checkSnapshot rejects a snapshot that would replace committed records which the active may lack.
func (f *Follower) checkSnapshot(h *SnapshotHeader) error {
	n := f.committed()
	switch {
	case h.HoldsCommitted, f.confirmed, h.Position.LSN >= n:
		return nil
	case f.resync.Load() != nil:
		return fmt.Errorf("%w: it holds %v, and LSN %d is committed", errOldSnapshot, h.Position, n)
	default:
		// Neither log has a record of the other one. If the active had committed that far, its log would include that
		// record, or begin after it: a checkpoint holds everything before the log.
		return f.behind(n, fmt.Sprintf("its checkpoint holds %v", h.Position))
	}
}

func (f *Follower) behind(committed uint64, has string) error {
	return fmt.Errorf("%w: this node knows that everything up to LSN %d is committed; the active at %s %s. Nothing "+
		"was truncated", ErrBehind,
		committed, f.o.Address, has)
}
