// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
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
	// openLimit limits the time that StartArchiver and Close wait for a location that is not a local directory.
	openLimit = 5 * time.Second
)

// ArchiveOptions configures an Archiver.
type ArchiveOptions struct {
	// FS is the filesystem; nil selects that of the operating system. Dir is the directory of this node's archive in FS,
	// and is created if missing.
	FS  vfs.FS
	Dir string
	// Location is used instead of FS and Dir, if not nil. A location without an exclusive lock (Objects.Lock), such as a
	// bucket, may be unreachable. The Archiver then starts anyway, retains the log, and archives it when the location is
	// reachable.
	Location Objects
	// Seal encrypts the records, if not nil.
	Seal Sealer
	// Interval is the time between two writes to the archive; by default DefaultArchiveInterval. If the data directory
	// is lost, the records applied since the last successful write are missing from the archive.
	Interval  time.Duration
	FileBytes int64 // by default DefaultArchiveFileBytes
	// MaxHoldBytes is the maximum size of the log that is retained while archiving fails. Beyond it, the archive can
	// have a gap. A restore to a point after the gap needs a backup that was made after the gap. 0 means no limit: the
	// log can fill the disk.
	MaxHoldBytes int64
	// Logger receives log entries; nil discards them.
	Logger *zap.Logger
}

// ArchiveStatus is the status of an Archiver.
type ArchiveStatus struct {
	// Last is the position of the last durably archived record, or zero if nothing is archived. LastTime is the time of
	// the last archived transaction, or zero if unknown.
	Last     lsn.Position
	LastTime time.Time
	Behind   uint64 // number of applied records that are not archived yet
	// Gap is the LSN of the first record after the newest gap, or of the first record of an archive that replaces one
	// of another history. It is 0 if there is no such record, or if a later backup (Archiver.BackedUp) contains the
	// missing records. It survives restarts.
	Gap    uint64
	Err    error  // of the last Flush; nil if it succeeded
	Former string // directory to which an archive of another history was moved
}

// Archiver copies the applied records of a store's log to an archive. It is safe for concurrent use.
type Archiver struct {
	o         ArchiveOptions
	s         *store.Store
	lock      io.Closer
	stop      chan struct{}
	exclusive bool
	done      sync.WaitGroup
	once      sync.Once

	work   sync.Mutex // held while files are written; guards the fields below
	hold   *wal.Hold
	opened bool
	// known is set when the store has applied the last archived record, or if the archive is empty. Before that, flush
	// archives nothing.
	known bool
	last  ArchiveFile
	gaps  []uint64 // LSNs in the names of the markers of gaps, ascending
	// replaces is set while the archive is empty and an archive of another history was moved away.
	replaces bool

	mu       sync.Mutex // guards the fields below
	status   ArchiveStatus
	backedUp uint64 // LSN of the last record in the newest backup since the start of this process and of the archive
}

// StartArchiver opens an archive, retains the log from the end of the archive on, and archives in the background
// until Close, which the caller must call. StartArchiver must be called after store.Open and before records are
// applied. If the archive has another history, it is moved to the subdirectory other-<time>, which a restore can use,
// and a new archive is started.
//
// Errors include ErrBusy, ErrArchiveCorrupt and ErrNewerVersion. If the lock of the location is not exclusive, the
// archive is opened in the background, and the errors are in Status.
func StartArchiver(s *store.Store, o ArchiveOptions) (*Archiver, error) {
	if o.Dir == "" && o.Location == nil {
		return nil, errors.New("log archive: directory is not configured")
	}
	if o.Location == nil {
		o.Location = Directory(o.FS, o.Dir)
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
	if a.lock, a.exclusive, err = o.Location.Lock(ctx); err != nil {
		a.hold.Release()
		return nil, err
	}
	if a.exclusive {
		err = a.open(context.Background()) // a local directory: no time limit
	}
	if err != nil {
		a.hold.Release()
		return nil, errors.Join(err, a.lock.Close())
	}
	a.done.Go(a.run)
	return a, nil
}

// open removes unfinished files, determines the end of the archive, and compares it with the log. If the histories
// differ, open starts a new archive. The caller must hold a.work, unless it is StartArchiver.
func (a *Archiver) open(ctx context.Context) error {
	if err := a.o.Location.Sweep(ctx, "", time.Time{}); err != nil {
		return err
	}
	l, err := listNames(ctx, a.o.Location)
	if err != nil {
		return err
	}
	names := l.files
	a.gaps, a.replaces = l.gaps, len(names) == 0 && l.former
	if len(l.gaps) > 0 {
		a.reportGap(l.gaps[len(l.gaps)-1])
	}
	if len(names) == 0 {
		a.known, a.opened = true, true
		return nil
	}
	if a.last, err = readEnds(ctx, a.o.Location, names[len(names)-1].name); err != nil {
		return err
	}
	a.setStatus(func(st *ArchiveStatus) { st.Last, st.LastTime = a.last.Last, a.last.LastTime })
	err = a.compare(ctx, names)
	if errors.Is(err, ErrOtherHistory) {
		err = a.restartArchive(ctx, err)
	}
	a.opened = err == nil
	return err
}

func (a *Archiver) run() {
	tick := time.NewTicker(a.o.Interval)
	defer tick.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if !a.exclusive { // an unreachable location must not prevent the node from stopping
		a.done.Go(func() {
			<-a.stop
			cancel()
		})
		_ = a.Flush(ctx) // the error is in the status, and logged
	}
	for {
		select {
		case <-a.stop:
			return
		case <-tick.C:
		}
		_ = a.Flush(ctx) // the error is in the status, and logged
	}
}

// Flush durably archives all records that are already applied. An error is also logged, and returned by Status.
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
		if err = a.restartArchive(ctx, err); err == nil {
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
		a.o.Logger.Error("log archiving failed; the log is retained until it succeeds", zap.String("archive", a.Dir()),
			zap.Error(err))
	case err == nil && before != nil:
		a.o.Logger.Info("log archiving resumed", zap.String("archive", a.Dir()))
	}
	if err != nil {
		a.releaseHold()
	}
	return err
}

