// SPDX-License-Identifier: Apache-2.0

package rewrite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/pace"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/units"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// Errors of maintenance: scan, rewrite, shrink.
var (
	// ErrMaintenance is returned when a rewrite or a shrink is asked for while one is under way; see MaintenanceError.
	ErrMaintenance = errors.New("maintenance of the page file is under way")
	// ErrCanceled is returned by a rewrite or a shrink that was given up before it changed anything, because its
	// context ended, or because the store was closed or replaced by its peer's. The error of the context is wrapped,
	// too.
	ErrCanceled = errors.New("canceled; page.db is as it was")
	// ErrNoSpace is returned when a rewrite would not fit on the disk; see SpaceError.
	ErrNoSpace = errors.New("not enough free space")
)

// MaintenanceError says what is under way. errors.Is(err, ErrMaintenance) holds for it.
type MaintenanceError struct {
	// Running is "rewrite", "shrink" or "drop-old"; Since is when it began.
	Running string
	Since   time.Time
}

// Error says what is under way and what to do.
func (e *MaintenanceError) Error() string {
	return fmt.Sprintf("%v: a %s has been running since %s; wait for it, or cancel it", ErrMaintenance, e.Running,
		e.Since.UTC().Format(time.RFC3339))
}

// Is makes errors.Is(err, ErrMaintenance) hold.
func (e *MaintenanceError) Is(target error) bool { return target == ErrMaintenance }

// SpaceError has the two figures that a rewrite was refused for, or stopped. errors.Is(err, ErrNoSpace) holds for it.
type SpaceError struct {
	// NeedBytes is what the new file takes, 0 when it has its space already, and ReserveBytes what must stay free for
	// the log meanwhile.
	NeedBytes, ReserveBytes uint64
	// AvailableBytes is what this process may still use.
	AvailableBytes uint64
}

// Error has the figures.
func (e *SpaceError) Error() string {
	if e.NeedBytes == 0 {
		return fmt.Sprintf("%v: %s must stay free for the log, and %s are available; free some space, or consume "+
			"messages first", ErrNoSpace, units.Bytes(e.ReserveBytes), units.Bytes(e.AvailableBytes))
	}
	return fmt.Sprintf("%v: the new page file takes %s, %s more must stay free for the log, and %s are available; free "+
		"some space, or consume messages first", ErrNoSpace, units.Bytes(e.NeedBytes), units.Bytes(e.ReserveBytes),
		units.Bytes(e.AvailableBytes))
}

// Is makes errors.Is(err, ErrNoSpace) hold.
func (e *SpaceError) Is(target error) bool { return target == ErrNoSpace }

// Engine is what a rewrite and a shrink need of the live store.
type Engine interface {
	// Usable returns why the store cannot be used, or nil.
	Usable() error
	// Failed tells whether a write has failed: then nothing on the disk is touched any more.
	Failed() bool
	// Fail makes the store unusable for good (INV-7) and returns the error that says so.
	Fail(err error) error
	// Checkpoint makes everything applied so far durable in page.db.
	Checkpoint(ctx context.Context) error
	// Read calls fn with a checkpoint of now, or the last one if the disk is too full for another one.
	Read(ctx context.Context, fn func(*checkpoint.Checkpoint) error) error
	// Pin pins the last durable checkpoint. The file is closed under the pin when the store is closed or replaced.
	Pin() (*page.File, *page.Pin, error)
	// Live tells what is wanted now; while Apply is paused, of the last checkpoint.
	Live() checkpoint.Liveness
	// SetPaused has Apply wait, or go on.
	SetPaused(paused bool)
	// Swap calls rename, which puts another page file with the same content in the place of old, and goes on with that.
	// Nothing reads or writes page.db meanwhile. ErrCanceled if page.db is not old any more. An error after rename has
	// said that it is done is final.
	Swap(old *page.File, rename func() (done bool, err error)) error
	// Repair tries to repair what is known to be damaged, and tells whether nothing is left of it.
	Repair(ctx context.Context) bool
	// Pace gives the limits of work in the background.
	Pace(ctx context.Context, bytesPerSecond int64) *pace.Pacer
	// Governed is Pace for a rewrite, which has no share of the time that it may not go beyond.
	Governed(bytesPerSecond int64) *pace.Pacer
	// MakeGaps writes checkpoints until what is not in use any more can be used.
	MakeGaps() error
	// MoveRuns copies runs of messages, the last one first, into gaps in front of them. more is false when there are no
	// more gaps.
	MoveRuns(file *page.File, runs []index.Entry) (moved uint64, more bool, err error)
	// CutEnd moves what is not messages away from the end of page.db and cuts it off. held tells that pages at the end
	// are still read.
	CutEnd(ctx context.Context) (held bool, err error)
}

// MaintenanceOptions say what there is to maintain.
type Config struct {
	FS  vfs.FS
	Dir string
	// CacheBytes bounds the nodes of the tree that are held in memory.
	CacheBytes int64
	// ReserveBytes must stay free on the disk besides a new file, for the log.
	ReserveBytes uint64
	// Events is told what happens.
	Events func(events.Event)
}

// Maintenance changes a store's page file as a whole: one thing at a time.
type Maintenance struct {
	o Config
	e Engine

	mu      sync.Mutex // guards what follows
	running *task
	closed  bool
}

// NewMaintenance makes the maintenance of a store.
func New(o Config, e Engine) *Maintenance { return &Maintenance{o: o, e: e} }

// task is one piece of maintenance under way.
type task struct {
	what   string
	since  time.Time
	cancel context.CancelFunc
	done   chan struct{} // closed when nothing of it is left, also in the background
}

// begin registers a piece of maintenance, or says why it cannot be now. The context ends with ctx, end, or interrupt.
func (m *Maintenance) begin(ctx context.Context, what string) (context.Context, *task, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, nil, m.e.Usable()
	}
	if r := m.running; r != nil {
		return nil, nil, &MaintenanceError{Running: r.what, Since: r.since}
	}
	ctx, cancel := context.WithCancel(ctx)
	m.running = &task{what: what, since: time.Now(), cancel: cancel, done: make(chan struct{})}
	return ctx, m.running, nil
}

// end is called when nothing of it is left.
func (m *Maintenance) end(u *task) {
	m.mu.Lock()
	defer m.mu.Unlock()
	u.cancel()
	m.running = nil
	close(u.done)
}

// Interrupt cancels what is under way and waits until nothing of it is left. It is for the store.
func (m *Maintenance) Interrupt() {
	m.mu.Lock()
	u := m.running
	m.mu.Unlock()
	if u != nil {
		u.cancel()
		<-u.done
	}
}

// Close cancels what is under way, waits for it, and lets nothing begin any more. It is for the store, which is closed
// already: Engine.Usable says so.
func (m *Maintenance) Close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.Interrupt()
}

// Running tells what is under way ("rewrite", "shrink" or "drop-old"); ok is false when nothing is.
func (m *Maintenance) Running() (what string, since time.Time, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if u := m.running; u != nil {
		return u.what, u.since, true
	}
	return "", time.Time{}, false
}

// DropOld removes page.db_old, which the last rewrite or the last installation of a snapshot replaced, and returns how
// many bytes that gave back; 0 if there was none. It returns a MaintenanceError while a rewrite is under way.
func (m *Maintenance) DropOld() (uint64, error) {
	if err := m.e.Usable(); err != nil {
		return 0, err
	}
	_, u, err := m.begin(context.Background(), "drop-old")
	if err != nil {
		return 0, fmt.Errorf("drop page.db_old: %w", err)
	}
	defer m.end(u)
	return dropOld(m.o.FS, m.o.Dir)
}
