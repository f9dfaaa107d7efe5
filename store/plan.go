package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/lockstep-mq/lockstep/store/pace"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// RewritePlan is what a rewrite would do, and whether there is space for it.
type RewritePlan struct {
	// FromPageSize and PageSize, in bytes.
	FromPageSize int `json:"from_page_size"`
	PageSize     int `json:"page_size"`
	// FileBytes of page.db now; it stays as page.db_old until DropOld.
	FileBytes uint64 `json:"file_bytes"`
	// NeedBytes is what the new file takes, exactly, and ReserveBytes what must stay free besides.
	NeedBytes    uint64 `json:"need_bytes"`
	ReserveBytes uint64 `json:"reserve_bytes"`
	// AvailableBytes on the disk; OldFileBytes more if the present page.db_old is dropped, which a rewrite does if it
	// must.
	AvailableBytes uint64 `json:"available_bytes"`
	OldFileBytes   uint64 `json:"old_file_bytes"`
	// Messages that would be copied and their bytes; DeadMessages would be left out.
	Messages     uint64 `json:"messages"`
	MessageBytes uint64 `json:"message_bytes"`
	DeadMessages uint64 `json:"dead_messages"`
	// File describes the new file.
	File Candidate `json:"file"`
}

// Err returns a SpaceError if the rewrite would not fit, nil if it would.
func (p *RewritePlan) Err() error {
	if p.NeedBytes+p.ReserveBytes <= p.AvailableBytes+p.OldFileBytes {
		return nil
	}
	return &SpaceError{
		NeedBytes: p.NeedBytes, ReserveBytes: p.ReserveBytes,
		AvailableBytes: p.AvailableBytes + p.OldFileBytes,
	}
}

// PlanRewrite writes a checkpoint and finds out what Rewrite would need; of the options PageSize, ReserveBytes and
// Progress count. Online: no transaction waits. It returns ErrDataLoss if the rewrite would stop at a damaged page that
// had to be read. Whether the space is enough is for RewritePlan.Err to say.
func (s *Store) PlanRewrite(ctx context.Context, o RewriteOptions) (RewritePlan, error) {
	if err := s.checkpointIfRoom(ctx); err != nil {
		return RewritePlan{}, err
	}
	file, pin, err := s.pinFile()
	if err != nil {
		return RewritePlan{}, err
	}
	if o.ReserveBytes == 0 {
		o.ReserveBytes = uint64(s.o.SegmentBytes)
	}
	plan, err := planFile(ctx, file, pin, s.o.MemoryBudget/16, s.Pace(ctx, 0), s.o.FS, s.o.Dir, o)
	if gone := s.stillUses(file); gone != nil {
		return RewritePlan{}, gone
	}
	return plan, err
}

// PlanRewriteDir is PlanRewrite for a node that is not running. Read-only.
func PlanRewriteDir(ctx context.Context, fsys vfs.FS, dir string, o RewriteOptions) (_ RewritePlan, err error) {
	file, done, err := openOffline(fsys, dir)
	if err != nil {
		return RewritePlan{}, err
	}
	defer func() {
		if cerr := done(); err == nil {
			err = cerr
		}
	}()
	if o.ReserveBytes == 0 {
		o.ReserveBytes = DefaultSegmentBytes
	}
	return planFile(ctx, file, file.Pin(), offlineCacheBytes, nil, fsys, dir, o)
}

// planFile plans with a pinned checkpoint and releases the pin.
func planFile(
	ctx context.Context, file *page.File, pin *page.Pin, cacheBytes int64, pace *pace.Pacer, fsys vfs.FS, dir string,
	o RewriteOptions,
) (RewritePlan, error) {
	p, err := openPinned(file, pin, cacheBytes, pace)
	if err != nil {
		return RewritePlan{}, fmt.Errorf("plan a rewrite: %w", err)
	}
	defer p.close()
	v := survey{
		file: file, view: p.view, meta: p.meta, live: liveness{state: p.state, lock: noLock{}},
		meter: meter{report: o.Progress}, pace: pace,
	}
	if o.PageSize == 0 {
		o.PageSize = p.meta.PageSize
	}
	plan, err := v.plan(ctx, fsys, dir, o.PageSize, o.ReserveBytes)
	if err != nil {
		return plan, fmt.Errorf("plan a rewrite: %w", err)
	}
	v.meter.phase("done", p.meta.UsedPages)
	return plan, nil
}

// plan finds out what a rewrite with a page size takes. Messages that have a run to themselves are not read for it.
func (v *survey) plan(ctx context.Context, fsys vfs.FS, dir string, pageSize int, reserve uint64) (RewritePlan, error) {
	if err := page.CheckPageSize(pageSize); err != nil {
		return RewritePlan{}, err
	}
	v.meter.phase("plan", v.meta.UsedPages)
	candidates, err := v.run(ctx, []int{pageSize})
	if err != nil {
		return RewritePlan{}, err
	}
	plan := RewritePlan{
		FromPageSize: v.meta.PageSize, PageSize: pageSize, ReserveBytes: reserve, NeedBytes: candidates[0].FileBytes,
		File:     candidates[0],
		Messages: v.result.Messages, MessageBytes: v.result.MessageBytes, DeadMessages: v.result.DeadMessages,
	}
	plan.FileBytes, plan.OldFileBytes, plan.AvailableBytes, err = diskFigures(fsys, dir)
	return plan, err
}

// diskFigures returns the sizes of page.db and page.db_old (0 if there is none), and what is free.
func diskFigures(fsys vfs.FS, dir string) (file, old, available uint64, err error) {
	info, err := fsys.Stat(filepath.Join(dir, pageFileName))
	if err != nil {
		return 0, 0, 0, fmt.Errorf("look at page.db: %w", err)
	}
	if was, err := fsys.Stat(filepath.Join(dir, oldFileName)); err == nil {
		old = uint64(was.SizeBytes)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return 0, 0, 0, fmt.Errorf("look at page.db_old: %w", err)
	}
	usage, err := fsys.Usage(dir)
	if err != nil {
		return 0, 0, 0, fmt.Errorf("look at the free space: %w", err)
	}
	return uint64(info.SizeBytes), old, usage.AvailableBytes, nil
}

// DropOldDir is Store.DropOld for a node that is not running.
func DropOldDir(fsys vfs.FS, dir string) (_ uint64, err error) {
	lock, err := fsys.Lock(filepath.Join(dir, lockName))
	if err != nil {
		return 0, fmt.Errorf("%w: %s: %w; use the admin command of the running node", ErrInUse, dir, err)
	}
	defer func() {
		if cerr := lock.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("unlock %s: %w", dir, cerr)
		}
	}()
	if _, err := fsys.Stat(filepath.Join(dir, pageFileName)); err != nil {
		return 0, fmt.Errorf("page.db_old is kept, for there is no page.db: %w", err)
	}
	return dropOld(fsys, dir)
}

func dropOld(fsys vfs.FS, dir string) (uint64, error) {
	name := filepath.Join(dir, oldFileName)
	info, err := fsys.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("drop page.db_old: %w", err)
	}
	if err := fsys.Remove(name); err != nil {
		return 0, fmt.Errorf("drop page.db_old: %w", err)
	}
	if err := fsys.SyncDir(dir); err != nil {
		return 0, fmt.Errorf("drop page.db_old: %w", err)
	}
	return uint64(info.SizeBytes), nil
}
