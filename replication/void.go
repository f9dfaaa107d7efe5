// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// This file keeps what a forced failover has made void. A node that comes back after one may hold records that were
// acknowledged and that the pair does not have any more. A tail that was not applied is cut, and the cut keeps it; one
// that was applied is replaced by a snapshot, and is kept before that. Its bytes go into the same kind of file.

// Void tells which records a forced failover has made void: those behind LSN After, in the log of a node that has none
// of Term or later. The zero value stands for none.
type Void struct{ Term, After uint64 }

// holds tells whether a log that ends there has such records.
func (v Void) holds(end lsn.Position) bool { return end.Term < v.Term && end.LSN > v.After }

// sayVoid names the file that keeps what is lost.
func (f *Follower) sayVoid(from uint64, end lsn.Position, kept store.CutReport) {
	f.log.Warn("RECORDS OF THIS NODE ARE NOT PART OF THE PAIR ANY MORE: the other node became active without them, "+
		"and some may have been "+
		"acknowledged. They are kept in a file; lockstep store dump-log shows them", zap.Uint64("from", from),
		zap.Stringer("up_to", end),
		zap.Int("records", kept.Records), zap.String("kept_in", kept.File))
}

// diverged notes where the active says that the histories part: what this node has behind that the active does not
// have.
func (f *Follower) diverged(common lsn.Position) {
	f.parted = nil
	if common.IsZero() {
		return // it cannot tell
	}
	if own, ok := f.o.Store.PositionOf(common.LSN); !ok || own != common {
		common = lsn.Position{} // not even that is the same: everything that is left of the log
	}
	f.parted = &common.LSN
}

// keepVoid keeps aside the records that the active does not have, before a snapshot takes their place.
func (f *Follower) keepVoid() error {
	end := f.o.Store.End()
	after, void := end.LSN, false
	if f.o.Void.holds(end) {
		after, void = f.o.Void.After, true
	}
	if f.parted != nil && *f.parted < end.LSN {
		after, void = *f.parted, true // the active knows it to the record
	}
	if !void {
		return nil
	}
	kept, first, err := f.o.Store.KeepTail(after)
	if err != nil {
		return fmt.Errorf("%w: keep the records that the active does not have: %w", errStore, err)
	}
	f.parted = nil
	f.sayVoid(after+1, end, kept)
	if kept.Records == 0 || first > after+1 {
		f.log.Warn("the log did not reach back to the first of them: messages of the others are in page.db_old, "+
			"until a rewrite or drop-old removes that",
			zap.Uint64("from", after+1), zap.Uint64("first_kept", first))
	}
	return nil
}

// noteCommit notes what the active said it has committed.
func (f *Follower) noteCommit(lsn uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.ActiveCommitLSN = max(f.status.ActiveCommitLSN, lsn)
}
