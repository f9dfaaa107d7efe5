// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// Defaults of ArchiveOptions.
const (
	DefaultArchiveInterval  = 15 * time.Second
	DefaultArchiveFileBytes = 64 << 20

	archiveReadBytes = 1 << 20
)

// ArchiveOptions configure an Archiver.
type ArchiveOptions struct {
	// FS is where Dir is; nil means the operating system's.
	FS vfs.FS
	// Dir is the archive of this node; made if it is not there. Required. Each node has its own.
	Dir string
	// Interval is how often what was applied is archived: what a loss of the data directory can cost. 0 means
	// DefaultArchiveInterval.
	Interval time.Duration
	// FileBytes is the size at which a file is ended; 0 means DefaultArchiveFileBytes.
	FileBytes int64
	// MaxHoldBytes is how much log is held while archiving fails. Beyond that the log is let go, so that the node goes
	// on: the archive gets a gap, and point-in-time restore needs a backup made after it. 0 means that the log is held
	// until the disk is full.
	MaxHoldBytes int64
	// Logger gets what an operator should know; nil means none.
	Logger *zap.Logger
}

// ArchiveStatus tells how an Archiver is.
type ArchiveStatus struct {
	// Last record that is archived, durably; the zero Position if there is none.
	Last lsn.Position
	// LastTime is that of the last transaction that is archived; zero if there is none.
	LastTime time.Time
	// Behind is how many applied records are not archived yet.
	Behind uint64
	// Gap is the first record behind the newest gap that this Archiver had to leave; 0 if there was none, or a backup
	// was made since that reaches up to it.
	Gap uint64
	// Err is why archiving does not go on at present; nil if it does.
	Err error
	// Former is the directory to which this Archiver has moved the archive of another history that it found; empty if
	// there was none.
	Former string
}

// Archiver copies the applied records of a store's log to an archive. Its methods are safe for concurrent use.
type Archiver struct {
	o    ArchiveOptions
	s    *store.Store
	lock io.Closer
	stop chan struct{}
	done sync.WaitGroup
	once sync.Once

	work sync.Mutex // held while files are written; guards hold, known and last
	hold *wal.Hold
	// known: last is in the store's log, so that the archive can go on behind it (or the archive is empty).
	known bool
	last  ArchiveFile

	mu       sync.Mutex // guards what follows
	status   ArchiveStatus
	backedUp uint64 // the last record in the newest backup that was made since the start
}

// StartArchiver opens an archive, holds the log from its end on, and archives in the background until Close.
//
// It is to be called after store.Open and before anything is applied: only then is it certain that nothing is recycled
// before it is archived. Errors: ErrBusy, ErrArchiveDamaged. An archive that is not of this store's history, as when
// the store was wiped or restored to an older state, is moved to a directory in it, other-<time>, where a restore can
// use it, and a new one is begun.
func StartArchiver(s *store.Store, o ArchiveOptions) (*Archiver, error) {
	if o.Dir == "" {
		return nil, errors.New("log archive: no directory given")
	}
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Interval <= 0 {
		o.Interval = DefaultArchiveInterval
	}
	if o.FileBytes <= 0 {
		o.FileBytes = DefaultArchiveFileBytes
	}
	a := &Archiver{o: o, s: s, stop: make(chan struct{})}
	a.hold = s.HoldLog(1)
	lock, err := lockPath(o.FS, o.Dir)
	if err != nil {
		a.hold.Release()
		return nil, err
	}
	a.lock = lock
	if err = a.open(); err != nil {
		a.hold.Release()
		return nil, errors.Join(err, lock.Close())
	}
	a.done.Go(a.run)
	return a, nil
}

// open finds the end of the archive.
func (a *Archiver) open() error {
	if err := removeArchiveTmp(a.o.FS, a.o.Dir); err != nil {
		return err
	}
	files, err := ListArchive(a.o.FS, a.o.Dir)
	if err != nil {
		return err
	}
	if len(files) == 0 {
		a.known = true
		return nil
	}
	a.last = files[len(files)-1]
	a.setStatus(func(st *ArchiveStatus) { st.Last, st.LastTime = a.last.Last, a.last.LastTime })
	err = a.compare(files)
	if errors.Is(err, ErrOtherHistory) {
		return a.startOver(err)
	}
	return err
}

