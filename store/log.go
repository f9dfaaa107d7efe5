// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// Append writes frames, one or more whole log frames that continue End, to the log as one write. It is not durable
// before Sync returns. The store keeps the slice: the caller must not touch it again. One goroutine at a time may
// append.
//
// It returns an error that wraps wal.ErrNoSpace when the disk is full: nothing was written, and the same frames can be
// appended later. Frames that are too large or do not continue End are refused with wal.ErrTooLarge and
// wal.ErrNotContiguous; nothing was written. Every failed write is final (INV-7).
func (s *Store) Append(frames []byte, end lsn.Position) error {
	if err := s.usable(); err != nil {
		return err
	}
	before := s.log.End()
	if err := s.log.Append(frames, end); err != nil {
		return s.logError("append to the log", err)
	}
	s.recent.keep(appended{frames: frames, before: before, end: end}, s.o.MemoryBudget/4)
	return nil
}

// logError makes the failure of the log that of the store, and leaves a refusal what it is.
func (s *Store) logError(what string, err error) error {
	switch {
	case errors.Is(err, wal.ErrFailed):
		s.fail(err)
	case errors.Is(err, wal.ErrClosed):
		return ErrClosed
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Sync makes everything appended durable, as far as the sync mode asks for. A failed fsync is fatal (INV-7).
func (s *Store) Sync() error {
	if err := s.usable(); err != nil {
		return err
	}
	if err := s.log.Sync(); err != nil {
		return s.logError("sync the log", err)
	}
	return nil
}

// SyncsCommits tells whether Sync waits for the disk: the sync mode is always.
func (s *Store) SyncsCommits() bool { return s.o.Sync == wal.SyncAlways }

// End is the last record in the log.
func (s *Store) End() lsn.Position { return s.log.End() }

// Durable is the last record that counts as durable under the sync mode.
func (s *Store) Durable() lsn.Position { return s.log.Durable() }

// FirstLSN is the oldest record that the log still has; 0 when it has none.
func (s *Store) FirstLSN() uint64 { return s.log.First() }

// TermEnds returns the last position of each term that the log has records of, newest first.
func (s *Store) TermEnds() []lsn.Position { return s.log.TermEnds() }

// PositionOf returns the full position of a record that the log has.
func (s *Store) PositionOf(n uint64) (lsn.Position, bool) { return s.log.PositionOf(n) }

// ReadLog returns a reader of the log that begins with record from; wal.ErrTrimmed if the log begins later.
func (s *Store) ReadLog(from uint64) (*wal.Reader, error) {
	r, err := s.log.ReadFrom(from)
	if err != nil {
		return nil, fmt.Errorf("read the log from LSN %d: %w", from, err)
	}
	return r, nil
}

// HoldLog keeps the records from n on in the log until the hold is released.
func (s *Store) HoldLog(n uint64) *wal.Hold { return s.log.Hold(n) }

// NoteCommitted says that the records up to upTo are committed, as far as they are in the log, before they are applied.
// The log keeps that, with its next block or, 100 ms later, with one for itself (INV-13). It is cheap; any goroutine
// may call it.
func (s *Store) NoteCommitted(upTo uint64) { s.log.NoteCommitted(upTo) }

// Committed is the last record that is known to be committed: never above End, never below Applied. What is known right
// after Open is what the log and the checkpoint say; it may be a little less than what was known before
// (store/FORMAT.md). It is about what the store holds: after a snapshot was installed it is the snapshot's position,
// after a cut it is not above the new end, a store that was restored begins with its checkpoint, and one that was set
// aside with nothing. ClearLoss leaves it as it is: bytes that are gone do not make those uncommitted that are still
// there.
func (s *Store) Committed() uint64 {
	if mutate.Off("INV-13-committed-records-are-cut") {
		return 0
	}
	return s.log.Committed()
}

// CutReport tells what CutTail did.
type CutReport struct {
	// Records that were cut.
	Records int
	// File is the file that keeps them, readable as a log segment; empty when nothing was cut.
	File string
}

// CutTail removes every record after the given one, which must be in the log, and keeps what it cut in a file aside. It
// returns ErrApplied if one of them was applied already: a divergence below that needs a snapshot (INV-5). It returns
// ErrCommitted if one of them is known to be committed (INV-13), unless void tells that a forced failover made them
// void. Durable before it returns. No append or apply may be under way.
func (s *Store) CutTail(after lsn.Position, void bool) (CutReport, error) {
	if err := s.usable(); err != nil {
		return CutReport{}, err
	}
	if applied := s.Applied(); after.LSN < applied.LSN {
		return CutReport{}, fmt.Errorf("%w: cannot cut after %v, applied up to %v", ErrApplied, after, applied)
	}
	if committed := s.Committed(); after.LSN < committed && !void {
		return CutReport{}, fmt.Errorf("%w: cannot cut after %v, committed up to LSN %d", ErrCommitted, after,
			committed)
	}
	if after == s.log.End() {
		return CutReport{}, nil
	}
	name := s.cutName(after.LSN + 1)
	n, err := s.log.TruncateAfter(after, name)
	if err != nil {
		return CutReport{}, s.logError(fmt.Sprintf("cut the log after %v", after), err)
	}
	s.recent.clear() // what is left of them is read from the log
	return CutReport{Records: n, File: name}, nil
}

// KeepTail copies every record behind LSN after, or those of them that the log still has, to a file aside: before the
// log is replaced although the pair has no copy of them. The report tells how many that are; from the first of them on
// the file is whole. Durable before it returns. No append may be under way.
func (s *Store) KeepTail(after uint64) (report CutReport, first uint64, err error) {
	if err := s.usable(); err != nil {
		return CutReport{}, 0, err
	}
	name := s.cutName(max(after+1, s.log.First()))
	before, n, err := s.log.KeepTail(after, name)
	if err != nil {
		return CutReport{}, 0, s.logError(fmt.Sprintf("keep the records after %d", after), err)
	}
	if n == 0 {
		return CutReport{}, 0, nil
	}
	return CutReport{Records: n, File: name}, before.LSN + 1, nil
}

// cutName is the file that keeps records of the log from an LSN on.
func (s *Store) cutName(first uint64) string {
	return filepath.Join(s.o.Dir, fmt.Sprintf(cutPrefix+"%020d-%s.seg", first,
		time.Now().UTC().Format("20060102T150405.000")))
}