func (a *Archiver) flush(ctx context.Context) error {
	to := a.s.Applied()
	if !a.known {
		if to.LSN < a.last.Last.LSN {
			return nil // see compare
		}
		if own, ok := a.s.PositionOf(a.last.Last.LSN); ok && own != a.last.Last {
			return fmt.Errorf("%w: it ends with %v, the store has %v at that position", ErrOtherHistory, a.last.Last, own)
		}
		a.known = true
	}
	for a.last.Last.LSN < to.LSN {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("archive log: %w", err)
		}
		before, err := a.next(to)
		if err != nil {
			return err
		}
		if before.LSN == to.LSN {
			break // the remaining records are no longer in the log
		}
		if before != a.last.Last && (a.last.Records > 0 || a.replaces) {
			if err := a.markGap(ctx, before.LSN+1); err != nil {
				return fmt.Errorf("archive log: %w", noSpace(err))
			}
		}
		f, err := a.write(ctx, before, to)
		if err != nil {
			return fmt.Errorf("archive log: %w", noSpace(err))
		}
		if before != a.last.Last && a.last.Records > 0 {
			a.o.Logger.Warn("log archive has a gap: records were removed from the log before they were archived; "+
				"make a backup now",
				zap.String("archive", a.Dir()), zap.Stringer("archived_up_to", a.last.Last),
				zap.Uint64("continues_at", f.First()))
		}
		a.last, a.replaces = f, false
	}
	a.retainFrom(a.last.Last.LSN + 1)
	return a.unmarkGaps(ctx)
}

