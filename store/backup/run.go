// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/throttle"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

const spareBytes = 1 << 20

// Options configures Run.
type Options struct {
	// FS is the filesystem; nil selects that of the operating system. Path is the directory of the backups in FS, and is
	// created if missing.
	FS   vfs.FS
	Path string
	// Location is used instead of FS and Path, if not nil. If its lock is not exclusive, only one Run per node may be
	// active at a time.
	Location Objects
	Seal     Sealer
	// KeepGenerations is the number of complete backups to retain, counted per pair, or per store if the store has no
	// pair. Older backups are removed when the new one is durable. 0 retains all.
	KeepGenerations int
	// BytesPerSecond limits the rate of reads and writes, if not 0. The limits of store.Store.Pace always apply.
	BytesPerSecond int64
	// Verify reads and checks the backup before it is completed. It cannot be combined with Seal. The checksums of the
	// pages are always verified during the copy.
	Verify bool
	// ArchiveDir, or Archive if not nil, is the log archive of this node. If old backups are removed (KeepGenerations),
	// records before the oldest retained backup are removed from the archive.
	ArchiveDir string
	Archive    Objects
	Software   string
	// Progress, if not nil, is called periodically.
	Progress func(checkpoint.Progress)
	Now      func() time.Time
}

func (o Options) withDefaults() (Options, error) {
	if o.Path == "" && o.Location == nil {
		return o, errors.New("backup: path is not configured")
	}
	if o.Verify && o.Seal != nil {
		return o, errors.New("backup: encrypted backup cannot be verified without its identity")
	}
	if o.KeepGenerations < 0 || o.BytesPerSecond < 0 {
		return o, fmt.Errorf("backup: invalid options: %d generations, %d bytes per second", o.KeepGenerations,
			o.BytesPerSecond)
	}
	if o.Location == nil {
		o.Location = Directory(o.FS, o.Path)
	}
	if o.Archive == nil && o.ArchiveDir != "" {
		o.Archive = Directory(o.FS, o.ArchiveDir)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o, nil
}

func newLimiter(bytesPerSecond int64) *rate.Limiter {
	if bytesPerSecond <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(bytesPerSecond), chunkBytes)
}

// wait waits until the limiter permits n bytes, at most chunkBytes. The limiter may be nil.
func wait(ctx context.Context, l *rate.Limiter, n int) error {
	if l == nil {
		return nil
	}
	if err := l.WaitN(ctx, n); err != nil {
		return fmt.Errorf("wait for rate limit: %w", err)
	}
	return nil
}

// Run writes a checkpoint and durably copies it to a new backup. If the store is closed, or replaced by a snapshot of
// its peer, before the copy is complete, Run fails.
//
// If Run fails before the backup is complete, it removes no older backup. It then removes its own files, or leaves
// them to a later Run. If only the removal of older backups fails, Run returns both the backup and an error. Errors
// include ErrBusy, ErrNoSpace, page.ErrCorrupt if a page of the store is corrupt, and the error of ctx.
func Run(ctx context.Context, s *store.Store, o Options) (Set, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Set{}, err
	}
	lock, exclusive, err := o.Location.Lock(ctx)
	if err != nil {
		return Set{}, fmt.Errorf("backup: %w", err)
	}
	defer func() { _ = lock.Close() }() // the error is irrelevant: a lock contains no data
	job := job{o: o, s: s, pace: s.Pace(ctx, o.BytesPerSecond)}
	if err := removeLeftovers(ctx, o, s.Identity().NodeID, exclusive); err != nil {
		return Set{}, err
	}
	set, err := job.run(ctx)
	if err != nil {
		return Set{}, err
	}
	if err := prune(ctx, o, set.Manifest); err != nil {
		return set, fmt.Errorf("backup %s is complete; removing old generations failed: %w", set.Name, err)
	}
	return set, nil
}

type job struct {
	o    Options
	s    *store.Store
	pace *throttle.Pacer
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
	if err := checkSpace(ctx, j.o.Location, snap.Header.DataBytes+spareBytes); err != nil {
		return Set{}, err
	}
	mark, err := json.Marshal(begun{NodeID: j.m.NodeID, Begun: j.m.Created, Software: j.m.Software})
	if err != nil {
		return Set{}, fmt.Errorf("backup: %w", err)
	}
	marker := inFolder(partialPrefix+j.m.Name, partialMarkerName)
	if err := putObject(ctx, j.o.Location, marker, mark); err != nil {
		return Set{}, fmt.Errorf("begin backup: %w", err)
	}
	if err := j.write(ctx, snap); err != nil {
		j.clean(ctx)
		return Set{}, err
	}
	_ = j.o.Location.Delete(ctx, marker) // the backup is complete despite the marker, which the next Run removes
	return Set{Name: j.m.Name, Path: j.o.Location.Path(j.m.Name), Complete: true, Manifest: j.m}, nil
}

// cleanLimit limits the duration of the cleanup after a failed backup.
const cleanLimit = 10 * time.Second

// clean removes the files of a failed backup. If the removal fails, the next Run retries it.
func (j *job) clean(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
	defer cancel()
	if removeFolder(ctx, j.o.Location, j.m.Name, manifestName) == nil {
		_ = removeFolder(ctx, j.o.Location, partialPrefix+j.m.Name)
	}
}

