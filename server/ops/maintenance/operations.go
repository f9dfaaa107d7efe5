// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/rewrite"
)

var _ Operations = (*Manager)(nil)

// Scan reads a snapshot of this node's page file and recommends a page size: at most maxPageSize, or the current page
// size. It runs online. If maxPageSize is 0, the limit is the pair's setting PageSizeMax, and the recommendation is
// stored for the pair, if possible.
func (m *Manager) Scan(
	ctx context.Context, maxPageSize int, progress func(checkpoint.Progress),
) (checkpoint.ScanResult, error) {
	settings, err := m.Settings()
	if err != nil {
		return checkpoint.ScanResult{}, err
	}
	limit := cmp.Or(maxPageSize, settings.PageSizeMax)
	ctx, op, err := m.begin(ctx, opScan, "", progress)
	if err != nil {
		return checkpoint.ScanResult{}, err
	}
	defer m.end(op)
	var r checkpoint.ScanResult
	err = m.store.ReadCheckpoint(ctx, store.ReadOptions{OlderIfFull: true}, func(c *checkpoint.Checkpoint) (err error) {
		r, err = c.Scan(ctx, checkpoint.ScanOptions{MaxPageSize: limit, Progress: m.pageProgress(op)})
		return err
	})
	if err != nil {
		return r, fmt.Errorf("scan: %w", cause(ctx, err))
	}
	if err := m.local.saveScan(&r); err != nil {
		m.log.Warn("scan result not stored", zap.Error(err))
	}
	if maxPageSize == 0 {
		m.recommend(ctx, r.Recommended)
	}
	return r, nil
}

// LastScan returns the result of this node's last scan, which may precede a restart. It returns the zero value if no
// scan was made.
func (m *Manager) LastScan() checkpoint.ScanResult { return m.local.lastScan() }

func (m *Manager) recommend(ctx context.Context, pageSize int) {
	err := m.report(ctx, Report{Node: m.node.Pair().Self.ID, Recommended: pageSize})
	if err != nil {
		m.log.Warn("recommended page size not stored for the pair", zap.Int("page_size", pageSize),
			zap.Error(err))
	}
}

func (m *Manager) report(ctx context.Context, r Report) error {
	err := m.Report(ctx, r)
	if !errors.Is(err, replication.ErrNotActive) || m.node.Alone() {
		return err
	}
	active, ok := m.node.Pair().ActiveNode()
	if !ok || active.ID == r.Node {
		return err
	}
	return m.o.Peers.Report(ctx, active.Address, r)
}

// pageProgress returns a function that reports the progress of op as the bytes of processed pages.
func (m *Manager) pageProgress(op *operation) func(checkpoint.Progress) {
	var pageSize uint64
	if stats, err := m.store.Stats(); err == nil {
		pageSize = uint64(stats.PageSize)
	}
	return func(p checkpoint.Progress) {
		p.Bytes, p.TotalBytes = p.Pages*pageSize, p.TotalPages*pageSize
		op.report(p)
	}
}

// backupProgress returns a function that reports the written bytes of the backup. During the verification of the
// backup, it reports the bytes of processed pages.
func (m *Manager) backupProgress(op *operation) func(checkpoint.Progress) {
	pages := m.pageProgress(op)
	return func(p checkpoint.Progress) {
		if p.TotalPages > 0 {
			pages(p)
		} else {
			op.report(p)
		}
	}
}