func (a *Archiver) run() {
	tick := time.NewTicker(a.o.Interval)
	defer tick.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for {
		select {
		case <-a.stop:
			return
		case <-tick.C:
		}
		_ = a.Flush(ctx) // kept in the status, and logged
	}
}

// Flush archives everything that is applied now; durable when it returns nil.
func (a *Archiver) Flush(ctx context.Context) error {
	a.work.Lock()
	defer a.work.Unlock()
	err := a.flush(ctx)
	if errors.Is(err, ErrOtherHistory) {
		if err = a.startOver(err); err == nil {
			err = a.flush(ctx)
		}
	}
	before := a.Status().Err
	a.setStatus(func(st *ArchiveStatus) {
		st.Last, st.Err = a.last.Last, err
		if !a.last.LastTime.IsZero() {
			st.LastTime = a.last.LastTime // a file without a transaction has none
		}
	})
	switch {
	case err != nil && before == nil:
		a.o.Logger.Error("the log cannot be archived; it is held back meanwhile", zap.String("archive", a.o.Dir),
			zap.Error(err))
	case err == nil && before != nil:
		a.o.Logger.Info("the log is archived again", zap.String("archive", a.o.Dir))
	}
	if err != nil {
		a.letGo()
	}
	return err
}

func (a *Archiver) flush(ctx context.Context) error {
	to := a.s.Applied()
	if !a.known {
		if to.LSN < a.last.Last.LSN {
			return nil // see compare
		}
		if mine, ok := a.s.PositionOf(a.last.Last.LSN); ok && mine != a.last.Last {
			return fmt.Errorf("%w: it ends with %v, and the store has %v there", ErrOtherHistory, a.last.Last, mine)
		}
		a.known = true
	}
	for a.last.Last.LSN < to.LSN {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("archive the log: %w", err)
		}
		before, err := a.next(to)
		if err != nil {
			return err
		}
		if before.LSN == to.LSN {
			break // nothing of it is left in the log
		}
		f, err := a.write(before, to)
		if err != nil {
			return fmt.Errorf("archive the log: %w", noSpace(err))
		}
		if before != a.last.Last && a.last.Records > 0 {
			a.setStatus(func(st *ArchiveStatus) { st.Gap = f.First() })
			a.closeGap()
			a.o.Logger.Warn("the log archive has a gap: records were gone from the log before they were archived; "+
				"make a backup now",
				zap.String("archive", a.o.Dir), zap.Stringer("archived_up_to", a.last.Last),
				zap.Uint64("goes_on_at", f.First()))
		}
		a.last = f
	}
	a.keepFrom(a.last.Last.LSN + 1)
	return nil
}

// next returns the position behind which the next file begins: the end of the archive, or, if the log does not reach
// back that far any more, what comes before the oldest record in it.
func (a *Archiver) next(to lsn.Position) (lsn.Position, error) {
	if a.last.Records > 0 {
		if at, ok := a.s.PositionOf(a.last.Last.LSN); ok {
			if at != a.last.Last {
				return at, fmt.Errorf("%w: it ends with %v, and the store has %v there", ErrOtherHistory, a.last.Last,
					at)
			}
			return at, nil
		}
	}
	first := a.s.FirstLSN()
	if first == 0 || first > to.LSN {
		return to, nil
	}
	if first <= a.last.Last.LSN {
		return to, fmt.Errorf("record %d cannot be read from the log", a.last.Last.LSN)
	}
	at, ok := a.s.PositionOf(first - 1)
	if !ok {
		return to, fmt.Errorf("record %d cannot be read from the log", first-1)
	}
	return at, nil
}

// BackedUp takes note of a complete backup of this store up to record n: a restore that begins with it needs nothing of
// the archive before that.
func (a *Archiver) BackedUp(n uint64) {
	a.mu.Lock()
	a.backedUp = max(a.backedUp, n)
	a.mu.Unlock()
	a.closeGap()
}

// closeGap forgets a gap that a backup reaches over.
func (a *Archiver) closeGap() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.backedUp+1 >= a.status.Gap {
		a.status.Gap = 0
	}
}

// keepFrom moves the hold. A new one is made each time, for an installed snapshot takes all holds away.
func (a *Archiver) keepFrom(n uint64) {
	old := a.hold
	a.hold = a.s.HoldLog(n)
	if old != nil {
		old.Release()
	}
}

