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

// Log is an open log. See the package comment for what may run beside what.
//
// It holds these:
//
//   - segs is never empty; the last one is where the next block goes; each begins where the one before it ends.
//   - synced ≤ end; marked ≤ synced.LSN: no block promises more than an fsync has done.
//   - markedCommit ≤ committed ≤ end: no block tells more than is committed, and nothing is committed that is not
//     there.
//   - a block header is only ever written by Append, seal and the redo of a cut, under writeMu.
type Log struct {
	o      Options
	spares *spares

	// trimMu is held while old segments leave the log.
	trimMu iolock.Mutex
	// writeMu is held by whatever changes the end of the log. It guards header, vec, past and ended, and reading end
	// needs no mu as long as it is held.
	writeMu iolock.Mutex
	header  [blockHeaderBytes]byte
	vec     [2][]byte
	past    vfs.Bypass
	ended   []lsn.Position // terms that end with the block that is being appended
	// syncMu is held while files are synced. It guards syncing.
	syncMu  iolock.Mutex
	syncing []*segment

	// mu guards what is below, and what is guarded in a segment. No disk access happens under it.
	mu     sync.RWMutex
	segs   []*segment
	end    lsn.Position
	synced lsn.Position
	marked uint64 // the highest durable LSN in a block header
	// committed is the highest record that is known to be committed, markedCommit the highest that a block header tells
	// of.
	committed, markedCommit uint64
	// the last position of each finished term, oldest first; none is before the first segment's prev
	termEnds []lsn.Position
	dirty    []*segment       // the segments with blocks that no sync covers, oldest first
	dirtyDir bool             // a segment got its name, and no sync covers that
	holds    map[*Hold]uint64 // the lowest record that each keeps
	released uint64           // the highest LSN that Release was called with
	givenUp  uint64           // the highest LSN that GiveUp was called with
	cuts     uint64           // how often the tail was cut, so that readers notice
	closed   bool

	failure  atomic.Pointer[error]
	failed   chan struct{} // closed when failure is set
	failOnce sync.Once

	opened    time.Time
	recovery  Recovery
	counters  counters
	writeFrom atomic.Int64 // when the write that is under way began, by now; 0 if none is
	syncFrom  atomic.Int64

	stop        chan struct{} // closed by Close
	wakeKeeper  chan struct{} // there may be something to seal or sync
	keeping     atomic.Bool   // the keeper looks by itself, after a while
	wakeTrim    chan struct{}
	pressed     atomic.Bool   // see SetPressed
	wakeHeaders chan struct{} // a segment began that no Sync will make durable soon
	wakePrepare chan struct{}
	workers     sync.WaitGroup
}

type counters struct {
	appends, appendedBytes, syncs, seals, rolls, stalledRolls atomic.Uint64
}

// Stats are figures since Open.
type Stats struct {
	// Appends is the number of blocks, AppendedBytes what they took on disk.
	Appends, AppendedBytes uint64
	// Syncs is the number of fsyncs of segments, Seals that of empty blocks.
	Syncs, Seals uint64
	// Rolls is the number of new segments; StalledRolls how many of them had to be made while a commit waited.
	Rolls, StalledRolls uint64
}

// Recovery tells what Open found.
type Recovery struct {
	// Segments and Records are how many there are, and how many records were verified.
	Segments int
	Records  uint64
	// End is the last record that was found.
	End lsn.Position
	// Torn tells that remains of writes were found behind the end and cut: writes that no sync had covered.
	// TornSegment, TornOffset and TornBytes say where and how much, as far as it can be told.
	Torn        bool
	TornSegment string
	TornOffset  int64
	TornBytes   int64
	// FinishedCut tells that a TruncateAfter or Reset was completed that a crash had interrupted.
	FinishedCut bool
	// Duration is how long it took.
	Duration time.Duration
}

// Recovery tells what Open found.
func (l *Log) Recovery() Recovery { return l.recovery }

// Stats returns figures since Open.
func (l *Log) Stats() Stats {
	c := &l.counters
	return Stats{
		Appends: c.appends.Load(), AppendedBytes: c.appendedBytes.Load(), Syncs: c.syncs.Load(), Seals: c.seals.Load(),
		Rolls: c.rolls.Load(), StalledRolls: c.stalledRolls.Load(),
	}
}