// Rewrite rewrites this node's page file. It returns ErrRole unless the node follows an active, or is a standalone node
// that is starting. A dry run is permitted in all roles. Rewrite returns ErrBusy while another operation runs, and
// ErrRoleChanged if a role change canceled the rewrite. rewrite.ErrNoSpace means that the free disk space is too
// small. index.ErrDataLoss reports a message that cannot be read. After these errors, the page file is unchanged. If
// the completed step cannot be recorded, Rewrite returns an error although the page file was rewritten.
func (m *Manager) Rewrite(
	ctx context.Context, req RewriteRequest, progress func(checkpoint.Progress),
) (RewriteResult, error) {
	if req.DryRun {
		return m.planRewrite(ctx, req, progress)
	}
	m.awaitPlan(ctx, req.PlanID)
	incarnation := m.store.Identity().Incarnation
	if m.local.done(req.PlanID, incarnation) {
		return m.unchanged()
	}
	ctx, op, err := m.begin(ctx, opRewrite, req.PlanID, progress)
	if err != nil {
		return RewriteResult{}, err
	}
	defer m.end(op)
	if m.local.done(req.PlanID, incarnation) { // another call has completed the step since the first check
		return m.unchanged()
	}
	reason := "requested"
	if req.PlanID != "" {
		reason = "plan " + req.PlanID
	}
	start := time.Now()
	r, err := m.store.Maintenance().Rewrite(ctx, rewrite.Options{
		PageSize: req.PageSize, BytesPerSecond: m.rewriteRate(), Reason: reason, Progress: m.pageProgress(op),
	})
	if err != nil {
		op.err = cause(ctx, err)
		return RewriteResult{}, op.err
	}
	if req.PlanID != "" {
		// If the node crashes before this write, the step is repeated.
		err = m.local.recordStep(doneStep{
			ID: req.PlanID, PageSize: r.PageSize, At: m.o.Now(),
			Incarnation: m.store.Identity().Incarnation,
		})
	}
	return RewriteResult{
		PageSizeBefore: r.FromPageSize, PageSizeAfter: r.PageSize, FileBytesBefore: r.FileBytesBefore,
		FileBytesAfter: r.FileBytesAfter,
		NeededBytes:    r.FileBytesAfter, Messages: r.Messages, Duration: time.Since(start),
	}, err
}

const awaitPlanLimit = time.Second

// awaitPlan waits for at most awaitPlanLimit until this node has applied the entry of the plan or startup request
// with the given ID.
func (m *Manager) awaitPlan(ctx context.Context, id string) {
	if id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, awaitPlanLimit)
	defer cancel()
	entries, unwatch := query.WatchMeta(m.store)
	defer unwatch()
	for {
		p, _, err := read[Plan](m, keyPlan)
		s, _, serr := read[pairSettings](m, keySettings)
		if err != nil || p.ID == id || serr != nil || s.Startup != nil && s.Startup.ID == id {
			return
		}
		if !m.wait(ctx, nil, entries, 0) {
			return
		}
	}
}

func (m *Manager) planRewrite(
	ctx context.Context, req RewriteRequest, progress func(checkpoint.Progress),
) (RewriteResult, error) {
	ctx, op, err := m.begin(ctx, opScan, "", progress)
	if err != nil {
		return RewriteResult{}, err
	}
	defer m.end(op)
	p, err := m.store.Maintenance().PlanRewrite(ctx,
		rewrite.Options{PageSize: req.PageSize, Progress: m.pageProgress(op)})
	if err != nil {
		return RewriteResult{}, cause(ctx, err)
	}
	return RewriteResult{
		PageSizeBefore: p.FromPageSize, PageSizeAfter: p.PageSize, FileBytesBefore: p.FileBytes,
		FileBytesAfter: p.NeedBytes,
		NeededBytes:    p.NeedBytes + p.ReserveBytes, AvailableBytes: p.AvailableBytes + p.OldFileBytes,
		Messages: p.Messages,
	}, nil
}

func (m *Manager) unchanged() (RewriteResult, error) {
	stats, err := m.store.Stats()
	if err != nil {
		return RewriteResult{}, fmt.Errorf("rewrite: %w", err)
	}
	bytes := stats.Pages * uint64(stats.PageSize)
	return RewriteResult{
		PageSizeBefore: stats.PageSize, PageSizeAfter: stats.PageSize, FileBytesBefore: bytes, FileBytesAfter: bytes,
		Messages: stats.Messages,
	}, nil
}

