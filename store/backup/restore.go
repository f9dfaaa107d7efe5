// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
	"golang.org/x/time/rate"
)

// RestoreOptions configures Restore.
type RestoreOptions struct {
	FS vfs.FS // by default the operating system's filesystem
	// Location, if not nil, contains the backup. Restore then expects the name of the backup instead of its directory.
	Location Objects
	// ArchiveDir, or Archive if not nil, is a log archive that continues the backup.
	ArchiveDir string
	Archive    Objects
	Unseal     Unsealer
	ToLSN      uint64 // LSN of the last record to restore; if 0, ToTime applies
	// ToTime is the time of the last transaction to restore, by the clock of the active that committed it. The restore
	// ends before the first later transaction. If neither ToLSN nor ToTime is set, all records up to the end of the
	// archive are restored; a gap is an error.
	ToTime time.Time
	DryRun bool // verify everything and write nothing
	// Replica adds a record to the log that makes the store a replica of the primary from which the backup was made. It
	// cannot be combined with an archive. If the backup was made from a replica, no record is added.
	Replica bool
	// BytesPerSecond limits the rate at which the backup is read and the new files are written, if not 0.
	BytesPerSecond int64
	SegmentBytes   int64 // segment size of the new log; 0 selects the default
	// Progress, if not nil, is called periodically.
	Progress func(checkpoint.Progress)
}

// RestoreResult is the result of a restore or a dry run.
type RestoreResult struct {
	Manifest Manifest
	// NodeID and StoreID are new; zero in a dry run.
	NodeID, StoreID uuid.UUID
	// End is the position of the last restored record. EndTime is the time of the last restored transaction. With
	// RestoreOptions.Replica, one more record follows End, unless the backup was made from a replica.
	End      lsn.Position
	EndTime  time.Time
	Records  uint64 // number of records restored from the archive
	LogBytes uint64 // size of these records
	// NeededBytes and AvailableBytes are amounts of disk space.
	NeededBytes, AvailableBytes uint64
}

// Restore creates a data directory from a backup and, optionally, a log archive. It verifies the backup and the
// required part of the archive before it writes anything. When it returns nil, everything is durable and the whole new
// page file has been checked. The page size is the same as in the backup.
//
// The directory target must be empty, missing, or left by an interrupted Restore, which is then restarted. Until
// Restore is complete, store.Open rejects the directory with datadir.ErrRestoring. After an error, Restore removes its
// files from the directory if possible.
//
// The node UUID and store UUID are new, and pair and fence are unset.
//
// Errors include datadir.ErrNotEmpty, ErrIncomplete, ErrCorrupt, ErrNewerVersion, ErrArchiveCorrupt, ErrArchiveGap,
// ErrOtherHistory (the archive does not continue this backup), ErrTarget (the requested point is before the backup or
// after the archive), ErrEncrypted, ErrIdentity, ErrRemote, ErrNoSites, ErrNoSpace, and the error of ctx.
func Restore(ctx context.Context, dir, target string, o RestoreOptions) (RestoreResult, error) {
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	if o.ToLSN != 0 && !o.ToTime.IsZero() {
		return RestoreResult{}, fmt.Errorf("%w: a record and a time are mutually exclusive", ErrTarget)
	}
	if o.Replica && (o.ArchiveDir != "" || o.Archive != nil) {
		return RestoreResult{}, fmt.Errorf("%w: a replica and an archive are mutually exclusive", ErrTarget)
	}
	if err := datadir.CheckRestore(o.FS, target); err != nil {
		return RestoreResult{}, err
	}
	j := restoreJob{o: o, set: dir, dir: target, limit: newLimiter(o.BytesPerSecond)}
	if j.o.Location == nil {
		j.o.Location, j.set = setIn(o.FS, dir)
	}
	if j.o.Archive == nil && o.ArchiveDir != "" {
		j.o.Archive = Directory(o.FS, o.ArchiveDir)
	}
	if err := j.prepare(ctx); err != nil {
		return j.res, err
	}
	if o.DryRun {
		return j.res, nil
	}
	err := fillDir(o.FS, target, j.res.Manifest.Name, func(t *datadir.RestoreTarget) error { return j.fill(ctx, t) })
	return j.res, err
}

// fillDir creates a data directory with the files that fill writes. If fill fails, fillDir removes these files.
func fillDir(fsys vfs.FS, dir, source string, fill func(t *datadir.RestoreTarget) error) error {
	t, err := datadir.BeginRestore(fsys, dir, source)
	if err != nil {
		return err
	}
	if err = noSpace(fill(t)); err == nil {
		err = t.Commit()
	} else if aerr := t.Abort(); aerr != nil {
		err = fmt.Errorf("%w; removing the partial output failed: %w", err, aerr)
	}
	return errors.Join(err, t.Close())
}

