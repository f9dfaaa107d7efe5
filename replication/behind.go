// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/mutate"
)

// This file is INV-13 on the standby's side: a node does not give up records that it knows to be committed, whatever an
// active says. An active that lacks some of them was put back to an older image of its data directory. The standby
// names the last of them in its hello, and an active of this release refuses it then (Primary.refuseBehind). The
// standby looks at the answer all the same: the active may be of a release that does not know the question.
//
// The one exception is what a forced failover has made void: the operator has given those records up.

// errOldSnapshot is returned when a snapshot ends before what this node knows to be committed, and nothing tells
// whether the active lacks that or has it in its log. With its next checkpoint it is known.
var errOldSnapshot = errors.New("the active's checkpoint is older than what this node knows to be committed")

// committed is the last LSN that this node knows to be committed and that no forced failover has made void.
func (f *Follower) committed() uint64 {
	n := f.o.Store.Committed()
	if f.o.Void.holds(f.o.Store.End()) {
		n = min(n, f.o.Void.After)
	}
	return n
}

// committedPosition names that record for the active; zero if there is none, or it cannot be read.
func (f *Follower) committedPosition() lsn.Position {
	at, ok := f.o.Store.PositionOf(f.committed())
	if !ok {
		return lsn.Position{}
	}
	return at
}

// voidTerm is the term of the pair's last forced failover, if this node's log ends before it; 0 otherwise. What such a
// log has and the forced history lacks is void, also below Void.After: the histories of a node that was put back, and
// of the one that is forced then, may have parted long before.
func (f *Follower) voidTerm() uint64 {
	if f.o.Store.End().Term >= f.o.Void.Term {
		return 0
	}
	return f.o.Void.Term
}

// checkWelcome refuses to go on as an active says if that would cut or replace records that are committed. It notes
// whether the active is known to have all of them.
func (f *Follower) checkWelcome(w *Welcome) error {
	n, at := f.committed(), w.ResumeAfter
	if n == 0 || mutate.Off("INV-13-standby-believes-any-active") {
		f.confirmed = true
		return nil
	}
	switch own, ok := f.o.Store.PositionOf(at.LSN); {
	case at.LSN < n && !w.SnapshotRequired && (f.voidTerm() == 0 || !w.HoldsCommitted):
		return f.behind(n, fmt.Sprintf("it has this node's records up to %v", at))
	case w.HoldsCommitted:
		f.confirmed = true
		return nil
	case at.IsZero():
		return nil // its log begins too late for it to tell: the snapshot will
	case at.LSN < n:
		return f.behind(n, fmt.Sprintf("it has this node's records up to %v", at))
	case ok && own != at:
		return f.behind(n, fmt.Sprintf("it says that both have %v, and this node has %v there", at, own))
	default:
		f.confirmed = true
		return nil
	}
}

// checkSnapshot refuses a snapshot that would take the place of records that are committed, and that the active may
// lack.
func (f *Follower) checkSnapshot(h *SnapshotHeader) error {
	n := f.committed()
	switch {
	case h.HoldsCommitted, f.confirmed, h.Position.LSN >= n:
		return nil
	case f.resync.Load() != nil:
		return fmt.Errorf("%w: it holds %v, and LSN %d is committed", errOldSnapshot, h.Position, n)
	default:
		// Neither log has a record of the other one. Had the active committed that far, its log would begin behind it,
		// or have it; and a checkpoint holds what is before the log.
		return f.behind(n, fmt.Sprintf("its checkpoint holds %v", h.Position))
	}
}

// behind is the error for an active that lacks committed records.
func (f *Follower) behind(committed uint64, has string) error {
	return fmt.Errorf("%w: this node knows everything up to LSN %d to be committed, of the active at %s %s. Nothing "+
		"was cut", ErrBehind,
		committed, f.o.Address, has)
}
