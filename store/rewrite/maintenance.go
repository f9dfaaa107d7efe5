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
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/throttle"
	"github.com/lockstep-mq/lockstep/store/units"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// Errors of maintenance. See MaintenanceError and SpaceError.
var (
	ErrMaintenance = errors.New("page file maintenance is running")
	// ErrCanceled means that a rewrite or a shrink was canceled before it replaced or truncated page.db. If its context
	// ended, the returned error also matches the error of the context.
	ErrCanceled = errors.New("canceled; page.db is unchanged")
	ErrNoSpace  = errors.New("not enough free space")
)

// MaintenanceError describes the running maintenance. It matches ErrMaintenance.
type MaintenanceError struct {
	// Running is "rewrite", "shrink" or "drop-old".
	Running string
	Since   time.Time
}

func (e *MaintenanceError) Error() string {
	return fmt.Sprintf("%v: a %s has been running since %s; wait for it, or cancel it", ErrMaintenance, e.Running,
		e.Since.UTC().Format(time.RFC3339))
}

// Is reports whether target is ErrMaintenance.
func (e *MaintenanceError) Is(target error) bool { return target == ErrMaintenance }

// SpaceError contains the required and the available disk space when a rewrite is rejected or stopped. It matches
// ErrNoSpace.
type SpaceError struct {
	// NeedBytes is the size of the new file, or 0 if it is already allocated. ReserveBytes is the space that must stay
	// free for the log.
	NeedBytes, ReserveBytes uint64
	AvailableBytes          uint64
}

func (e *SpaceError) Error() string {
	if e.NeedBytes == 0 {
		return fmt.Sprintf("%v: the log requires %s of free space, and %s is available; free some space, or consume "+
			"messages first", ErrNoSpace, units.Bytes(e.ReserveBytes), units.Bytes(e.AvailableBytes))
	}
	return fmt.Sprintf("%v: the new page file requires %s, the log %s more, and %s is available; free "+
		"some space, or consume messages first", ErrNoSpace, units.Bytes(e.NeedBytes), units.Bytes(e.ReserveBytes),
		units.Bytes(e.AvailableBytes))
}

// Is reports whether target is ErrNoSpace.
func (e *SpaceError) Is(target error) bool { return target == ErrNoSpace }

// Engine is the part of the running store that rewrites and shrinks use.
type Engine interface {
	Usable() error
	// Failed reports whether a write has failed. The files must then not be changed.
	Failed() bool
	// Fail makes the store permanently unusable (INV-7) and returns the error for it.
	Fail(err error) error
	// Checkpoint makes all changes that are already applied durable in page.db.
	Checkpoint(ctx context.Context) error
	// Read calls fn with a new checkpoint, or with the last one if the disk is too full.
	Read(ctx context.Context, fn func(*checkpoint.Checkpoint) error) error
	// Pin pins the last durable checkpoint. If the store is closed or replaced by a snapshot, the file is closed despite
	// the pin.
	Pin() (*page.File, *page.Pin, error)
	// Live returns the current liveness of messages. After a checkpoint that was written while Apply is paused, this is
	// the liveness in that checkpoint.
	Live() checkpoint.Liveness
	SetPaused(paused bool)
	// Swap calls rename, which replaces old with another page file with the same content, and reopens page.db. It
	// returns ErrCanceled if old is no longer page.db, or if a batch of messages is not completely written to it. An
	// error after rename has returned done is final.
	Swap(old *page.File, rename func() (done bool, err error)) error
	// Repair tries to repair all known corruption, and reports whether none remains.
	Repair(ctx context.Context) bool
	Pace(ctx context.Context, bytesPerSecond int64) *throttle.Pacer
	// Governed is Pace without the configured percentage of time, for a rewrite.
	Governed(bytesPerSecond int64) *throttle.Pacer
	// MakeGaps writes two checkpoints. Pages freed before can then be reused.
	MakeGaps() error
	// MoveExtents moves message extents to free space before them, starting with the last entry. It returns the number of
	// bytes moved. more is false if no free space is left before them, or if nothing can be moved at present.
	MoveExtents(file *page.File, entries []index.Entry) (moved uint64, more bool, err error)
	// TruncateEnd moves the tree and the bitmap of used pages away from the end of page.db and truncates the file. held
	// reports whether readers may still hold freed pages.
	TruncateEnd(ctx context.Context) (held bool, err error)
}

// Config configures a Maintenance.
type Config struct {
	FS         vfs.FS
	Dir        string
	CacheBytes int64
	// ReserveBytes is the space that must stay free on the disk for the log, in addition to a new file.
	ReserveBytes uint64
	Events       func(events.Event)
}

// Maintenance runs operations on the whole page file of a store, one at a time.
type Maintenance struct {
	o Config
	e Engine

	mu      sync.Mutex // guards the fields below
	running *task
	closed  bool
}

// New returns the Maintenance of a store.
func New(o Config, e Engine) *Maintenance { return &Maintenance{o: o, e: e} }

type task struct {
	what   string
	since  time.Time
	cancel context.CancelFunc
	done   chan struct{} // closed when complete, including background work
}

// begin registers an operation. The returned context ends when ctx ends, or when end or Interrupt is called.
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

func (m *Maintenance) end(u *task) {
	m.mu.Lock()
	defer m.mu.Unlock()
	u.cancel()
	m.running = nil
	close(u.done)
}

// Interrupt cancels the running operation and waits until it has ended.
func (m *Maintenance) Interrupt() {
	m.mu.Lock()
	u := m.running
	m.mu.Unlock()
	if u != nil {
		u.cancel()
		<-u.done
	}
}

// Close interrupts the running operation, and prevents further operations. Engine.Usable must already return an
// error.
func (m *Maintenance) Close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.Interrupt()
}

// Running returns the name of the running operation, such as "shrink", and its start time. ok is false if none is
// running.
func (m *Maintenance) Running() (what string, since time.Time, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if u := m.running; u != nil {
		return u.what, u.since, true
	}
	return "", time.Time{}, false
}

// DropOld removes page.db_old, the file that the last rewrite or snapshot installation replaced. It returns the number
// of bytes freed, or 0 if the file does not exist. It returns a MaintenanceError while another operation is running.
func (m *Maintenance) DropOld() (uint64, error) {
	if err := m.e.Usable(); err != nil {
		return 0, err
	}
	_, u, err := m.begin(context.Background(), "drop-old")
	if err != nil {
		return 0, fmt.Errorf("remove page.db_old: %w", err)
	}
	defer m.end(u)
	return dropOld(m.o.FS, m.o.Dir)
}
