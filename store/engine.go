// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/throttle"
	"github.com/lockstep-mq/lockstep/store/tree"
)

// Maintenance returns the operations that change the whole page file: rewrite and shrink.
func (s *Store) Maintenance() *rewrite.Maintenance { return s.maint }

// engine adapts the store to rewrite.Engine.
type engine struct{ *Store }

var _ rewrite.Engine = engine{}

func (s *Store) newMaintenance() *rewrite.Maintenance {
	return rewrite.New(rewrite.Config{
		FS: s.o.FS, Dir: s.o.Dir, CacheBytes: s.o.MemoryBudget / 32, ReserveBytes: uint64(s.o.SegmentBytes),
		Events: s.o.Events,
	}, engine{s})
}

// Failed reports whether a write has failed.
func (e engine) Failed() bool { return e.failed.Load() != nil }

// Fail makes the store permanently unusable.
func (e engine) Fail(err error) error {
	e.fail(err)
	return fmt.Errorf("%w: %w", ErrFailed, err)
}

// Checkpoint makes all applied records durable in page.db.
func (e engine) Checkpoint(ctx context.Context) error {
	_, err := e.Store.Checkpoint(ctx)
	return err
}

// Read calls fn with a checkpoint of the current state.
func (e engine) Read(ctx context.Context, fn func(*checkpoint.Checkpoint) error) error {
	return e.ReadCheckpoint(ctx, ReadOptions{OlderIfFull: true}, fn)
}

// Pin pins the last durable checkpoint.
func (e engine) Pin() (*page.File, *page.Pin, error) { return e.pinFile() }

// Live returns the set of messages that are currently needed.
func (e engine) Live() checkpoint.Liveness {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return checkpoint.NewLiveness(e.state, e.mu.RLocker())
}

// SetPaused pauses or resumes Apply.
func (e engine) SetPaused(paused bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.paused = paused
	e.room.Broadcast()
}

// Swap replaces old with the page file that rename moves into its place. The state is the same.
func (e engine) Swap(old *page.File, rename func() (done bool, err error)) error {
	s := e.Store
	s.pager.hold()
	defer s.pager.mu.Unlock()
	s.ioMu.Lock()
	defer s.ioMu.Unlock()
	if err := s.Usable(); err != nil {
		return err
	}
	if s.file != old || s.pager.todo != nil {
		return fmt.Errorf("%w: page.db was replaced meanwhile", rewrite.ErrCanceled)
	}
	if done, err := rename(); err != nil || !done {
		return err
	}
	file, err := page.Open(s.o.FS, old.Path(), page.Options{})
	if err != nil {
		return e.Fail(fmt.Errorf("open the new page.db: %w", err))
	}
	s.mu.Lock()
	s.use(file)
	s.index = tree.New(file, file.Meta().Root, tree.Options{CacheBytes: s.o.MemoryBudget / 8})
	s.mu.Unlock()
	s.retired.add(old, func(err error) { s.o.Events(events.OldFileNotClosed{Err: err}) })
	return nil
}

// Repair tries to repair all known corruption.
func (e engine) Repair(ctx context.Context) bool {
	if e.damage.source.Load() == nil {
		return false
	}
	left, err := e.RepairAll(ctx)
	return err == nil && left == 0
}

// Governed returns the rate limits of a rewrite.
func (e engine) Governed(bytesPerSecond int64) *throttle.Pacer { return e.paceGoverned(bytesPerSecond) }

// MakeGaps writes checkpoints until unreferenced pages become reusable.
func (e engine) MakeGaps() error { return e.pager.makeGaps() }

// MoveRuns copies extents of messages into gaps.
func (e engine) MoveRuns(file *page.File, runs []index.Entry) (moved uint64, more bool, err error) {
	return e.pager.moveRuns(file, runs)
}

// CutEnd truncates the free end of page.db.
func (e engine) CutEnd(ctx context.Context) (held bool, err error) { return e.pager.cutEnd(ctx) }