type restoreJob struct {
	o       RestoreOptions
	set     string
	dir     string
	limit   *rate.Limiter
	archive []ArchiveFile
	res     RestoreResult
}

func (j *restoreJob) prepare(ctx context.Context) error {
	found, err := Verify(ctx, j.set, VerifyOptions{
		Location: j.o.Location, Unseal: j.o.Unseal, ChecksumsOnly: !j.o.DryRun, BytesPerSecond: j.o.BytesPerSecond,
		Progress: j.o.Progress,
	})
	j.res.Manifest = found.Manifest
	if err != nil {
		return err
	}
	j.res.End, j.res.EndTime = found.Manifest.Position, found.Manifest.LastTime
	if err := j.plan(ctx); err != nil {
		return err
	}
	j.res.NeededBytes = neededBytes(j.res.Manifest.DataBytes, j.res.LogBytes, j.o.SegmentBytes)
	j.res.AvailableBytes, err = checkFree(j.o.FS, j.dir, j.res.NeededBytes)
	return err
}

// neededBytes returns the disk space for a data directory with the given pages and log. If segmentBytes is 0, the
// default applies.
func neededBytes(dataBytes, logBytes uint64, segmentBytes int64) uint64 {
	segment := uint64(wal.DefaultSegmentBytes)
	if segmentBytes > 0 {
		segment = uint64(segmentBytes)
	}
	// The last segment is not full, and the next one is preallocated.
	return dataBytes + spareBytes + logBytes + 2*segment
}

// checkFree returns the free space for a directory, which may not exist yet, and ErrNoSpace if it is less than needed.
func checkFree(fsys vfs.FS, dir string, needed uint64) (available uint64, err error) {
	usage, err := fsys.Usage(existing(fsys, dir))
	if err != nil {
		return 0, fmt.Errorf("get free space of %s: %w", dir, err)
	}
	available = usage.AvailableBytes
	if needed > available {
		return available, fmt.Errorf("%w in %s: %d bytes are needed, %d are available", ErrNoSpace, dir, needed, available)
	}
	return available, nil
}

func existing(fsys vfs.FS, dir string) string {
	for dir = filepath.Clean(dir); ; dir = filepath.Dir(dir) {
		if _, err := fsys.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			return dir
		}
	}
}

func (j *restoreJob) plan(ctx context.Context) error {
	m, o := &j.res.Manifest, &j.o
	switch {
	case o.ToLSN != 0 && o.ToLSN < m.Position.LSN:
		return fmt.Errorf("%w: the backup contains everything up to record %d, requested %d; use an older backup",
			ErrTarget, m.Position.LSN, o.ToLSN)
	case !o.ToTime.IsZero() && o.ToTime.Before(m.LastTime):
		return fmt.Errorf("%w: the backup contains everything up to %s, requested %s; use an older backup",
			ErrTarget, m.LastTime.Format(time.RFC3339Nano), o.ToTime.UTC().Format(time.RFC3339Nano))
	case o.Archive == nil && (o.ToLSN > m.Position.LSN || !o.ToTime.IsZero()):
		return fmt.Errorf("%w: the backup ends with record %d; later records require the log archive", ErrTarget,
			m.Position.LSN)
	case o.Archive == nil || o.ToLSN == m.Position.LSN && o.ToLSN != 0:
		return nil
	}
	var err error
	if j.archive, err = listArchive(ctx, o.Archive, m.Position.LSN); err != nil {
		return err
	}
	if err := j.checkFolder(ctx); err != nil {
		return err
	}
	reached := false // the requested end was found, not only the end of the archive
	last, gap, err := walkArchive(ctx, j.log(), m.Position, func(f wal.Frame, raw []byte) error {
		t, isTxn := txnTime(f)
		if isTxn && !o.ToTime.IsZero() && t.After(o.ToTime) {
			reached = true
			return errStop
		}
		if isTxn {
			j.res.EndTime = t
		}
		j.res.End = f.Pos
		j.res.Records++
		j.res.LogBytes += uint64(len(raw))
		reportBytes(o.Progress, "plan", j.res.LogBytes, 0)
		if f.Pos.LSN == o.ToLSN {
			reached = true
			return errStop
		}
		return nil
	})
	if err != nil {
		return err
	}
	return j.checkReach(last, gap, reached)
}

