// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// A node that rejoins after a forced failover may have records, possibly acknowledged, that the pair no longer has. An
// unapplied tail is saved to a file when it is truncated. An applied tail is saved to the same kind of file before a
// snapshot replaces it.

// DiscardedRange identifies the records discarded by a forced failover: those after LSN After in a log that ends before
// Term. The zero value is empty.
type DiscardedRange struct{ Term, After uint64 }

func (v DiscardedRange) contains(end lsn.Position) bool {
	return end.Term < v.Term && end.LSN > v.After
}

func (f *Follower) reportDiscarded(from uint64, end lsn.Position, kept store.SavedTail) {
	f.log.Warn("saved records that are not part of the pair's history; some may have been acknowledged",
		zap.Uint64("from", from), zap.Stringer("up_to", end), zap.Int("records", kept.Records),
		zap.String("kept_in", kept.File), zap.String("hint", "show them with lockstep store dump-log"))
}

func (f *Follower) recordCommon(common lsn.Position) {
	f.commonLSN = nil
	if common.IsZero() {
		return // the active does not know the last common record
	}
	if own, ok := f.o.Store.PositionOf(common.LSN); !ok || own != common {
		common = lsn.Position{} // the record differs: the whole log diverges
	}
	f.commonLSN = &common.LSN
}

func (f *Follower) saveDiscarded() error {
	end := f.o.Store.End()
	after, discarded := end.LSN, false
	if f.o.DiscardedRange.contains(end) {
		after, discarded = f.o.DiscardedRange.After, true
	}
	if f.commonLSN != nil && *f.commonLSN < end.LSN {
		after, discarded = *f.commonLSN, true // exact, from the active
	}
	if !discarded {
		return nil
	}
	kept, first, err := f.o.Store.SaveTail(after)
	if err != nil {
		return fmt.Errorf("%w: save discarded records: %w", errStore, err)
	}
	f.commonLSN = nil
	f.reportDiscarded(after+1, end, kept)
	if kept.Records == 0 || first > after+1 {
		f.log.Warn("log does not contain all discarded records; page.db_old contains the messages of the others until "+
			"a rewrite or drop-old removes it", zap.Uint64("from", after+1), zap.Uint64("first_kept", first))
	}
	return nil
}

func (f *Follower) recordCommit(lsn uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.ActiveCommitLSN = max(f.status.ActiveCommitLSN, lsn)
}