// Open opens the log in a directory, or creates it. It recovers: it finishes an interrupted cut, reads to the end of
// the log, cuts a torn tail, and makes everything that it found durable. A damaged middle is a *DamagedError. The
// caller must Close the result.
func Open(options Options) (*Log, error) {
	o, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	l := &Log{
		o:           o,
		opened:      began,
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
	l.recovery.Duration = time.Since(began)
	l.past.Use(o.Cache)
	if l.recovery.Torn {
		o.Events(events.LogTailCut{
			Segment: l.recovery.TornSegment, Offset: l.recovery.TornOffset, Bytes: l.recovery.TornBytes, End: l.end,
		})
	}
	l.workers.Add(2)
	go l.prepareSegments()
	go l.keep()
	wake(l.wakePrepare)
	wake(l.wakeKeeper)
	return l, nil
}

// Close makes everything durable, whatever the sync mode, seals the log, and ends its goroutines. After a failure it
// only does the last.
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

// usable returns why the log cannot be used any more.
func (l *Log) usable() error {
	if err := l.failure.Load(); err != nil {
		return *err
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return ErrClosed
	}
	return nil
}

// fail stops the log for good (INV-7) and returns the error that every later call gets.
func (l *Log) fail(what string, err error) error {
	l.failOnce.Do(func() {
		failure := fmt.Errorf("%w: %s: %w", ErrFailed, what, err)
		l.failure.Store(&failure)
		close(l.failed)
	})
	return *l.failure.Load()
}

// wake makes the goroutine that listens look; one reminder is enough.
func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// prepareSegments is the goroutine that has the next segment ready before it is needed.
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
			// The commit that needs the segment tries again, and returns its error to its caller.
			l.o.Events(events.SegmentNotPrepared{Err: err})
		default:
			_ = l.fail("preparing a segment", err) // reported by the keeper
			return
		}
	}
}

// keep is the goroutine that seals the log when nothing happens, syncs it in SyncInterval, recycles what a released
// hold set free, and reports a failure.
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
			_ = l.syncHeaders() // sticky, and reported here
		case <-l.wakeKeeper:
			if l.keepEvery() > 0 && l.keeping.CompareAndSwap(false, true) {
				timer.Reset(l.keepEvery())
			}
		case <-timer.C:
			end := l.End().LSN
			if l.tick(end == seen) {
				timer.Reset(l.keepEvery())
			} else if l.keeping.Store(false); l.failure.Load() == nil && l.wantsSeal() { // its reminder was not sent
				wake(l.wakeKeeper)
			}
			seen = end
		}
	}
}

// wakeKeeperLater has the keeper look after a while, unless it does anyway.
func (l *Log) wakeKeeperLater() {
	if !l.keeping.Load() {
		wake(l.wakeKeeper)
	}
}

func (l *Log) keepEvery() time.Duration {
	if l.o.Sync == SyncInterval {
		return l.o.SyncInterval
	}
	return l.o.SealAfter
}

// tick does what is due and tells whether there will be more to do. Errors are sticky and reported by keep.
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

// seal writes a seal, if it is of any use, and syncs it as the mode says. Errors are sticky and reported by keep.
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

// End returns the last record that was appended.
func (l *Log) End() lsn.Position {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.end
}

// Durable returns the last record that is as durable as the sync mode asks for: synced with SyncAlways, written
// otherwise.
func (l *Log) Durable() lsn.Position {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.o.Sync == SyncAlways {
		return l.synced
	}
	return l.end
}

// SyncedLSN returns the last record that an fsync covers, whatever the sync mode.
func (l *Log) SyncedLSN() uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.synced.LSN
}

// First returns the oldest record in the log; 0 if there is none.
func (l *Log) First() uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if first := l.segs[0].first; first <= l.end.LSN {
		return first
	}
	return 0
}

// Bytes returns how much disk space the records take, without what is only prepared.
func (l *Log) Bytes() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var total int64
	for _, s := range l.segs {
		total += s.end - segmentDataStart
	}
	return total
}

// ReadyBytes returns how much can be appended without new disk space, about.
func (l *Log) ReadyBytes() int64 {
	l.mu.RLock()
	active := l.segs[len(l.segs)-1]
	rest := max(active.sizeBytes-active.end, 0)
	l.mu.RUnlock()
	return rest + l.spares.readyBytes()
}

// now is the time since the log was opened, in nanoseconds, and never 0. The clock on the wall may jump, this one does
// not.
func (l *Log) now() int64 { return int64(time.Since(l.opened)) + 1 }

// StalledFor returns how long the oldest write or fsync is under way; 0 if none is. A disk that hangs shows here.
func (l *Log) StalledFor() time.Duration {
	now := l.now()
	var longest time.Duration
	for _, from := range []int64{l.writeFrom.Load(), l.syncFrom.Load()} {
		if from != 0 {
			longest = max(longest, time.Duration(now-from))
		}
	}
	return longest
}

// TermEnds returns the last position of each term in the log, newest first: End, then the ends of the terms before. The
// last one may be the position just before the first record.
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

// PositionOf returns the position of a record in the log, or of the one just before the first. It reads the disk unless
// the record is the last of its term. False means that it is not there, or cannot be read.
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
	if errors.Is(err, ErrDamaged) {
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

// openFile opens one of the log's files for reading and writing.
func (l *Log) openFile(path string, flag int) (vfs.File, error) {
	f, err := l.o.FS.OpenFile(path, flag, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening a file of the log: %w", err)
	}
	return f, nil
}