func (j *restoreJob) log() archivedLog {
	return archivedLog{place: j.o.Archive, files: j.archive, unseal: j.o.Unseal}
}

// checkFolder returns ErrTarget for a location that has archives only in its folders.
func (j *restoreJob) checkFolder(ctx context.Context) error {
	if len(j.archive) > 0 {
		return nil
	}
	entries, err := j.o.Archive.List(ctx, "")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list archive: %w", err)
	}
	if slices.ContainsFunc(entries, func(e Entry) bool { return isArchived(e.Name) }) {
		return nil // the archive ends before the backup
	}
	for _, e := range entries {
		if !e.Folder || strings.HasPrefix(e.Name, previousPrefix) {
			continue
		}
		inside, err := j.o.Archive.List(ctx, e.Name)
		if err == nil && slices.ContainsFunc(inside, func(e Entry) bool { return isArchived(e.Name) }) {
			return fmt.Errorf("%w: no archive in %s; use the one in %s", ErrTarget,
				j.o.Archive.Path(""), j.o.Archive.Path(e.Name))
		}
	}
	return nil
}

func (j *restoreJob) checkReach(last lsn.Position, gap uint64, reached bool) error {
	if reached {
		return nil
	}
	have := fmt.Sprintf("backup and archive end with record %d (%s)", j.res.End.LSN,
		j.res.EndTime.Format(time.RFC3339Nano))
	if gap != 0 {
		return fmt.Errorf("%w: %s, and the archive continues with record %d; make a backup after that, or restore "+
			"to record %d",
			ErrArchiveGap, have, gap, j.res.End.LSN)
	}
	const when = "the node archives new records every wal.archive-interval (15 s by default) and on " +
		"lockstep store flush-archive"
	switch {
	case j.o.ToLSN != 0:
		return fmt.Errorf("%w: %s, and records %d to %d are missing. If the pair has them, they will be in the "+
			"archive soon: %s. "+
			"Or restore to record %d to get everything available", ErrTarget, have, last.LSN+1, j.o.ToLSN, when, last.LSN)
	case !j.o.ToTime.IsZero():
		return fmt.Errorf("%w: %s, and no later record proves that nothing is missing up to %s. If nothing was committed "+
			"since, omit the time, or restore to record %d. Otherwise the missing records will be in the archive "+
			"soon: %s",
			ErrTarget, have, j.o.ToTime.Format(time.RFC3339Nano), last.LSN, when)
	default:
		return nil
	}
}

func (j *restoreJob) fill(ctx context.Context, t *datadir.RestoreTarget) error {
	j.res.NodeID, j.res.StoreID = t.NodeID(), t.StoreID()
	if err := j.writePages(ctx, t); err != nil {
		return err
	}
	found, err := checkPages(ctx, j.o.FS, j.dir, j.o.Progress)
	if err == nil {
		err = reportError(j.o.Location.Path(j.set), &j.res.Manifest, &found.report)
	}
	if err != nil {
		return err
	}
	return j.writeLog(ctx, t, found.state)
}

// checked is the content of a page file.
type checked struct {
	report checkpoint.Report
	state  *queue.State
}

// checkPages reads and checks the whole page file in a directory.
func checkPages(ctx context.Context, fsys vfs.FS, dir string, progress func(checkpoint.Progress)) (checked, error) {
	var out checked
	file, err := page.Open(fsys, datadir.PageFile(dir), page.Options{ReadOnly: true})
	if err != nil {
		return out, fmt.Errorf("check the new page file: %w", err)
	}
	err = checkpoint.ReadFile(file, func(c *checkpoint.Checkpoint) (err error) {
		if out.report, err = c.Check(ctx, func(done, total uint64) { reportPages(progress, done, total) }); err != nil {
			return err
		}
		out.state, err = c.State()
		return err
	})
	if err != nil {
		return out, fmt.Errorf("check the new page file: %w", err)
	}
	return out, nil
}

func (j *restoreJob) writePages(ctx context.Context, t *datadir.RestoreTarget) (err error) {
	m := &j.res.Manifest
	r, err := openPack(ctx, j.o.Location, j.set, m, j.o.Unseal)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	var imp *page.Importer
	var done uint64
	err = r.each(ctx, func(offset uint64, data []byte, _ int64) error {
		if err := wait(ctx, j.limit, len(data)); err != nil {
			return err
		}
		done += uint64(len(data))
		reportBytes(j.o.Progress, "copy", done, m.DataBytes)
		if offset > 0 {
			return imp.WriteAt(int64(offset), data)
		}
		if _, err := decodeMeta(data, m); err != nil {
			return err
		}
		var err error
		imp, err = page.NewImporter(j.o.FS, datadir.PageFile(j.dir), page.ImportOptions{
			Meta: data, PageSize: m.PageSize, FileBytes: int64(m.FileBytes), StoreID: t.StoreID(),
		})
		return err
	})
	switch {
	case err != nil && imp != nil:
		imp.Abort()
		return err
	case err != nil:
		return err
	case imp == nil:
		return fmt.Errorf("%w: %s has no checkpoint", ErrCorrupt, packName)
	}
	return imp.Finish()
}

