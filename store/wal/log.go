// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/iolock"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// Log is an open log. The package comment describes the allowed concurrency.
//
// Invariants:
//
//   - segs is never empty; the last segment receives the next block; each begins where the previous one ends.
//   - synced ≤ end; marked ≤ synced.LSN: no block header has a durable LSN that is not synced.
//   - markedCommit ≤ committed ≤ end: no block header has a commit LSN that is not committed, and only records in the
//     log are committed.
//   - block headers are written only by Append, writeSeal and redoTruncate, under writeMu.
type Log struct {
	o      Options
	spares *spares

	trimMu iolock.Mutex
	// writeMu is held while the end of the log changes; end can then be read without mu. It guards header, vec, past and
	// ended.
	writeMu iolock.Mutex
	header  [blockHeaderBytes]byte
	vec     [2][]byte
	past    vfs.Bypass
	ended   []lsn.Position // ends of the terms that the block being appended finishes
	// syncMu is held while files are synced. It guards syncing.
	syncMu  iolock.Mutex
	syncing []*segment

	// mu guards the fields below, and the fields of segments that are marked as guarded. Only Close accesses files under
	// it.
	mu     sync.RWMutex
	segs   []*segment
	end    lsn.Position
	synced lsn.Position
	marked uint64 // the highest durable LSN in a block header
	// committed is the highest record known to be committed, markedCommit the highest commit LSN in a block header.
	committed, markedCommit uint64
	// termEnds contains the ends of finished terms, oldest first. None is before the first segment's prev.
	termEnds    []lsn.Position
	dirty       []*segment // with unsynced blocks, oldest first
	dirtyDir    bool
	holds       map[*Hold]uint64
	released    uint64
	discarded   uint64
	truncations uint64
	closed      bool

	failure  atomic.Pointer[error]
	failed   chan struct{}
	failOnce sync.Once

	recovery recovery
	counters counters

	stop        chan struct{} // closed by Close
	wakeKeeper  chan struct{}
	keeping     atomic.Bool
	wakeTrim    chan struct{}
	lowSpace    atomic.Bool   // see SetLowSpace
	wakeHeaders chan struct{} // signals a new segment
	wakePrepare chan struct{}
	workers     sync.WaitGroup
}

type counters struct {
	seals, rolls, stalledRolls atomic.Uint64 // stalledRolls counts segments created while a commit waited
}

type recovery struct {
	records uint64 // verified
	// torn is set if a torn tail was truncated. The other torn fields are its location, and its size without later
	// segments.
	torn             bool
	tornSegment      string
	tornOffset       int64
	tornBytes        int64
	finishedTruncate bool // set if an interrupted TruncateAfter or Reset was completed
}

// Open opens or creates the log in a directory. It completes an interrupted truncation, truncates a torn tail, and
// syncs the records that it has verified (Options.VerifyFrom). It returns a *CorruptError if durable records are
// corrupt.
func Open(options Options) (*Log, error) {
	o, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Log{
		o:           o,
		spares:      &spares{fs: o.FS, dir: o.Dir, sizeBytes: o.SegmentBytes, zeros: o.Sync == SyncAlways},
		holds:       map[*Hold]uint64{},
		failed:      make(chan struct{}),
		stop:        make(chan struct{}),
		wakeKeeper:  make(chan struct{}, 1),
		wakeTrim:    make(chan struct{}, 1),
		wakeHeaders: make(chan struct{}, 1),
		wakePrepare: make(chan struct{}, 1),
	}
	if err := l.load(); err != nil {
		return nil, errors.Join(err, l.closeFiles())
	}
	l.past.Use(o.Cache)
	if l.recovery.torn {
		o.Events(events.LogTailTruncated{
			Segment: l.recovery.tornSegment, Offset: l.recovery.tornOffset, Bytes: l.recovery.tornBytes, End: l.end,
		})
	}
	l.workers.Add(2)
	go l.prepareSegments()
	go l.keep()
	wake(l.wakePrepare)
	wake(l.wakeKeeper)
	return l, nil
}

// Close makes all records durable in every sync mode, writes a seal if the last block header lacks a durable LSN or
// commit LSN, and closes the files. If the log has failed, it only closes the files. A second call returns ErrClosed.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return ErrClosed
	}
	l.closed = true
	l.mu.Unlock()
	close(l.stop)
	l.workers.Wait()

	l.trimMu.Lock()
	defer l.trimMu.Unlock()
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	var err error
	if l.failure.Load() == nil {
		if err = l.syncDirty(); err == nil {
			err = l.writeSeal()
		}
		if err == nil {
			err = l.syncDirty()
		}
	}
	return errors.Join(err, l.closeFiles())
}

func (l *Log) closeFiles() error {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	l.mu.RLock()
	defer l.mu.RUnlock()
	errs := []error{l.spares.close()}
	for _, s := range l.segs {
		errs = append(errs, s.file.Close())
	}
	return errors.Join(errs...)
}

func (l *Log) usable() error {
	if err := l.failure.Load(); err != nil {
		return *err
	}
	return l.usableForReading()
}

// fail marks the log as failed (INV-7) and returns the error. Later calls of fail return the first error.
func (l *Log) fail(what string, err error) error {
	l.failOnce.Do(func() {
		failure := fmt.Errorf("%w: %s: %w", ErrFailed, what, err)
		l.failure.Store(&failure)
		close(l.failed)
	})
	return *l.failure.Load()
}

