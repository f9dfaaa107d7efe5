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

// Append appends one or more complete frames to the log as one block. The frames must directly follow End; end is the
// position of the last one. Sync makes them durable. The store retains the slice; the caller must not modify it. Only
// one goroutine at a time may append.
//
// On a full disk Append writes nothing and returns an error that wraps wal.ErrNoSpace; the same frames can be
// appended later. Append returns wal.ErrTooLarge or wal.ErrNotContiguous for frames that are too large or do not
// continue End. After any other write error the store is unusable (INV-7).
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

// logError wraps err with the given prefix, and marks the store as failed if the log has failed. If the log is
// closed, logError returns ErrClosed.
func (s *Store) logError(what string, err error) error {
	switch {
	case errors.Is(err, wal.ErrFailed):
		s.fail(err)
	case errors.Is(err, wal.ErrClosed):
		return ErrClosed
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Sync makes all appended records durable, according to the sync mode. After a failed fsync the store is unusable
// (INV-7).
func (s *Store) Sync() error {
	if err := s.Usable(); err != nil {
		return err
	}
	if err := s.log.Sync(); err != nil {
		return s.logError("sync the log", err)
	}
	return nil
}

// SyncsCommits reports whether Sync waits for the disk (sync mode always).
func (s *Store) SyncsCommits() bool { return s.o.Sync == wal.SyncAlways }

// End returns the position of the last record in the log.
func (s *Store) End() lsn.Position { return s.log.End() }

// Durable returns the position of the last record that is durable according to the sync mode.
func (s *Store) Durable() lsn.Position { return s.log.Durable() }

// FirstLSN returns the LSN of the oldest record in the log, or 0 if the log is empty.
func (s *Store) FirstLSN() uint64 { return s.log.First() }

// LogStart returns the position before the first record in the log. It is the zero position if the log begins with
// LSN 1.
func (s *Store) LogStart() lsn.Position { return s.log.Start() }

// TermEnds returns the last position of each term in the log, newest first. The last element may be the position
// directly before the first record.
func (s *Store) TermEnds() []lsn.Position { return s.log.TermEnds() }

// PositionOf returns the position of the record with LSN n, which may be the record directly before the first one in
// the log. It returns false if the record is missing or unreadable.
func (s *Store) PositionOf(n uint64) (lsn.Position, bool) { return s.log.PositionOf(n) }

// ReadLog returns a reader of the log that starts at LSN from. It returns wal.ErrTrimmed if the log begins later, and
// wal.ErrNotInLog if from is beyond the record after End.
func (s *Store) ReadLog(from uint64) (*wal.Reader, error) {
	r, err := s.log.ReadFrom(from)
	if err != nil {
		return nil, fmt.Errorf("read the log from LSN %d: %w", from, err)
	}
	return r, nil
}

// HoldLog retains the records with LSN n or higher in the log until the hold is released.
func (s *Store) HoldLog(n uint64) *wal.Hold { return s.log.Hold(n) }

// NoteCommitted marks the records up to upTo that are in the log as committed (INV-13). It is safe for concurrent
// use.
func (s *Store) NoteCommitted(upTo uint64) { s.log.NoteCommitted(upTo) }

// Committed returns the LSN of the last record that is known to be committed. After a restart it may be lower than
// before (store/FORMAT.md).
func (s *Store) Committed() uint64 {
	if mutate.Off("INV-13-committed-records-are-truncated") {
		return 0
	}
	return s.log.Committed()
}

// SavedTail describes the records that TruncateTail or SaveTail has written to a separate file.
type SavedTail struct {
	Records int
	// File is the path of the file, in the format of a log segment; empty if there were no records.
	File string
}

// TruncateTail moves all records after the given position, which must be in the log, to a separate file. It returns
// ErrApplied if one of them was applied (INV-5), and ErrCommitted if one of them is known to be committed (INV-13).
// discarded permits the truncation of committed records that a forced failover has discarded. The truncation is
// durable when TruncateTail returns. No append or apply may be in progress.
func (s *Store) TruncateTail(after lsn.Position, discarded bool) (SavedTail, error) {
	if err := s.Usable(); err != nil {
		return SavedTail{}, err
	}
	if applied := s.Applied(); after.LSN < applied.LSN {
		return SavedTail{}, fmt.Errorf("%w: cannot truncate after %v, applied up to %v", ErrApplied, after, applied)
	}
	if committed := s.Committed(); after.LSN < committed && !discarded {
		return SavedTail{}, fmt.Errorf("%w: cannot truncate after %v, committed up to LSN %d", ErrCommitted, after,
			committed)
	}
	if after == s.log.End() {
		return SavedTail{}, nil
	}
	name := s.tailName(after.LSN + 1)
	n, err := s.log.TruncateAfter(after, name)
	if err != nil {
		return SavedTail{}, s.logError(fmt.Sprintf("truncate the log after %v", after), err)
	}
	s.recent.clear() // the remaining records are read from the log
	return SavedTail{Records: n, File: name}, nil
}

// SaveTail copies the records that follow the given LSN, and are still in the log, to a separate file. first is the
// LSN of the first record in the file. The copy is durable when SaveTail returns. No append may be in progress.
func (s *Store) SaveTail(after uint64) (report SavedTail, first uint64, err error) {
	if err := s.Usable(); err != nil {
		return SavedTail{}, 0, err
	}
	name := s.tailName(max(after+1, s.log.First()))
	before, n, err := s.log.SaveTail(after, name)
	if err != nil {
		return SavedTail{}, 0, s.logError(fmt.Sprintf("save the records after LSN %d", after), err)
	}
	if n == 0 {
		return SavedTail{}, 0, nil
	}
	return SavedTail{Records: n, File: name}, before.LSN + 1, nil
}

// CopiedTail describes the file of CopyTail.
type CopiedTail struct {
	// File is the path of the file, in the format of a log segment; empty if there were no records.
	File string
	// Before is the position before the first record in the file, and Last is the position of the last record.
	Before, Last lsn.Position
}

// CopyTail copies the records that follow the given LSN and are still in the log, at least up to the current end, to
// a separate file. The store can be in use. The copy is durable when CopyTail returns.
func (s *Store) CopyTail(after uint64) (CopiedTail, error) {
	if err := s.Usable(); err != nil {
		return CopiedTail{}, err
	}
	name := s.tailName(max(after+1, s.log.First()))
	before, last, err := s.log.CopyTail(after, name)
	if err != nil {
		return CopiedTail{}, s.logError(fmt.Sprintf("copy the records after LSN %d", after), err)
	}
	if before == last {
		return CopiedTail{}, nil
	}
	return CopiedTail{File: name, Before: before, Last: last}, nil
}

// FindTail searches for a file that an earlier CopyTail has written. The file must contain the records of this log with
// the LSNs after+1, …, through; it may also contain later records. Records before the start of the log may be missing.
// If no file matches, FindTail returns the zero value.
func (s *Store) FindTail(after, through uint64) (CopiedTail, error) {
	names, err := s.o.FS.ReadDir(s.o.Dir)
	if err != nil {
		return CopiedTail{}, fmt.Errorf("list the data directory: %w", err)
	}
	start := s.log.Start().LSN
	for _, name := range names {
		first, ok := datadir.TruncatedFirst(name)
		if !ok || first <= after || first > max(after, start)+1 {
			continue
		}
		path := filepath.Join(s.o.Dir, name)
		info, err := wal.InspectFile(s.o.FS, path, nil)
		if err != nil {
			return CopiedTail{}, fmt.Errorf("read %s: %w", path, err)
		}
		if at, known := s.log.PositionOf(info.Last.LSN); info.Stop == nil && info.Last.LSN >= through &&
			known && at == info.Last {
			return CopiedTail{File: path, Before: info.Prev, Last: info.Last}, nil
		}
	}
	return CopiedTail{}, nil
}

func (s *Store) tailName(first uint64) string {
	return filepath.Join(s.o.Dir, datadir.TruncatedName(first, time.Now()))
}
