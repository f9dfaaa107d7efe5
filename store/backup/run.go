// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/time/rate"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/pace"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// spareBytes is free space that a backup leaves to others.
const spareBytes = 1 << 20

// Options configure Run.
type Options struct {
	// FS is where Path is; nil means the operating system's.
	FS vfs.FS
	// Path is the directory that holds the save-sets; made if it is not there. Required.
	Path string
	// KeepGenerations is how many complete save-sets of this pair (or, without a pair, of this store) are kept; older
	// ones are removed when the new one is durable. 0 keeps all.
	KeepGenerations int
	// BytesPerSecond limits reading and writing; 0 means no limit but the store's (store.Options.BackgroundPercent).
	BytesPerSecond int64
	// Verify reads the set back and checks it like Verify before it gets its name. The checksums of the pages are
	// verified in any case, while they are copied.
	Verify bool
	// ArchiveDir is the archive of this node's log: what is older than the oldest save-set that is kept is removed from
	// it. Empty: nothing is.
	ArchiveDir string
	// Software is noted in the manifest, such as "lockstep 1.2.3".
	Software string
	// Progress is called from time to time, by the goroutine that called Run; it may be nil.
	Progress func(checkpoint.Progress)
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

func (o Options) withDefaults() (Options, error) {
	if o.Path == "" {
		return o, errors.New("backup: no path given")
	}
	if o.KeepGenerations < 0 || o.BytesPerSecond < 0 {
		return o, fmt.Errorf("backup: %d generations at %d bytes per second make no sense", o.KeepGenerations,
			o.BytesPerSecond)
	}
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o, nil
}

// newLimiter returns nil for no limit.
func newLimiter(bytesPerSecond int64) *rate.Limiter {
	if bytesPerSecond <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(bytesPerSecond), pieceBytes)
}

// wait takes n bytes, at most pieceBytes, from the limiter.
func wait(ctx context.Context, l *rate.Limiter, n int) error {
	if l == nil {
		return nil
	}
	if err := l.WaitN(ctx, n); err != nil {
		return fmt.Errorf("wait for the rate limit: %w", err)
	}
	return nil
}

// Run writes a checkpoint and copies it to a new save-set, which is durable when it returns. Online: no transaction
// waits for it. The store must not be closed meanwhile; if it is, or if a snapshot of the peer replaces it, Run fails.
//
// A failed Run leaves no set behind and removes no generation. Only the removal of old generations may fail after the
// set was made: then both the set and an error are returned. Errors: ErrBusy, ErrNoSpace, page.ErrDamaged when a page
// of the store itself is damaged, the context's.
func Run(ctx context.Context, s *store.Store, o Options) (Set, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Set{}, err
	}
	lock, err := lockPath(o.FS, o.Path)
	if err != nil {
		return Set{}, err
	}
	defer func() { _ = lock.Close() }() // nothing was written through it
	if err := removeLeftovers(o.FS, o.Path); err != nil {
		return Set{}, err
	}
	job := job{o: o, s: s, pace: s.Pace(ctx, o.BytesPerSecond)}
	set, err := job.run(ctx)
	if err != nil {
		return Set{}, err
	}
	if err := prune(o, set.Manifest); err != nil {
		return set, fmt.Errorf("the backup %s is good; removing old generations failed: %w", set.Name, err)
	}
	return set, nil
}

// lockPath makes a directory and takes its lock.
func lockPath(fsys vfs.FS, path string) (io.Closer, error) {
	if err := vfs.MkdirAllSync(fsys, path, 0o750); err != nil {
		return nil, fmt.Errorf("make the directory %s: %w", path, err)
	}
	lock, err := fsys.Lock(join(path, lockName))
	if errors.Is(err, vfs.ErrLocked) {
		return nil, fmt.Errorf("%w: %s; wait until it is done", ErrBusy, path)
	}
	if err != nil {
		return nil, fmt.Errorf("lock the directory %s: %w", path, err)
	}
	return lock, nil
}

// job is one backup under way.
type job struct {
	o    Options
	s    *store.Store
	pace *pace.Pacer
	m    Manifest
	meta page.Meta
}

func (j *job) run(ctx context.Context) (Set, error) {
	if _, err := j.s.Checkpoint(ctx); err != nil {
		return Set{}, fmt.Errorf("backup: %w", err)
	}
	snap, err := j.s.OpenSnapshot()
	if err != nil {
		return Set{}, fmt.Errorf("backup: %w", err)
	}
	defer snap.Close()
	if err := j.describe(ctx, snap); err != nil {
		return Set{}, err
	}
	if err := needSpace(j.o.FS, j.o.Path, snap.Header.DataBytes+spareBytes); err != nil {
		return Set{}, err
	}
	dir := join(j.o.Path, partialPrefix+j.m.Name)
	if err := j.write(ctx, snap, dir); err != nil {
		_ = removeSet(j.o.FS, dir) // the next Run tries again
		return Set{}, err
	}
	final := join(j.o.Path, j.m.Name)
	if err := j.o.FS.Rename(dir, final); err != nil {
		_ = removeSet(j.o.FS, dir) // the next Run tries again
		return Set{}, fmt.Errorf("name the backup: %w", err)
	}
	if err := j.o.FS.SyncDir(j.o.Path); err != nil {
		return Set{}, fmt.Errorf("make the name of the backup durable: %w", err)
	}
	return Set{Name: j.m.Name, Path: final, Complete: true, Manifest: j.m}, nil
}