// next returns the position before the next file. This is the end of the archive or, if the log no longer contains
// the following record, the position before the oldest record of the log. If the log contains none of the records to
// archive, next returns the argument to.
func (a *Archiver) next(to lsn.Position) (lsn.Position, error) {
	if a.last.Records > 0 {
		if at, ok := a.s.PositionOf(a.last.Last.LSN); ok {
			if at != a.last.Last {
				return at, fmt.Errorf("%w: it ends with %v, the store has %v at that position", ErrOtherHistory, a.last.Last,
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
		return to, fmt.Errorf("cannot read record %d from the log", a.last.Last.LSN)
	}
	at, ok := a.s.PositionOf(first - 1)
	if !ok {
		return to, fmt.Errorf("cannot read record %d from the log", first-1)
	}
	return at, nil
}

// markGap durably marks that the archive lacks the records before LSN first, and reports the gap.
func (a *Archiver) markGap(ctx context.Context, first uint64) error {
	if err := putObject(ctx, a.o.Location, gapName(first), []byte("{}")); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("mark gap: %w", err)
	}
	if !slices.Contains(a.gaps, first) {
		a.gaps = append(a.gaps, first)
	}
	a.reportGap(first)
	return nil
}

// unmarkGaps removes the markers of the gaps that a backup covers.
func (a *Archiver) unmarkGaps(ctx context.Context) error {
	a.mu.Lock()
	backedUp := a.backedUp
	a.mu.Unlock()
	for len(a.gaps) > 0 && backedUp+1 >= a.gaps[0] {
		if err := a.o.Location.Delete(ctx, gapName(a.gaps[0])); err != nil {
			return fmt.Errorf("remove marker of a gap in the archive: %w", err)
		}
		a.gaps = a.gaps[1:]
	}
	return nil
}

func (a *Archiver) reportGap(first uint64) {
	a.setStatus(func(st *ArchiveStatus) { st.Gap = first })
	a.closeGap()
}

// BackedUp records that a complete backup contains all changes up to LSN n. The next Flush makes this durable.
func (a *Archiver) BackedUp(n uint64) {
	a.mu.Lock()
	a.backedUp = max(a.backedUp, n)
	a.mu.Unlock()
	a.closeGap()
}

func (a *Archiver) closeGap() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.backedUp+1 >= a.status.Gap {
		a.status.Gap = 0
	}
}

// retainFrom retains the log from LSN n on.
func (a *Archiver) retainFrom(n uint64) {
	old := a.hold
	a.hold = a.s.HoldLog(n)
	if old != nil {
		old.Release()
	}
}

// releaseHold stops retaining the log if the log is larger than MaxHoldBytes and MaxHoldBytes is not 0.
func (a *Archiver) releaseHold() {
	if a.o.MaxHoldBytes == 0 || a.hold == nil {
		return
	}
	st, err := a.s.Stats()
	if err != nil || st.LogBytes <= a.o.MaxHoldBytes {
		return
	}
	a.hold.Release()
	a.hold = nil
	a.o.Logger.Error("too much unarchived log: it is no longer retained, and the archive will have a gap",
		zap.Int64("log_bytes", st.LogBytes), zap.Int64("limit", a.o.MaxHoldBytes))
}

// write archives the records between two positions in one file. The file ends earlier if it is large enough
// (ArchiveOptions.FileBytes).
func (a *Archiver) write(ctx context.Context, before, to lsn.Position) (_ ArchiveFile, err error) {
	f := ArchiveFile{StoreID: a.s.Identity().StoreID, Before: before, Encrypted: a.o.Seal != nil}
	if err := a.fill(ctx, &f, io.Discard, to, a.o.FileBytes); err != nil {
		return f, err
	}
	f.name = archiveName(f.First(), f.Last.LSN)
	f.Path = a.o.Location.Path(f.name)
	o := PutOptions{AboutBytes: uint64(f.Bytes)}
	err = a.o.Location.Put(ctx, f.name, o, func(w io.Writer) error {
		again := f
		count := counting{to: w}
		if err := a.seal(ctx, &again, &count, f.Last); err != nil {
			return err
		}
		f.Bytes = count.bytes
		return nil
	})
	if errors.Is(err, fs.ErrExist) { // an earlier attempt wrote the file although it returned an error
		return a.present(ctx, f, err)
	}
	return f, err
}

// present returns the existing file with the same name as f. If it contains other records, present returns
// ErrOtherHistory.
func (a *Archiver) present(ctx context.Context, f ArchiveFile, why error) (ArchiveFile, error) {
	there, err := readEnds(ctx, a.o.Location, f.name)
	if err != nil {
		return f, errors.Join(why, err)
	}
	if there.Before != f.Before || there.Last != f.Last {
		return f, fmt.Errorf("%w: %s spans %v to %v, and the store's log %v to %v", ErrOtherHistory, f.Path,
			there.Before, there.Last, f.Before, f.Last)
	}
	return there, nil
}

type counting struct {
	to    io.Writer
	bytes int64
}

func (c *counting) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.bytes += int64(n)
	return n, err //nolint:wrapcheck // a pass-through writer
}

func (a *Archiver) seal(ctx context.Context, f *ArchiveFile, w io.Writer, to lsn.Position) error {
	if _, err := w.Write(f.head()); err != nil {
		return err //nolint:wrapcheck // Put names the object
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
	return err //nolint:wrapcheck // Put names the object
}

// fill writes the frames after f.Before, up to the given position, to w. It ends earlier if the file has at least
// limit bytes. It sets the fields of f that describe these frames. f.Bytes is the file size without encryption.
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
			return err //nolint:wrapcheck // Put names the object
		}
		f.Bytes += int64(size)
	}
	return nil
}

// take verifies frames up to the given position, adds them to the fields of f, and returns their size.
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

// Dir returns the path of the archive.
func (a *Archiver) Dir() string { return a.o.Location.Path("") }

// Status returns the current status, without access to the location.
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

// Close stops the background work, archives the applied records, and unlocks the location. It must be called before
// the store is closed. If the lock of the location is not exclusive, Close archives for at most 5 s. A second call
// does nothing.
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
