// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// A node that rejoins after a forced failover may have acknowledged records that the pair no longer has. An unapplied
// tail is truncated, which saves it to a file. An applied tail is saved to the same kind of file before a snapshot
// replaces it.

// DiscardedRange identifies the records discarded by a forced failover, if any: those after LSN After, in a log that
// ends before Term.
type DiscardedRange struct{ Term, After uint64 }

func (v DiscardedRange) holds(end lsn.Position) bool { return end.Term < v.Term && end.LSN > v.After }

func (f *Follower) reportDiscarded(from uint64, end lsn.Position, kept store.TruncateReport) {
	f.log.Warn("RECORDS OF THIS NODE ARE NO LONGER PART OF THE PAIR: the other node became active without them, "+
		"and some may have been "+
		"acknowledged. They are saved to a file; lockstep store dump-log shows them", zap.Uint64("from", from),
		zap.Stringer("up_to", end),
		zap.Int("records", kept.Records), zap.String("kept_in", kept.File))
}

func (f *Follower) diverged(common lsn.Position) {
	f.parted = nil
	if common.IsZero() {
		return // unknown to the active
	}
	if own, ok := f.o.Store.PositionOf(common.LSN); !ok || own != common {
		common = lsn.Position{} // even that record differs: everything left in the log diverges
	}
	f.parted = &common.LSN
}

func (f *Follower) saveDiscarded() error {
	end := f.o.Store.End()
	after, void := end.LSN, false
	if f.o.DiscardedRange.holds(end) {
		after, void = f.o.DiscardedRange.After, true
	}
	if f.parted != nil && *f.parted < end.LSN {
		after, void = *f.parted, true // the active knows the exact record
	}
	if !void {
		return nil
	}
	kept, first, err := f.o.Store.SaveTail(after)
	if err != nil {
		return fmt.Errorf("%w: save the records that the active does not have: %w", errStore, err)
	}
	f.parted = nil
	f.reportDiscarded(after+1, end, kept)
	if kept.Records == 0 || first > after+1 {
		f.log.Warn("the log did not reach back to the first of them: messages of the others are in page.db_old, "+
			"until a rewrite or drop-old removes that",
			zap.Uint64("from", after+1), zap.Uint64("first_kept", first))
	}
	return nil
}

func (f *Follower) recordCommit(lsn uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.ActiveCommitLSN = max(f.status.ActiveCommitLSN, lsn)
}