// Shrink releases the free space at the end of this node's page file to the filesystem. It runs online. With dryRun, it
// only returns the expected result. It returns ErrBusy while another operation runs.
func (m *Manager) Shrink(ctx context.Context, dryRun bool) (ShrinkResult, error) {
	ctx, op, err := m.begin(ctx, opShrink, "", nil)
	if err != nil {
		return ShrinkResult{}, err
	}
	defer m.end(op)
	if dryRun {
		p, err := m.store.Maintenance().PlanShrink(ctx, rewrite.ShrinkOptions{})
		return ShrinkResult{FileBytesBefore: p.FileBytes, FileBytesAfter: p.FileBytes - min(p.GainBytes, p.FileBytes)},
			cause(ctx, err)
	}
	r, err := m.store.Maintenance().Shrink(ctx, rewrite.ShrinkOptions{})
	return ShrinkResult{FileBytesBefore: r.FileBytesBefore, FileBytesAfter: r.FileBytesAfter}, cause(ctx, err)
}

// DropOld deletes the page file that the last rewrite or snapshot installation of this node replaced. It returns the
// size of the file in bytes; 0 if the file does not exist.
func (m *Manager) DropOld(ctx context.Context) (uint64, error) {
	_, op, err := m.begin(ctx, opDropOld, "", nil)
	if err != nil {
		return 0, err
	}
	defer m.end(op)
	return m.store.Maintenance().DropOld()
}

// FlushArchive archives all records that this node has applied before the call. It returns the location and the
// status of the archive, or ErrNoArchive.
func (m *Manager) FlushArchive(ctx context.Context) (dir string, st backup.ArchiveStatus, err error) {
	a := m.o.Archiver
	if a == nil {
		return "", st, fmt.Errorf("%w: set wal.archive", ErrNoArchive)
	}
	if err := a.Flush(ctx); err != nil {
		return "", st, fmt.Errorf("flush the log archive %s: %w", a.Dir(), err)
	}
	return a.Dir(), a.Status(), nil
}

// Backup creates a backup from a snapshot of this node. It runs online. If a location is configured, only a backup
// there removes archived log, because the backups there need the log that is newer than the oldest of them. Backup
// returns ErrNoBackupPath if no location is set, and ErrBusy while another operation runs.
func (m *Manager) Backup(
	ctx context.Context, req BackupRequest, progress func(checkpoint.Progress),
) (backup.Set, error) {
	o := backup.Options{
		BytesPerSecond: req.BytesPerSecond, Seal: m.o.Seal, Software: m.o.Software,
	}
	settings, err := m.Settings()
	if err != nil {
		return backup.Set{}, err
	}
	o.KeepGenerations = cmp.Or(req.Keep, settings.BackupKeep)
	if removesLog(req.Path, settings.BackupPath) {
		o.Archive = m.o.Archive
	}
	if o.Location, err = m.location(req.Path); err != nil {
		return backup.Set{}, err
	}
	defer closeObjects(o.Location)
	ctx, op, err := m.begin(ctx, opBackup, "", progress)
	if err != nil {
		return backup.Set{}, err
	}
	defer m.end(op)
	o.Progress = m.backupProgress(op)
	set, err := backup.Run(ctx, m.store, o)
	if err != nil {
		m.store.Repair().NoteError(err) // a backup reads pages directly, so the store has not recorded the corruption
		return set, fmt.Errorf("backup: %w", cause(ctx, err))
	}
	if m.o.Archiver != nil {
		m.o.Archiver.BackedUp(set.Manifest.Position.LSN)
	}
	return set, nil
}

// Backups returns this node's backups, oldest first. If path is empty, the configured location is used.
func (m *Manager) Backups(ctx context.Context, path string) ([]backup.Set, error) {
	place, err := m.location(path)
	if err != nil {
		return nil, err
	}
	defer closeObjects(place)
	return backup.List(ctx, place)
}