func checkSpace(ctx context.Context, place Objects, bytes uint64) error {
	available, err := place.Available(ctx)
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	if available < bytes {
		return fmt.Errorf("%w in %s: %d bytes are needed, %d are available", ErrNoSpace, place.Path(""), bytes,
			available)
	}
	return nil
}

func (j *job) describe(ctx context.Context, snap *store.Snapshot) error {
	_, raw, err := snap.ReadNext(0, chunkBytes, nil)
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
	entries, err := j.o.Location.List(ctx, "")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("choose backup name: %w", err)
	}
	for again := 0; ; again++ {
		j.m.Name = setName(j.m.Created, h.Position.LSN, h.PageSize, again)
		if !slices.ContainsFunc(entries, func(e Entry) bool { return setOf(e.Name) == j.m.Name }) {
			return nil
		}
	}
}

// timeOfRecord returns the time of a record, or the zero time if the record is no longer in the log or is not a
// transaction.
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

func txnTime(f wal.Frame) (time.Time, bool) {
	var r txn.Reader
	if f.Kind != wal.KindTxn || r.Reset(f.Payload) != nil {
		return time.Time{}, false
	}
	return time.UnixMilli(r.TimeMS()).UTC(), true
}

// write writes the pages and then the manifest, which completes the backup.
func (j *job) write(ctx context.Context, snap *store.Snapshot) error {
	sum, err := j.writePack(ctx, snap)
	if err != nil {
		return err
	}
	j.m.Files = []FileSum{sum}
	raw, err := j.m.encode()
	if err != nil {
		return err
	}
	if j.o.Verify {
		_, err := verify(ctx, j.o.Location, j.m.Name, &j.m, VerifyOptions{Progress: j.o.Progress})
		if err != nil {
			return err
		}
	}
	if err := putObject(ctx, j.o.Location, inFolder(j.m.Name, manifestName), raw); err != nil {
		return fmt.Errorf("write backup manifest: %w", err)
	}
	return nil
}

// writePack writes the pages, and records the encryption in the manifest.
func (j *job) writePack(ctx context.Context, snap *store.Snapshot) (FileSum, error) {
	name, paced := packName, j.pace != nil
	if j.o.Seal != nil {
		name = sealedPackName
	}
	var stored FileSum
	o := PutOptions{AboutBytes: estimatePackBytes(snap.Header.DataBytes, j.m.PageSize)}
	err := j.o.Location.Put(ctx, inFolder(j.m.Name, name), o, func(to io.Writer) error {
		write := func(to io.Writer) (FileSum, error) {
			w := newPack(to, j.m.PageSize, paced)
			if err := j.copy(ctx, snap, w); err != nil {
				return FileSum{}, err
			}
			return w.finish()
		}
		if j.o.Seal == nil {
			var err error
			stored, err = write(to) // the pack computes its own checksum
			return err
		}
		out := summing{to: to, sum: sha256.New()}
		plain, err := j.seal(&out, write)
		stored = out.fileSum(name)
		j.m.Format = sealedFormat
		j.m.Encryption = &Encryption{Scheme: sealScheme, Recipients: j.o.Seal.Recipients(), Plain: plain}
		return err
	})
	if err != nil {
		return FileSum{}, fmt.Errorf("write backup: %w", err)
	}
	return stored, nil
}

func (j *job) seal(to io.Writer, write func(to io.Writer) (FileSum, error)) (FileSum, error) {
	w, err := j.o.Seal.Seal(to)
	if err != nil {
		return FileSum{}, fmt.Errorf("encrypt: %w", err)
	}
	sum, err := write(w)
	if err != nil {
		return sum, err
	}
	if err := w.Close(); err != nil {
		return sum, fmt.Errorf("encrypt: %w", err)
	}
	return sum, nil
}

type summing struct {
	to    io.Writer
	sum   hash.Hash
	bytes int64
}

func (s *summing) Write(p []byte) (int, error) {
	n, err := s.to.Write(p)
	s.sum.Write(p[:n])
	s.bytes += int64(n)
	return n, err //nolint:wrapcheck // a pass-through writer
}

func (s *summing) fileSum(name string) FileSum {
	return FileSum{Name: name, Bytes: s.bytes, SHA256: hex.EncodeToString(s.sum.Sum(nil))}
}

func (j *job) copy(ctx context.Context, snap *store.Snapshot, w *packWriter) error {
	stream := page.NewExtentStream(j.m.PageSize)
	piece := chunkBytes
	if j.pace != nil {
		piece = pacedBytes // or one page, if a page is larger
	}
	var done uint64
	var buf []byte
	for offset := uint64(0); ; {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("backup: %w", err)
		}
		at, data, err := snap.ReadNext(offset, piece, &buf)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("backup: %w", err)
		}
		if at >= page.DataOffset {
			if err := stream.Write(page.NoAt(int64(at), j.m.PageSize), data); err != nil {
				return corruptSource(err)
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
		return corruptSource(err)
	}
	return nil
}

func corruptSource(err error) error {
	return fmt.Errorf("backup: the store is corrupt; no backup was made and no older one removed; "+
		"if the other node is in sync, back up that node: %w", err)
}
