// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/pager"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/repair"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/throttle"
)

// Maintenance returns the component that rewrites and shrinks the page file.
func (s *Store) Maintenance() *rewrite.Maintenance { return s.maint }

type engine struct{ *Store }

type maintained struct {
	engine
	*pager.Pager
}

var (
	_ rewrite.Engine = maintained{}
	_ pager.Engine   = engine{}
	_ repair.Engine  = engine{}
)

func (s *Store) newMaintenance() *rewrite.Maintenance {
	return rewrite.New(rewrite.Config{
		FS: s.o.FS, Dir: s.o.Dir, CacheBytes: s.o.MemoryBudget / 32, ReserveBytes: uint64(s.o.SegmentBytes),
		Events: s.o.Events,
	}, maintained{engine{s}, s.pages})
}

func (m maintained) Failed() bool { return m.failed.Load() != nil }

func (e engine) Fail(err error) error {
	e.fail(err)
	return fmt.Errorf("%w: %w", ErrFailed, err)
}

func (m maintained) Checkpoint(ctx context.Context) error {
	_, err := m.Store.Checkpoint(ctx)
	return err
}

func (m maintained) Read(ctx context.Context, fn func(*checkpoint.Checkpoint) error) error {
	return m.ReadCheckpoint(ctx, ReadOptions{OlderIfFull: true}, fn)
}

// Live returns a checkpoint.Liveness that uses the current state.
func (e engine) Live() checkpoint.Liveness { return checkpoint.NewLiveness(e.View) }

func (e engine) SetPaused(paused bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.paused = paused
	e.room.Broadcast()
}

// Swap replaces old with the page file that rename moves into its place. The state does not change.
func (m maintained) Swap(old *page.File, rename func() (done bool, err error)) error {
	err := m.Pager.Swap(old, rename)
	if errors.Is(err, pager.ErrReplaced) {
		return fmt.Errorf("%w: page.db was replaced concurrently", rewrite.ErrCanceled)
	}
	return err
}

func (m maintained) Repair(ctx context.Context) bool {
	if !m.repair.HasSource() {
		return false
	}
	left, err := m.repair.RepairAll(ctx)
	return err == nil && left == 0
}

func (m maintained) Governed(bytesPerSecond int64) *throttle.Pacer {
	return throttle.New(throttle.Limits{BytesPerSecond: bytesPerSecond, Governor: m.governor})
}

func (e engine) WakeRoom() { e.wakeRoom() }

func (e engine) Unwritten() pager.Unwritten {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return pager.Unwritten{
		TailBytes: e.state.TailBytes(), LogBytes: e.sinceCheckpoint.Load(), ScheduleChanges: e.state.ScheduleChanges(),
	}
}

func (e engine) Collect(maxBytes int64) *queue.Batch {
	e.lanes.expire()
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state.Collect(maxBytes, false)
}

// CollectAll returns the batch for a checkpoint, the applied position, and the size of the log applied since the last
// checkpoint. The batch is nil if nothing was applied since then and force is not set.
func (e engine) CollectAll(checkpoint lsn.Position, force bool) (b *queue.Batch, at lsn.Position, logBytes int64) {
	e.lanes.expire()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.applied == checkpoint && !force {
		e.sinceCheckpoint.Store(0)
		return nil, e.applied, 0
	}
	b = e.state.Collect(0, true)
	e.room.Broadcast() // the schedule changes are in the batch
	return b, e.applied, e.sinceCheckpoint.Load()
}

// Publish calls commit. If it succeeds and b is not nil, Publish removes the messages of b from memory, and, if b
// contains everything, also its schedule changes.
func (e engine) Publish(commit func() error, b *queue.Batch) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := commit(); err != nil || b == nil {
		return err
	}
	tail := e.state.TailBytes()
	for i := range b.Tails {
		e.state.Flushed(b.Tails[i].Queue, b.Tails[i].Last())
	}
	e.written += tail - e.state.TailBytes()
	if b.Everything {
		e.state.ScheduleWritten()
	}
	e.room.Broadcast()
	return nil
}

// Checkpointed subtracts logBytes from the size of the log since the checkpoint, and releases the log up to LSN
// upTo.
func (e engine) Checkpointed(logBytes int64, upTo uint64) {
	e.sinceCheckpoint.Add(-logBytes)
	e.log.Release(upTo)
}
