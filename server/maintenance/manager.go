// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// Options of New.
type Options struct {
	// Store of this node.
	Store *store.Store
	// Node that it works in.
	Node Node
	// Peers reach the other one.
	Peers Peers
	// FS of DataDir; nil means the operating system's.
	FS vfs.FS
	// DataDir of the store: maintenance.json is kept there.
	DataDir string
	// Defaults are what this node's configuration says; they hold where the pair has set nothing.
	Defaults Defaults
	// RewriteBytesPerSecond bounds what a rewrite of this node's page file copies, asked for when one begins; 0, and
	// nil, mean that nothing does.
	RewriteBytesPerSecond func() int64
	// Archive of this node's log, and the Archiver of it; nil for none.
	Archive  backup.Objects
	Archiver *backup.Archiver
	// Place opens a place for save-sets; nil knows directories only.
	Place func(backup.Location) (backup.Objects, error)
	// Seal encrypts save-sets; nil leaves them as they are.
	Seal backup.Sealer
	// Software is noted in backups.
	Software string
	// Logger gets what an operator should know; nil means none.
	Logger *zap.Logger
	// Retry is how long a step of a plan that failed waits before it is tried again, the first time; it doubles up to
	// 30 times that. 0 means 1 s.
	Retry time.Duration
	// Tick is how often the schedule is looked at; 0 means 500 ms.
	Tick time.Duration
	// Restart ends the node so that it begins anew, with the program as it is on the disk then; nil if it cannot.
	Restart func()
	// CheckRestart returns why the process would not start again as Restart starts it; nil checks nothing.
	CheckRestart func(ctx context.Context) error
	// Now is the clock that jobs and autotune go by; nil means time.Now.
	Now func() time.Time
}

// Manager does the maintenance of one node and, while the node is active, of the pair. Its methods may be called from
// any goroutine.
type Manager struct {
	o     Options
	log   *zap.Logger
	store *store.Store
	node  Node
	local *localState
	// process tells runs of this node apart.
	process string

	// committing is held from reading one of the pair's entries until its change is committed: for as long as the
	// standby takes.
	committing *semaphore.Weighted

	mu        sync.Mutex // guards what follows
	running   *operation
	following bool // this node follows an active: it may rewrite
	starting  bool // this node stands alone and has not begun to serve: it may rewrite
	jobs      map[string]bool
	// clockSeen is the time that clock gave last, and clockSteady since when it is steady.
	clockSeen, clockSteady time.Time
	held                   map[uint64]context.CancelCauseFunc
	holds                  uint64 // numbers the keys of held

	// progress of the plan's step on the other node.
	progress atomic.Pointer[checkpoint.Progress]
}

// New makes the manager of a node. Run runs it.
func New(o Options) (*Manager, error) {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Retry <= 0 {
		o.Retry = time.Second
	}
	if o.Tick <= 0 {
		o.Tick = 500 * time.Millisecond
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	local, err := openLocal(o.FS, o.DataDir, o.Logger)
	if err != nil {
		return nil, err
	}
	return &Manager{
		o: o, log: o.Logger, store: o.Store, node: o.Node, local: local, process: uuid.NewString(),
		jobs: make(map[string]bool),
		held: make(map[uint64]context.CancelCauseFunc), committing: semaphore.NewWeighted(1),
	}, nil
}

// Run drives the pair's plan, jobs and autotune while this node is active, and does what is asked for its start, until
// ctx ends.
func (m *Manager) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { m.drive(ctx) })
	running.Go(func() { m.schedule(ctx) })
	running.Go(func() { m.afterStart(ctx) })
	running.Wait()
}

// wait waits until the role, the pair's entries or the time (if not 0) may ask for something. It returns false when ctx
// ended.
func (m *Manager) wait(ctx context.Context, changed, entries <-chan struct{}, limit time.Duration) bool {
	var timeout <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-changed:
	case <-entries:
	case <-timeout:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// errLeft is why a step or a job is given up when its node is not the active one any more.
var errLeft = errors.New("this node is not the active one any more")

// whileServing gives a context that ends when this node stops serving, or when keep (if not nil) says so after a change
// of the pair's entries. stop must be called.
func (m *Manager) whileServing(ctx context.Context, keep func() error) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	entries, unwatch := m.store.WatchMeta()
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			changed := m.node.Changed()
			if _, ok := m.node.Serving(); !ok {
				cancel(errLeft)
			} else if keep != nil {
				if err := keep(); err != nil {
					cancel(err)
				}
			}
			if !m.wait(ctx, changed, entries, 0) {
				return
			}
		}
	})
	return ctx, func() {
		cancel(nil)
		watching.Wait()
		unwatch()
	}
}

// cause says why a context ended, if it did, instead of "context canceled".
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); err != nil && c != nil && !errors.Is(err, c) {
		return fmt.Errorf("%w: %w", c, err)
	}
	return err
}