// needSpace returns ErrNoSpace with both figures.
func needSpace(fsys vfs.FS, dir string, bytes uint64) error {
	usage, err := fsys.Usage(dir)
	if err != nil {
		return fmt.Errorf("look at the free space of %s: %w", dir, err)
	}
	if usage.AvailableBytes < bytes {
		return fmt.Errorf("%w in %s: %d bytes are needed, %d are available", ErrNoSpace, dir, bytes,
			usage.AvailableBytes)
	}
	return nil
}

// describe fills in the manifest, but for the files.
func (j *job) describe(ctx context.Context, snap *store.Snapshot) error {
	_, raw, err := snap.ReadNext(0, pieceBytes)
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	if j.meta, err = page.DecodeMeta(raw); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	id, h := j.s.Identity(), snap.Header
	j.m = Manifest{
		Format: manifestFormat, Created: j.o.Now().UTC().Truncate(time.Millisecond), Software: j.o.Software,
		PageFormat: page.FormatVersion, TxnFormat: txn.Version, PairID: id.PairID, StoreID: id.StoreID,
		NodeID:   id.NodeID,
		Position: h.Position, Checkpoint: j.meta.Checkpoint, PageSize: h.PageSize, FileBytes: h.FileBytes,
		DataBytes: h.DataBytes,
	}
	j.m.LastTime = timeOfRecord(j.s, h.Position)
	if j.m.LastTime.IsZero() && j.meta.CreatedMS > 0 {
		j.m.LastTime = time.UnixMilli(j.meta.CreatedMS).UTC()
	}
	if j.m.Messages, err = snap.Messages(ctx); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	for again := 0; ; again++ {
		j.m.Name = setName(j.m.Created, h.Position.LSN, h.PageSize, again)
		_, err := j.o.FS.Stat(join(j.o.Path, j.m.Name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("look for a name for the backup: %w", err)
		}
	}
}

// timeOfRecord is zero for a record that is not in the log any more, or that is no transaction.
func timeOfRecord(s *store.Store, pos lsn.Position) time.Time {
	r, err := s.ReadLog(pos.LSN)
	if err != nil {
		return time.Time{}
	}
	f, err := r.Next()
	if err != nil || f.Pos != pos {
		return time.Time{}
	}
	t, _ := txnTime(f)
	return t
}

// txnTime is the time in a transaction's record.
func txnTime(f wal.Frame) (time.Time, bool) {
	var r txn.Reader
	if f.Kind != wal.KindTxn || r.Reset(f.Payload) != nil {
		return time.Time{}, false
	}
	return time.UnixMilli(r.TimeMS()).UTC(), true
}

// write makes everything that is in the set, and makes it durable, but for the set's name.
func (j *job) write(ctx context.Context, snap *store.Snapshot, dir string) error {
	if err := j.o.FS.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("make the backup's directory: %w", noSpace(err))
	}
	w, err := createPack(j.o.FS, join(dir, packName), j.m.PageSize, j.pace != nil)
	if err != nil {
		return noSpace(err)
	}
	err = j.copy(ctx, snap, w)
	sum, ferr := w.finish()
	if err := errors.Join(err, ferr); err != nil {
		return err
	}
	j.m.Files = []FileSum{sum}
	raw, err := j.m.encode()
	if err != nil {
		return err
	}
	if err := writeFile(j.o.FS, join(dir, manifestName), raw); err != nil {
		return err
	}
	if err := j.o.FS.SyncDir(dir); err != nil {
		return fmt.Errorf("make the backup durable: %w", err)
	}
	if !j.o.Verify {
		return nil
	}
	_, err = Verify(ctx, dir, VerifyOptions{FS: j.o.FS, Progress: j.o.Progress})
	return err
}

// copy packs the snapshot and verifies the pages on the way.
func (j *job) copy(ctx context.Context, snap *store.Snapshot, w *packWriter) error {
	stream := page.NewRunStream(j.m.PageSize)
	piece := pieceBytes
	if j.pace != nil {
		piece = pacedBytes // or one page
	}
	var done uint64
	for offset := uint64(0); ; {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("backup: %w", err)
		}
		at, data, err := snap.ReadNext(offset, piece)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("backup: %w", err)
		}
		if at >= page.DataOffset {
			if err := stream.Write(page.NoAt(int64(at), j.m.PageSize), data); err != nil {
				return damagedSource(err)
			}
		}
		if err := w.add(at, data); err != nil {
			return err
		}
		offset = at + uint64(len(data))
		done += uint64(len(data))
		reportBytes(j.o.Progress, "copy", done, j.m.DataBytes)
		if err := j.pace.Did(ctx, len(data)); err != nil {
			return fmt.Errorf("backup: %w", err)
		}
	}
	if err := stream.End(); err != nil {
		return damagedSource(err)
	}
	return nil
}

func damagedSource(err error) error {
	return fmt.Errorf("backup: the store itself is damaged, no backup was made and no older one was removed; let "+
		"this node fetch the store from its peer, or back up the peer: %w", err)
}

// writeFile writes a new file whole and syncs it.
func writeFile(fsys vfs.FS, name string, raw []byte) error {
	f, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, noSpace(err))
	}
	_, err = f.WriteAt(raw, 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, noSpace(err))
	}
	return nil
}
