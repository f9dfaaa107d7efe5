// SPDX-License-Identifier: Apache-2.0

// Package expiry implements the time-based tasks of an active node. The tasks determine due work and propose it as
// transactions. Applying a transaction never reads a clock. A proposal is conditional and is checked again when it is
// applied, so that a repeated or late one changes nothing.
//
// A Sweeper runs while a node serves clients, with one goroutine for each Task.
package expiry

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Task is a time-based task.
type Task interface {
	// Name returns a description for the log.
	Name() string
	// RunOnce proposes the work that is due, and returns when it is committed and applied. It returns the time until
	// the next call; the task is called earlier when it is woken. After an error it is called again after a pause.
	RunOnce(ctx context.Context) (wait time.Duration, err error)
	// Wake receives when Sweep must be called immediately; nil if the task is never woken. If the task has a method
	// Close, it is called after the last Sweep.
	Wake() <-chan struct{}
}

const (
	// blockedAgain is the retry interval on a blocked node.
	blockedAgain = 50 * time.Millisecond
	// failedAgain is the retry interval after another error.
	failedAgain = time.Second
)

// Committer commits transactions; *replication.Primary is one.
type Committer interface {
	// Commit returns when the transaction is committed and applied, or will never be.
	Commit(ctx context.Context, payload []byte) (*txn.Result, error)
}

// Options of a Sweeper. All fields except More are required.
type Options struct {
	// Store is read by the tasks.
	Store *store.Store
	// Primary commits their proposals.
	Primary Committer
	// Consumers is notified of deliverable and acknowledged messages.
	Consumers *dispatch.Registry
	// Log receives the messages for operators.
	Log *zap.Logger
	// More contains additional tasks; optional.
	More []Task
}

// Runner runs the tasks of one term in which the node is active.
type Runner struct {
	o       Options
	tasks   []Task
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// New starts all tasks. Stop, or Cancel and Wait, must be called.
func New(o Options) *Runner { return run(o, append(tasks(o), o.More...)...) }

// tasks returns the tasks of an active node.
func tasks(o Options) []Task {
	expired := newExpiry(o)
	return []Task{newRetention(o), newOverflow(o), newTemporary(o), newDue(o, expired), expired, newTTL(o)}
}

func run(o Options, tasks ...Task) *Runner {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Runner{o: o, tasks: tasks, cancel: cancel}
	for _, t := range tasks {
		s.running.Go(func() { s.run(ctx, t) })
	}
	return s
}

// Tasks returns the names of the tasks.
func (s *Runner) Tasks() []string {
	names := make([]string, 0, len(s.tasks))
	for _, t := range s.tasks {
		names = append(names, t.Name())
	}
	return names
}

// Stop cancels the tasks and waits for them. It may be called more than once.
func (s *Runner) Stop() {
	s.Cancel()
	s.Wait()
}

// Cancel cancels the tasks. A task that waits for a commit may run until the primary has stopped.
func (s *Runner) Cancel() { s.cancel() }

// Wait waits for the tasks after Cancel.
func (s *Runner) Wait() { s.running.Wait() }

// run calls one task repeatedly.
func (s *Runner) run(ctx context.Context, t Task) {
	if c, ok := t.(interface{ Close() }); ok {
		defer c.Close()
	}
	failed := false
	for {
		wait, err := t.RunOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		switch {
		case errors.Is(err, replication.ErrBlocked), errors.Is(err, replication.ErrOutcomeUnknown):
			wait = blockedAgain
		case err != nil:
			wait = failedAgain
			if !failed {
				s.o.Log.Warn("scheduled work failed; it is retried",
					zap.String("task", t.Name()), zap.Error(err))
			}
			failed = true
		default:
			failed = false
		}
		if !pause(ctx, wait, t.Wake()) {
			return
		}
	}
}

// pause waits for the given time or until woken receives. It returns false if ctx has ended.
func pause(ctx context.Context, wait time.Duration, wake <-chan struct{}) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-wake:
	case <-ctx.Done():
		return false
	}
	return true
}