func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func (l *Log) prepareSegments() {
	defer l.workers.Done()
	for {
		select {
		case <-l.stop:
			return
		case <-l.failed:
			return
		case <-l.wakePrepare:
		}
		err := l.spares.prepare(l.stop)
		switch {
		case err == nil || errors.Is(err, errStopped):
		case errors.Is(err, ErrNoSpace):
			// The commit that needs the segment retries this, and returns the error to its caller.
			l.o.Events(events.SegmentNotPrepared{Err: err})
		default:
			_ = l.fail("preparing a segment", err) // reported by the keeper
			return
		}
	}
}

// keep is the goroutine that writes a seal when the log is idle, and syncs the log in mode SyncInterval. It also syncs
// the headers of new segments, trims the log after the release of a hold and on low disk space, and reports a failure.
func (l *Log) keep() {
	defer l.workers.Done()
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	seen, failed := uint64(0), l.failed
	for {
		select {
		case <-l.stop:
			return
		case <-failed:
			failed = nil
			err := *l.failure.Load()
			l.o.Events(events.LogFailed{Err: err})
		case <-l.wakeTrim:
			l.trim()
		case <-l.wakeHeaders:
			_ = l.syncHeaders() // the error is sticky, and reported here
		case <-l.wakeKeeper:
			if l.keeperInterval() > 0 && l.keeping.CompareAndSwap(false, true) {
				timer.Reset(l.keeperInterval())
			}
		case <-timer.C:
			end := l.End().LSN
			if l.tick(end == seen) {
				timer.Reset(l.keeperInterval())
			} else if l.keeping.Store(false); l.failure.Load() == nil && l.wantsSeal() { // its signal was suppressed
				wake(l.wakeKeeper)
			}
			seen = end
		}
	}
}

func (l *Log) wakeKeeperLater() {
	if !l.keeping.Load() {
		wake(l.wakeKeeper)
	}
}

func (l *Log) keeperInterval() time.Duration {
	if l.o.Sync == SyncInterval {
		return l.o.SyncInterval
	}
	return l.o.SealAfter
}

// tick performs the due work of keep once, and reports whether more work will follow.
func (l *Log) tick(idle bool) bool {
	if l.failure.Load() != nil {
		return false
	}
	if l.o.Sync == SyncInterval && l.hasDirty() {
		return l.syncDirty() == nil
	}
	if !l.wantsSeal() || l.o.SealAfter < 0 {
		return false
	}
	if !idle {
		return true
	}
	l.seal()
	return false
}

// seal writes a seal and, except with SyncOff, syncs it.
func (l *Log) seal() {
	l.writeMu.Lock()
	err := l.writeSeal()
	l.writeMu.Unlock()
	if err == nil && l.o.Sync != SyncOff {
		_ = l.syncDirty()
	}
}

func (l *Log) hasDirty() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.dirty) > 0
}

// End returns the position of the last appended record.
func (l *Log) End() lsn.Position {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.end
}

// Durable returns the position of the last record that is durable according to the sync mode: synced with SyncAlways,
// otherwise written.
func (l *Log) Durable() lsn.Position {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.o.Sync == SyncAlways {
		return l.synced
	}
	return l.end
}

// First returns the LSN of the oldest record in the log, or 0 if the log is empty.
func (l *Log) First() uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if first := l.segs[0].first; first <= l.end.LSN {
		return first
	}
	return 0
}

// Start returns the position directly before the first record in the log.
func (l *Log) Start() lsn.Position {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.segs[0].prev
}

// Bytes returns the disk space used by blocks, without the unused part of segments. A segment that Open has skipped
// counts as full until it is read.
func (l *Log) Bytes() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var total int64
	for _, s := range l.segs {
		total += s.end - segmentDataStart
	}
	return total
}

// TermEnds returns the last position of each term in the log, newest first, beginning with End. The last element may be
// the position directly before the first record.
func (l *Log) TermEnds() []lsn.Position {
	l.mu.RLock()
	defer l.mu.RUnlock()
	ends := make([]lsn.Position, 0, len(l.termEnds)+1)
	if !l.end.IsZero() {
		ends = append(ends, l.end)
	}
	for i := len(l.termEnds) - 1; i >= 0; i-- {
		ends = append(ends, l.termEnds[i])
	}
	return ends
}

// PositionOf returns the position of a record in the log, or of the record directly before the first. If the record
// is not the last of its term, PositionOf reads it from the disk. It returns false if the record is missing or
// unreadable.
func (l *Log) PositionOf(record uint64) (lsn.Position, bool) {
	if pos, ok := l.knownPosition(record); ok {
		return pos, true
	}
	r, err := l.ReadFrom(record)
	if err == nil {
		var f Frame
		if f, err = r.Next(); err == nil {
			return f.Pos, true
		}
	}
	if errors.Is(err, ErrCorrupt) {
		l.o.Events(events.RecordUnreadable{LSN: record, Err: err})
	}
	return lsn.Position{}, false
}

func (l *Log) knownPosition(record uint64) (lsn.Position, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if record == l.end.LSN {
		return l.end, true
	}
	if record+1 == l.segs[0].first {
		return l.segs[0].prev, true
	}
	for _, pos := range l.termEnds {
		if pos.LSN == record {
			return pos, true
		}
	}
	return lsn.Position{}, false
}

func (l *Log) openFile(path string, flag int) (vfs.File, error) {
	f, err := l.o.FS.OpenFile(path, flag, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening a file of the log: %w", err)
	}
	return f, nil
}
