// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
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
	// openLimit bounds the wait at the start and at the end for a place that is not on a disk.
	openLimit = 5 * time.Second
)

// ArchiveOptions configure an Archiver.
type ArchiveOptions struct {
	// FS is where Dir is; nil means the operating system's.
	FS vfs.FS
	// Dir is the archive of this node; made if it is not there. Each node has its own.
	Dir string
	// Place is the archive if it is not nil, and FS and Dir are not used. One of the two is required. A place that is
	// not exclusive (Objects.Lock) may be out of reach at times: the Archiver begins without it, holds the log, and
	// goes on when it is there.
	Place Objects
	// Seal encrypts the records; nil leaves them as they are.
	Seal Sealer
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
	// exclusive: no other process can use the place.
	exclusive bool
	done      sync.WaitGroup
	once      sync.Once

	work sync.Mutex // held while files are written; guards hold, known and last
	hold *wal.Hold
	// opened: the end of the archive was looked for.
	opened bool
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
	if o.Dir == "" && o.Place == nil {
		return nil, errors.New("log archive: no directory given")
	}
	if o.Place == nil {
		o.Place = Directory(o.FS, o.Dir)
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
	ctx, cancel := context.WithTimeout(context.Background(), openLimit)
	defer cancel()
	var err error
	if a.lock, a.exclusive, err = o.Place.Lock(ctx); err != nil {
		a.hold.Release()
		return nil, err
	}
	if a.exclusive {
		ctx = context.Background() // a disk
		err = a.open(ctx)
	}
	if err != nil {
		a.hold.Release()
		return nil, errors.Join(err, a.lock.Close())
	}
	a.done.Go(a.run)
	return a, nil
}

// open finds the end of the archive. work is held, or nothing else runs yet.
func (a *Archiver) open(ctx context.Context) error {
	if err := a.o.Place.Sweep(ctx, "", time.Time{}); err != nil {
		return err
	}
	names, err := listNames(ctx, a.o.Place)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		a.known, a.opened = true, true
		return nil
	}
	if a.last, err = readEnds(ctx, a.o.Place, names[len(names)-1].name); err != nil {
		return err
	}
	a.setStatus(func(st *ArchiveStatus) { st.Last, st.LastTime = a.last.Last, a.last.LastTime })
	err = a.compare(ctx, names)
	if errors.Is(err, ErrOtherHistory) {
		err = a.startOver(ctx, err)
	}
	a.opened = err == nil
	return err
}

