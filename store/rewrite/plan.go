// SPDX-License-Identifier: Apache-2.0

package rewrite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// Plan describes a rewrite and the available space.
type Plan struct {
	FromPageSize int    `json:"from_page_size"`
	PageSize     int    `json:"page_size"`
	FileBytes    uint64 `json:"file_bytes"` // size of the current page.db, which becomes page.db_old
	// NeedBytes is the exact size of the new file; during Rewrite, an estimate. ReserveBytes is the space that must stay
	// free in addition.
	NeedBytes    uint64 `json:"need_bytes"`
	ReserveBytes uint64 `json:"reserve_bytes"`
	// AvailableBytes is the free disk space. OldFileBytes is the size of the current page.db_old, which a rewrite
	// removes.
	AvailableBytes uint64 `json:"available_bytes"`
	OldFileBytes   uint64 `json:"old_file_bytes"`
	// Messages is the number of messages to copy. DeadMessages is the number of messages to omit.
	Messages     uint64               `json:"messages"`
	MessageBytes uint64               `json:"message_bytes"`
	DeadMessages uint64               `json:"dead_messages"`
	File         checkpoint.Candidate `json:"file"`
}

// Err returns a SpaceError if the disk space does not suffice for the rewrite.
func (p *Plan) Err() error {
	if p.NeedBytes+p.ReserveBytes <= p.AvailableBytes+p.OldFileBytes {
		return nil
	}
	return &SpaceError{
		NeedBytes: p.NeedBytes, ReserveBytes: p.ReserveBytes,
		AvailableBytes: p.AvailableBytes + p.OldFileBytes,
	}
}

// PlanRewrite writes a checkpoint and computes the space that Rewrite needs. It uses only the options PageSize,
// ReserveBytes and Progress. It returns index.ErrDataLoss if a message that it must read is corrupt, and
// page.ErrCorrupt if the tree is corrupt. It does not check the available space: see Plan.Err.
func (m *Maintenance) PlanRewrite(ctx context.Context, o Options) (plan Plan, err error) {
	if o.ReserveBytes == 0 {
		o.ReserveBytes = m.o.ReserveBytes
	}
	err = m.e.Read(ctx, func(c *checkpoint.Checkpoint) (err error) {
		plan, err = planOf(ctx, c, m.o.FS, m.o.Dir, o)
		return err
	})
	return plan, err
}

const defaultReserveBytes = 64 << 20 // one log segment

// PlanDir is Maintenance.PlanRewrite for a stopped node. It is read-only.
func PlanDir(ctx context.Context, fsys vfs.FS, dir string, o Options) (plan Plan, err error) {
	if o.ReserveBytes == 0 {
		o.ReserveBytes = defaultReserveBytes
	}
	err = checkpoint.ReadDir(fsys, dir, func(c *checkpoint.Checkpoint) (err error) {
		plan, err = planOf(ctx, c, fsys, dir, o)
		return err
	})
	return plan, err
}

// planOf computes a plan from checkpoint c, which may be older than the current state.
func planOf(ctx context.Context, c *checkpoint.Checkpoint, fsys vfs.FS, dir string, o Options) (Plan, error) {
	live, err := c.Live()
	if err != nil {
		return Plan{}, fmt.Errorf("plan a rewrite: %w", err)
	}
	if o.PageSize == 0 {
		o.PageSize = c.Meta().PageSize
	}
	m := checkpoint.NewMeter(o.Progress)
	plan, err := planWith(ctx, c, live, c.Survey, m, fsys, dir, o)
	if err != nil {
		return plan, fmt.Errorf("plan a rewrite: %w", err)
	}
	m.Done()
	return plan, nil
}

// survey is Checkpoint.Survey or Checkpoint.Estimate.
type survey func(
	ctx context.Context, live checkpoint.Liveness, sizes []int, m *checkpoint.Meter,
) (checkpoint.SurveyResult, error)

func planWith(
	ctx context.Context, c *checkpoint.Checkpoint, live checkpoint.Liveness, survey survey, m *checkpoint.Meter,
	fsys vfs.FS, dir string, o Options,
) (Plan, error) {
	if err := page.CheckPageSize(o.PageSize); err != nil {
		return Plan{}, err
	}
	m.Phase("plan", c.Meta().UsedPages)
	found, err := survey(ctx, live, []int{o.PageSize}, m)
	if err != nil {
		return Plan{}, err
	}
	file := found.Candidates[0]
	plan := Plan{
		FromPageSize: c.Meta().PageSize, PageSize: o.PageSize, ReserveBytes: o.ReserveBytes, NeedBytes: file.FileBytes,
		File: file, Messages: found.Messages, MessageBytes: found.MessageBytes, DeadMessages: found.DeadMessages,
	}
	plan.FileBytes, plan.OldFileBytes, plan.AvailableBytes, err = diskFigures(fsys, dir)
	return plan, err
}

func diskFigures(fsys vfs.FS, dir string) (file, old, available uint64, err error) {
	info, err := fsys.Stat(datadir.PageFile(dir))
	if err != nil {
		return 0, 0, 0, fmt.Errorf("stat page.db: %w", err)
	}
	if was, err := fsys.Stat(filepath.Join(dir, datadir.OldFileName)); err == nil {
		old = uint64(was.SizeBytes)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return 0, 0, 0, fmt.Errorf("stat page.db_old: %w", err)
	}
	usage, err := fsys.Usage(dir)
	if err != nil {
		return 0, 0, 0, fmt.Errorf("get free space: %w", err)
	}
	return uint64(info.SizeBytes), old, usage.AvailableBytes, nil
}

// DropOldDir is Maintenance.DropOld for a stopped node. It returns an error and removes nothing if page.db is missing.
func DropOldDir(fsys vfs.FS, dir string) (_ uint64, err error) {
	lock, err := datadir.Lock(fsys, dir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if _, err := fsys.Stat(datadir.PageFile(dir)); err != nil {
		return 0, fmt.Errorf("keep page.db_old, because page.db is missing: %w", err)
	}
	return dropOld(fsys, dir)
}

func dropOld(fsys vfs.FS, dir string) (uint64, error) {
	name := filepath.Join(dir, datadir.OldFileName)
	info, err := fsys.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("remove page.db_old: %w", err)
	}
	if err := vfs.RemoveLarge(fsys, name); err != nil {
		return 0, fmt.Errorf("remove page.db_old: %w", err)
	}
	if err := fsys.SyncDir(dir); err != nil {
		return 0, fmt.Errorf("remove page.db_old: %w", err)
	}
	return uint64(info.SizeBytes), nil
}
