// SPDX-License-Identifier: Apache-2.0

// Package sweep does what an active node has to do by the clock: it looks what is due, and proposes it as transactions.
// Applying never looks at a clock; a proposal is conditional, and is checked again when it is applied, so that one that
// is repeated, or that comes late, changes nothing.
//
// A Sweeper runs while a node serves clients, one goroutine for each Task.
package sweep

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/dispatch"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Task is one kind of thing that is done by the clock.
type Task interface {
	// Name for the log: what the task does.
	Name() string
	// Sweep proposes what is due now and returns when it is committed and applied. It tells after how long it is to be
	// called again; earlier when the task is woken. After an error it is called again after a pause.
	Sweep(ctx context.Context) (wait time.Duration, err error)
	// Woken receives when Sweep is to be called at once; nil if the task is never woken. A task that has a method Close
	// is closed when it is not called any more.
	Woken() <-chan struct{}
}

const (
	// blockedAgain is how often a task is tried again on a node that is blocked.
	blockedAgain = 50 * time.Millisecond
	// failedAgain is how often it is tried again after another error.
	failedAgain = time.Second
)

// Committer commits transactions; *replication.Primary is one.
type Committer interface {
	// Commit returns when the transaction is committed and applied, or will never be.
	Commit(ctx context.Context, payload []byte) (*txn.Result, error)
}

// Options of a Sweeper. All of them must be set, but for More.
type Options struct {
	// Store is what the tasks look at.
	Store *store.Store
	// Primary commits what they propose.
	Primary Committer
	// Consumers are told what has become deliverable, or is acknowledged.
	Consumers *dispatch.Registry
	// Log gets what an operator should know.
	Log *zap.Logger
	// More are tasks beside those of this package; there may be none.
	More []Task
}

// Sweeper runs the tasks of one term in which the node is active.
type Sweeper struct {
	o       Options
	tasks   []Task
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// New starts all tasks. Stop, or Cancel and Wait, must be called.
func New(o Options) *Sweeper { return run(o, append(tasks(o), o.More...)...) }

// tasks makes the tasks of an active node.
func tasks(o Options) []Task {
	expired := newExpiry(o)
	return []Task{newRetention(o), newOverflow(o), newTemporary(o), newDue(o, expired), expired, newTTL(o)}
}

func run(o Options, tasks ...Task) *Sweeper {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Sweeper{o: o, tasks: tasks, cancel: cancel}
	for _, t := range tasks {
		s.running.Go(func() { s.run(ctx, t) })
	}
	return s
}

// Tasks returns the names of the tasks.
func (s *Sweeper) Tasks() []string {
	names := make([]string, 0, len(s.tasks))
	for _, t := range s.tasks {
		names = append(names, t.Name())
	}
	return names
}

// Stop cancels the tasks and waits for them. It may be called more than once.
func (s *Sweeper) Stop() {
	s.Cancel()
	s.Wait()
}

// Cancel cancels the tasks. One that waits for a commit may run until the primary has stopped.
func (s *Sweeper) Cancel() { s.cancel() }

// Wait waits for the tasks after Cancel.
func (s *Sweeper) Wait() { s.running.Wait() }

// run calls one task again and again.
func (s *Sweeper) run(ctx context.Context, t Task) {
	if c, ok := t.(interface{ Close() }); ok {
		defer c.Close()
	}
	failed := false
	for {
		wait, err := t.Sweep(ctx)
		if ctx.Err() != nil {
			return
		}
		switch {
		case errors.Is(err, replication.ErrBlocked), errors.Is(err, replication.ErrOutcomeUnknown):
			wait = blockedAgain
		case err != nil:
			wait = failedAgain
			if !failed {
				s.o.Log.Warn("what is due by the clock was not done; it is tried again until it is",
					zap.String("task", t.Name()), zap.Error(err))
			}
			failed = true
		default:
			failed = false
		}
		if !pause(ctx, wait, t.Woken()) {
			return
		}
	}
}

// pause waits until the time is over, or something is received from woken; false: until ctx has ended.
func pause(ctx context.Context, wait time.Duration, woken <-chan struct{}) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-woken:
	case <-ctx.Done():
		return false
	}
	return true
}