func (a *Archiver) run() {
	tick := time.NewTicker(a.o.Interval)
	defer tick.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if !a.exclusive { // it may be out of reach, and must not keep the node from stopping
		a.done.Go(func() {
			<-a.stop
			cancel()
		})
		_ = a.Flush(ctx) // kept in the status, and logged
	}
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
	var err error
	if !a.opened {
		err = a.open(ctx)
	}
	if err == nil {
		err = a.flush(ctx)
	}
	if errors.Is(err, ErrOtherHistory) {
		if err = a.startOver(ctx, err); err == nil {
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
	case errors.Is(err, context.Canceled):
	case err != nil && before == nil:
		a.o.Logger.Error("the log cannot be archived; it is held back meanwhile", zap.String("archive", a.Dir()),
			zap.Error(err))
	case err == nil && before != nil:
		a.o.Logger.Info("the log is archived again", zap.String("archive", a.Dir()))
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
		f, err := a.write(ctx, before, to)
		if err != nil {
			return fmt.Errorf("archive the log: %w", noSpace(err))
		}
		if before != a.last.Last && a.last.Records > 0 {
			a.setStatus(func(st *ArchiveStatus) { st.Gap = f.First() })
			a.closeGap()
			a.o.Logger.Warn("the log archive has a gap: records were gone from the log before they were archived; "+
				"make a backup now",
				zap.String("archive", a.Dir()), zap.Stringer("archived_up_to", a.last.Last),
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

// write makes one file: the records after before, up to the one given or until the file is large enough. The log is
// read twice: what is last in the file is in its name.
func (a *Archiver) write(ctx context.Context, before, to lsn.Position) (_ ArchiveFile, err error) {
	f := ArchiveFile{StoreID: a.s.Identity().StoreID, Before: before, Encrypted: a.o.Seal != nil}
	if err := a.fill(ctx, &f, io.Discard, to, a.o.FileBytes); err != nil {
		return f, err
	}
	f.name = archiveName(f.First(), f.Last.LSN)
	f.Path = a.o.Place.Path(f.name)
	o := PutOptions{AboutBytes: uint64(f.Bytes)}
	err = a.o.Place.Put(ctx, f.name, o, func(w io.Writer) error {
		again := f
		count := counting{to: w}
		if err := a.seal(ctx, &again, &count, f.Last); err != nil {
			return err
		}
		f.Bytes = count.bytes
		return nil
	})
	if errors.Is(err, fs.ErrExist) { // an earlier attempt has written it, and was not told so
		return a.present(ctx, f, err)
	}
	return f, err
}

// present is the file that has the name of one that was to be written, if it is the same.
func (a *Archiver) present(ctx context.Context, f ArchiveFile, why error) (ArchiveFile, error) {
	there, err := readEnds(ctx, a.o.Place, f.name)
	if err != nil {
		return f, errors.Join(why, err)
	}
	if there.Before != f.Before || there.Last != f.Last {
		return f, fmt.Errorf("%w: %s leads from %v to %v, and the store's log from %v to %v", ErrOtherHistory, f.Path,
			there.Before, there.Last, f.Before, f.Last)
	}
	return there, nil
}

// counting counts what is written.
type counting struct {
	to    io.Writer
	bytes int64
}

func (c *counting) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.bytes += int64(n)
	return n, err //nolint:wrapcheck // a writer between two others
}

// seal writes head, frames up to one, encrypted if that is wanted, and tail.
func (a *Archiver) seal(ctx context.Context, f *ArchiveFile, w io.Writer, to lsn.Position) error {
	if _, err := w.Write(f.head()); err != nil {
		return err //nolint:wrapcheck // Put says what it was writing
	}
	frames := w
	var sealed io.WriteCloser
	if a.o.Seal != nil {
		var err error
		if sealed, err = a.o.Seal.Seal(w); err != nil {
			return fmt.Errorf("encrypt: %w", err)
		}
		frames = sealed
	}
	if err := a.fill(ctx, f, frames, to, math.MaxInt64); err != nil {
		return err
	}
	if sealed != nil {
		if err := sealed.Close(); err != nil {
			return fmt.Errorf("encrypt: %w", err)
		}
	}
	_, err := w.Write(f.tail())
	return err //nolint:wrapcheck // Put says what it was writing
}

// fill writes the frames after f.Before, and notes in f what they are and how large the file is, unencrypted.
func (a *Archiver) fill(ctx context.Context, f *ArchiveFile, w io.Writer, to lsn.Position, limit int64) error {
	r, err := a.s.ReadLog(f.Before.LSN + 1)
	if err != nil {
		return err
	}
	f.Last, f.Records, f.FirstTime, f.LastTime = f.Before, 0, time.Time{}, time.Time{}
	f.Bytes = 2 * archiveEnds
	for f.Last.LSN < to.LSN && f.Bytes < limit {
		if err := ctx.Err(); err != nil {
			return err
		}
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
		if _, err := w.Write(frames[:size]); err != nil {
			return err //nolint:wrapcheck // Put says what it was writing
		}
		f.Bytes += int64(size)
	}
	return nil
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

// Dir is where the archive is.
func (a *Archiver) Dir() string { return a.o.Place.Path("") }

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
		ctx, cancel := context.Background(), func() {}
		if !a.exclusive {
			ctx, cancel = context.WithTimeout(ctx, openLimit)
		}
		defer cancel()
		err = a.Flush(ctx)
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