// writeLog durably writes the log that continues the page file. It creates the log even if no record follows.
func (j *restoreJob) writeLog(ctx context.Context, t *datadir.RestoreTarget, state *queue.State) (err error) {
	log, err := createLog(j.o.FS, j.dir, t.StoreID(), j.o.SegmentBytes, j.res.Manifest.Position)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	w := logWriter{log: log, end: j.res.Manifest.Position}
	var done uint64
	last, _, err := walkArchive(ctx, j.log(), j.res.Manifest.Position, func(f wal.Frame, raw []byte) error {
		if f.Pos.LSN > j.res.End.LSN {
			return errStop
		}
		done += uint64(len(raw))
		reportBytes(j.o.Progress, "log", done, j.res.LogBytes)
		if err := wait(ctx, j.limit, min(len(raw), chunkBytes)); err != nil {
			return err
		}
		return w.add(f.Pos, raw)
	})
	if err == nil && last != j.res.End {
		err = fmt.Errorf("%w: it ended with %v when it was checked, and now ends with %v", ErrArchiveCorrupt,
			j.res.End, last)
	}
	if err == nil && j.o.Replica {
		err = w.follow(state)
	}
	if err != nil {
		return err
	}
	return w.finish()
}

func createLog(fsys vfs.FS, dir string, id uuid.UUID, segmentBytes int64, start lsn.Position) (*wal.Log, error) {
	log, err := wal.Open(wal.Options{
		FS: fsys, Dir: datadir.LogDir(dir), LogID: id, SegmentBytes: segmentBytes,
		MaxFrameBytes: wal.MaxPayloadBytes,
		Sync:          wal.SyncAlways, SealAfter: -1, KeepBytes: math.MaxInt64, Start: start,
	})
	if err != nil {
		return nil, fmt.Errorf("create log: %w", err)
	}
	return log, nil
}

// logSyncBytes limits the unsynced log of a restore.
const logSyncBytes = 16 << 20

// logWriter appends records in blocks and syncs periodically.
type logWriter struct {
	log      *wal.Log
	buf      []byte
	end      lsn.Position
	unsynced int
}

func (w *logWriter) add(pos lsn.Position, raw []byte) error {
	w.buf = append(w.buf, raw...)
	w.end = pos
	if len(w.buf) < packWriteBytes {
		return nil
	}
	return w.flush()
}

// follow adds the record that makes the store a replica of the pair from which its content is copied. state is the
// content at w.end. If the content is already that of a replica, follow adds nothing. If the pair has no sites, it
// returns ErrNoSites.
func (w *logWriter) follow(state *queue.State) error {
	change, ok := state.ReplicaChange(w.end)
	switch {
	case !ok:
		return fmt.Errorf("%w, at record %d", ErrNoSites, w.end.LSN)
	case change.Action == 0:
		return nil
	}
	payload, err := txn.Build(time.Now(), func(b *txn.Builder) { b.Site(change) })
	if err != nil {
		return fmt.Errorf("encode the change to a replica: %w", err)
	}
	raw, pos := wal.AppendFrame(nil, w.end, w.end.Term, wal.KindTxn, payload)
	return w.add(pos, raw)
}

// finish marks all records as committed and makes them durable.
func (w *logWriter) finish() error {
	if err := w.flush(); err != nil {
		return err
	}
	w.log.NoteCommitted(w.end.LSN)
	if err := w.log.Sync(); err != nil {
		return fmt.Errorf("sync log: %w", err)
	}
	return nil
}

func (w *logWriter) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	if err := w.log.Append(w.buf, w.end); err != nil {
		return fmt.Errorf("write log: %w", err)
	}
	w.unsynced += len(w.buf)
	w.buf = w.buf[:0]
	if w.unsynced < logSyncBytes {
		return nil
	}
	w.unsynced = 0
	if err := w.log.Sync(); err != nil {
		return fmt.Errorf("sync log: %w", err)
	}
	return nil
}