// location opens the backup location with the given path. If path is empty, the configured location is used.
func (m *Manager) location(path string) (backup.Objects, error) {
	settings, err := m.Settings()
	if err != nil {
		return nil, err
	}
	at, err := m.checkBackupPath(cmp.Or(path, settings.BackupPath))
	switch {
	case err != nil:
		return nil, err
	case m.o.Location != nil:
		place, err := m.o.Location(at)
		if err != nil {
			return nil, fmt.Errorf("%w: backup.path: %w", ErrSetting, err)
		}
		return place, nil
	case at.IsS3():
		return nil, fmt.Errorf("%w: backup.path: this node supports directories only", ErrSetting)
	}
	return backup.Directory(nil, at.Dir), nil
}

// removesLog reports whether a backup in path removes archived log: no other location is configured.
func removesLog(path, configured string) bool {
	if path == "" || configured == "" {
		return true
	}
	at, err := backup.ParseLocation(path)
	own, ownErr := backup.ParseLocation(configured)
	at.Dir, own.Dir = filepath.Clean(at.Dir), filepath.Clean(own.Dir)
	return err == nil && ownErr == nil && at == own
}

func closeObjects(place backup.Objects) {
	if c, ok := place.(io.Closer); ok {
		_ = c.Close() // all writes to the location were confirmed
	}
}

// checkBackupPath parses a backup location. It rejects an empty path, a relative path, and a path inside the data
// directory, where a backup would be lost together with the data.
func (m *Manager) checkBackupPath(path string) (at backup.Location, err error) {
	if path == "" {
		return at, fmt.Errorf("%w: set backup.path", ErrNoBackupPath)
	}
	at, err = backup.ParseLocation(path)
	switch {
	case err != nil:
		return at, fmt.Errorf("%w: backup.path: %w", ErrSetting, err)
	case at.IsS3():
		return at, nil
	case !filepath.IsAbs(at.Dir):
		return at, fmt.Errorf("%w: backup path %q is relative; specify an absolute path on the node", ErrSetting, path)
	}
	data, err := filepath.Abs(m.o.DataDir)
	if err != nil {
		return at, fmt.Errorf("find the data directory: %w", err)
	}
	in, err := filepath.Rel(withoutLinks(data), withoutLinks(at.Dir))
	if err == nil && in != ".." && !strings.HasPrefix(in, ".."+string(filepath.Separator)) {
		return at, fmt.Errorf("%w: backup path %q is in the data directory %s; a backup there is lost with the disk",
			ErrSetting, at.Dir, data)
	}
	return at, nil
}

func withoutLinks(path string) string {
	rest := ""
	for dir := filepath.Clean(path); ; dir = filepath.Dir(dir) {
		if there, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(there, rest)
		}
		if dir == filepath.Dir(dir) {
			return filepath.Clean(path)
		}
		rest = filepath.Join(filepath.Base(dir), rest)
	}
}

const activityLimit = time.Second

// MaySwitchOver returns failover.ErrSwitchover while this node or the other node rewrites its page file. If the other
// node is unreachable, its activity is not checked.
func (m *Manager) MaySwitchOver(ctx context.Context) error {
	a, ok := m.Activity()
	if other, reason := m.partner(); !ok && reason == "" {
		ctx, cancel := context.WithTimeout(ctx, activityLimit)
		defer cancel()
		if there, err := m.o.Peers.Activity(ctx, other.Address); err == nil && there != nil {
			a, ok = *there, true
		}
	}
	if !ok || a.Operation != opRewrite {
		return nil
	}
	return fmt.Errorf("%w: standby is busy: %s; it must catch up before it can take "+
		"over; wait for it, or cancel it", failover.ErrSwitchover, a)
}

func (m *Manager) rewriteRate() int64 {
	if m.o.RewriteBytesPerSecond == nil {
		return 0
	}
	return m.o.RewriteBytesPerSecond()
}