// letGo gives up the hold when too much log waits for an archive that cannot be written.
func (a *Archiver) letGo() {
	if a.o.MaxHoldBytes == 0 || a.hold == nil {
		return
	}
	st, err := a.s.Stats()
	if err != nil || st.LogBytes <= a.o.MaxHoldBytes {
		return
	}
	a.hold.Release()
	a.hold = nil
	a.o.Logger.Error("too much log waits for the archive: it is not held any longer, and the archive will have a gap",
		zap.Int64("log_bytes", st.LogBytes), zap.Int64("limit", a.o.MaxHoldBytes))
}

// write makes one file: the records after before, up to the one given or until the file is large enough.
func (a *Archiver) write(before, to lsn.Position) (_ ArchiveFile, err error) {
	r, err := a.s.ReadLog(before.LSN + 1)
	if err != nil {
		return ArchiveFile{}, err
	}
	f := ArchiveFile{StoreID: a.s.Identity().StoreID, Before: before, Last: before}
	tmp := join(a.o.Dir, fmt.Sprintf("%020d%s", f.First(), archiveTmp))
	file, err := a.o.FS.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return f, err
	}
	if err = f.fill(file, r, to, a.o.FileBytes); err == nil {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		f.Path = join(a.o.Dir, archiveName(f.First(), f.Last.LSN))
		err = a.o.FS.Rename(tmp, f.Path)
	}
	if err != nil {
		_ = a.o.FS.Remove(tmp) // written anew the next time
		return f, err
	}
	return f, a.o.FS.SyncDir(a.o.Dir)
}

// fill writes head, frames and tail.
func (f *ArchiveFile) fill(file vfs.File, r *wal.Reader, to lsn.Position, limit int64) error {
	write := func(b []byte) error {
		n, err := file.WriteAt(b, f.Bytes)
		f.Bytes += int64(n)
		if err != nil {
			return fmt.Errorf("write %s: %w", file.Name(), err)
		}
		return nil
	}
	f.Bytes = 0
	if err := write(f.head()); err != nil {
		return err
	}
	for f.Last.LSN < to.LSN && f.Bytes < limit {
		frames, _, n, err := r.ReadBatch(archiveReadBytes)
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
		size, err := f.take(frames, to)
		if err != nil {
			return err
		}
		if err := write(frames[:size]); err != nil {
			return err
		}
	}
	return write(f.tail())
}

// take verifies the frames that are not behind the last one wanted, and returns their size.
func (f *ArchiveFile) take(frames []byte, to lsn.Position) (int, error) {
	rest := frames
	for len(rest) > 0 && f.Last.LSN < to.LSN {
		fr, next, err := wal.DecodeFrame(rest, f.Last)
		if err != nil {
			return 0, err
		}
		rest, f.Last = next, fr.Pos
		f.Records++
		if t, ok := txnTime(fr); ok {
			if f.FirstTime.IsZero() {
				f.FirstTime = t
			}
			f.LastTime = t
		}
	}
	return len(frames) - len(rest), nil
}

// Dir is the directory of the archive.
func (a *Archiver) Dir() string { return a.o.Dir }

// Status tells how it is.
func (a *Archiver) Status() ArchiveStatus {
	a.mu.Lock()
	st := a.status
	a.mu.Unlock()
	if applied := a.s.Applied().LSN; applied > st.Last.LSN {
		st.Behind = applied - st.Last.LSN
	}
	return st
}

func (a *Archiver) setStatus(change func(*ArchiveStatus)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(&a.status)
}

// Close archives what is applied and ends the background work. It goes before the Close of the store. The log stays
// held until the store closes it, so that the checkpoint of that Close recycles nothing that is not archived. A second
// call does nothing.
func (a *Archiver) Close() (err error) {
	a.once.Do(func() {
		close(a.stop)
		a.done.Wait()
		err = a.Flush(context.Background())
		err = errors.Join(err, a.lock.Close())
	})
	return err
}

// ReleaseLog lets the log go, after Close: for a node that goes on without an archive.
func (a *Archiver) ReleaseLog() {
	a.work.Lock()
	defer a.work.Unlock()
	if a.hold != nil {
		a.hold.Release()
		a.hold = nil
	}
}
