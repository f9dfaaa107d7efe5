// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"cmp"
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
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// Options configures New.
type Options struct {
	Store *store.Store
	Node  Node
	Peers Peers
	FS    vfs.FS // filesystem of DataDir; default is the operating system's
	// DataDir is the directory that contains maintenance.json.
	DataDir string
	// Defaults contains this node's configuration. It applies to settings that the pair has not changed.
	Defaults Defaults
	// RewriteBytesPerSecond returns the rate limit of a rewrite. It is called when the rewrite starts. Without the
	// function, or if it returns 0, the rate is not limited.
	RewriteBytesPerSecond func() int64
	// Archive is the location of this node's log archive, to which Archiver writes. Both are nil without an archive.
	Archive  backup.Objects
	Archiver *backup.Archiver
	// Location opens a backup location. If it is nil, only directories are supported.
	Location func(backup.Location) (backup.Objects, error)
	Seal     backup.Sealer // encrypts backups; optional
	Software string        // version recorded in backups
	Logger   *zap.Logger   // optional
	// Retry is the delay before the first retry of a failed plan step; 0 means 1 s. It doubles with each retry, up
	// to 30 times its value.
	Retry time.Duration
	// Tick is the interval at which the schedule and the progress of a watched plan are checked; 0 means 500 ms.
	Tick time.Duration
	// Restart restarts the process with the program on disk. It is nil if the process cannot restart itself.
	Restart func()
	// CheckRestart returns the reason why a restarted process would fail to start, or nil. It is optional.
	CheckRestart func(ctx context.Context) error
	Now          func() time.Time // clock for plans and jobs; default is time.Now
}

// Manager performs the maintenance of one node and, while the node is active, of the pair. It is safe for concurrent
// use.
type Manager struct {
	o     Options
	log   *zap.Logger
	store *store.Store
	node  Node
	local *localState
	// process identifies this process among the successive processes of the node.
	process string

	// committing is held from the read of an internal entry until its change is committed.
	committing *semaphore.Weighted

	mu        sync.Mutex // guards the fields below
	running   *operation
	following bool // this node follows an active, so it may rewrite
	starting  bool // this standalone node does not serve clients yet, so it may rewrite
	jobs      map[string]bool
	// latestClock is the last time that clock returned. clockSteady is the steady time that clock returned.
	latestClock, clockSteady time.Time
	held                     map[uint64]context.CancelCauseFunc // cancel functions of the contexts that holding returned
	holds                    uint64                             // last key added to held
	digests, contents        difference                         // last results of comparisons, see Difference

	// progress is the progress of the current plan step on the other node.
	progress atomic.Pointer[checkpoint.Progress]
}

// New creates the manager of a node. The caller must call Run.
func New(o Options) (*Manager, error) {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	o.Retry, o.Tick = cmp.Or(o.Retry, time.Second), cmp.Or(o.Tick, 500*time.Millisecond)
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

// Run executes the plan and the jobs of the pair while this node is active. When a node of a pair has become a standby,
// Run also executes the operations requested for its start. It returns when ctx ends.
func (m *Manager) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { m.drive(ctx) })
	running.Go(func() { m.schedule(ctx) })
	running.Go(func() { m.afterStart(ctx) })
	running.Wait()
}

// wait waits for a signal on changed or entries, either of which may be nil. If limit is not 0, it waits at most that
// long. It returns false if ctx has ended.
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

var errLeft = errors.New("this node is no longer active")

// servingContext returns a context that ends when this node stops serving. If keep is not nil, it is called
// immediately and after each change of the failover status or of the internal entries. If it returns an error, the
// context ends with that error as its cause. The caller must call stop.
func (m *Manager) servingContext(ctx context.Context, keep func() error) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	entries, unwatch := query.WatchMeta(m.store)
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

// cause adds the cause of the end of ctx to err, if ctx has ended. It returns nil if err is nil.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); err != nil && c != nil && !errors.Is(err, c) {
		return fmt.Errorf("%w: %w", c, err)
	}
	return err
}
