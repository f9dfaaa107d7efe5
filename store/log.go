// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// Append writes one or more whole log frames that continue End, as one write. They are durable when Sync returns. The
// store keeps the slice; the caller must not modify it. Only one goroutine at a time may append.
//
// On a full disk Append returns an error that wraps wal.ErrNoSpace. Nothing was written, and the same frames can be
// appended later. Frames that are too large or do not continue End are rejected with wal.ErrTooLarge and
// wal.ErrNotContiguous. Any other failed write is final (INV-7).
func (s *Store) Append(frames []byte, end lsn.Position) error {
	if err := s.Usable(); err != nil {
		return err
	}
	before := s.log.End()
	if err := s.log.Append(frames, end); err != nil {
		return s.logError("append to the log", err)
	}
	s.recent.keep(appended{frames: frames, before: before, end: end}, s.o.MemoryBudget/4)
	return nil
}

// logError fails the store if the log has failed.
func (s *Store) logError(what string, err error) error {
	switch {
	case errors.Is(err, wal.ErrFailed):
		s.fail(err)
	case errors.Is(err, wal.ErrClosed):
		return ErrClosed
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Sync makes all appended records durable, according to the sync mode. A failed fsync is fatal (INV-7).
func (s *Store) Sync() error {
	if err := s.Usable(); err != nil {
		return err
	}
	if err := s.log.Sync(); err != nil {
		return s.logError("sync the log", err)
	}
	return nil
}

// SyncsCommits reports whether Sync waits for the disk, which is the case with sync mode always.
func (s *Store) SyncsCommits() bool { return s.o.Sync == wal.SyncAlways }

// End returns the position of the last record in the log.
func (s *Store) End() lsn.Position { return s.log.End() }

// Durable returns the position of the last record that is durable according to the sync mode.
func (s *Store) Durable() lsn.Position { return s.log.Durable() }

// FirstLSN returns the LSN of the oldest record in the log, or 0 if the log is empty.
func (s *Store) FirstLSN() uint64 { return s.log.First() }

// TermEnds returns the last position of each term that has records in the log, newest first.
func (s *Store) TermEnds() []lsn.Position { return s.log.TermEnds() }

// PositionOf returns the full position of a record in the log.
func (s *Store) PositionOf(n uint64) (lsn.Position, bool) { return s.log.PositionOf(n) }

// ReadLog returns a reader of the log that starts at record from. It returns wal.ErrTrimmed if the log begins later.
func (s *Store) ReadLog(from uint64) (*wal.Reader, error) {
	r, err := s.log.ReadFrom(from)
	if err != nil {
		return nil, fmt.Errorf("read the log from LSN %d: %w", from, err)
	}
	return r, nil
}

// HoldLog keeps the records from n on in the log until the hold is released.
func (s *Store) HoldLog(n uint64) *wal.Hold { return s.log.Hold(n) }

// NoteCommitted records that the records up to upTo are committed, before they are applied. Records that are not in the
// log yet are ignored. The log persists this with its next block, or after 100 ms with a separate block (INV-13). The
// call is cheap and safe for concurrent use.
func (s *Store) NoteCommitted(upTo uint64) { s.log.NoteCommitted(upTo) }

// Committed returns the LSN of the last record that is known to be committed: never above End, never below Applied.
// After Open it may be slightly lower than before (store/FORMAT.md). It describes the content of the store: after the
// installation of a snapshot it is the snapshot's position, after a cut at most the new end, in a restored store its
// checkpoint, in a quarantined one 0. ClearLoss does not change it: lost bytes do not make the remaining ones
// uncommitted.
func (s *Store) Committed() uint64 {
	if mutate.Off("INV-13-committed-records-are-truncated") {
		return 0
	}
	return s.log.Committed()
}

// TruncateReport is the result of TruncateTail.
type TruncateReport struct {
	Records int
	// File keeps them, readable as a log segment; empty if nothing was truncated.
	File string
}

// TruncateTail removes every record after the given one, which must be in the log, and moves them to a separate file.
// It returns ErrApplied if one of them was applied: a divergence below that needs a snapshot (INV-5). It returns
// ErrCommitted if one is known to be committed (INV-13), unless void is set because a forced failover discarded them.
// The truncation is durable when TruncateTail returns. No append or apply may be in progress.
func (s *Store) TruncateTail(after lsn.Position, void bool) (TruncateReport, error) {
	if err := s.Usable(); err != nil {
		return TruncateReport{}, err
	}
	if applied := s.Applied(); after.LSN < applied.LSN {
		return TruncateReport{}, fmt.Errorf("%w: cannot truncate after %v, applied up to %v", ErrApplied, after, applied)
	}
	if committed := s.Committed(); after.LSN < committed && !void {
		return TruncateReport{}, fmt.Errorf("%w: cannot truncate after %v, committed up to LSN %d", ErrCommitted, after,
			committed)
	}
	if after == s.log.End() {
		return TruncateReport{}, nil
	}
	name := s.tailName(after.LSN + 1)
	n, err := s.log.TruncateAfter(after, name)
	if err != nil {
		return TruncateReport{}, s.logError(fmt.Sprintf("truncate the log after %v", after), err)
	}
	s.recent.clear() // the remaining records are read from the log
	return TruncateReport{Records: n, File: name}, nil
}

// SaveTail copies the records after LSN after to a separate file, as far as they are in the log, before the log is
// replaced although the pair has no copy of them. first is the first record in the file. The copy is durable when
// SaveTail returns. No append may be in progress.
func (s *Store) SaveTail(after uint64) (report TruncateReport, first uint64, err error) {
	if err := s.Usable(); err != nil {
		return TruncateReport{}, 0, err
	}
	name := s.tailName(max(after+1, s.log.First()))
	before, n, err := s.log.SaveTail(after, name)
	if err != nil {
		return TruncateReport{}, 0, s.logError(fmt.Sprintf("save the records after %d", after), err)
	}
	if n == 0 {
		return TruncateReport{}, 0, nil
	}
	return TruncateReport{Records: n, File: name}, before.LSN + 1, nil
}

func (s *Store) tailName(first uint64) string {
	return filepath.Join(s.o.Dir, fmt.Sprintf(datadir.TruncatedPrefix+"%020d-%s.seg", first,
		time.Now().UTC().Format("20060102T150405.000")))
}
