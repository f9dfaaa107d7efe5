// SPDX-License-Identifier: Apache-2.0

// Package expiry implements the time-based tasks of an active node. The tasks determine which work is due and propose
// it as transactions. A repeated or late proposal has no effect.
//
// A Runner runs each task in a goroutine while the node serves clients.
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

// Task is a time-based task. If it has a method Close, the Runner calls Close after the last RunOnce.
type Task interface {
	Name() string // used in the log
	// RunOnce proposes the due work, and returns when it is committed and applied. It is called again after wait, or
	// earlier if the task is woken. After an error, it is called again after a pause.
	RunOnce(ctx context.Context) (wait time.Duration, err error)
	// Wake returns a channel that receives a value when RunOnce must be called immediately. It may return nil.
	Wake() <-chan struct{}
}

const (
	// blockedAgain is the retry interval on a blocked node or after an unknown outcome. failedAgain is the retry
	// interval after other errors.
	blockedAgain = 50 * time.Millisecond
	failedAgain  = time.Second
)

// Options configures New. All fields except More and Deleted are required.
type Options struct {
	Store     *store.Store
	Primary   txn.Committer
	Consumers *dispatch.Registry
	Log       *zap.Logger
	More      []Task // additional tasks
	// Deleted is called after the deletion of a temporary queue with an ownership epoch, if it is not nil.
	Deleted func(queue string, epoch uint64)
}

// Runner runs the tasks of one term in which the node is active.
type Runner struct {
	o       Options
	tasks   []Task
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// New starts all tasks. The caller must call Stop, or Cancel and then Wait.
func New(o Options) *Runner { return run(o, append(tasks(o), o.More...)...) }

func tasks(o Options) []Task {
	expired := newExpiry(o)
	return []Task{
		&retention{o: o, heads: make(map[uint64]head)}, newOverflow(o), newTemporary(o), &due{o: o, expiry: expired}, expired,
		&ttl{o, newExpiry(o), make(map[uint64]nextCheck)},
	}
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

// Wait waits until all tasks have ended. It must be called after Cancel.
func (s *Runner) Wait() { s.running.Wait() }

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
				s.o.Log.Warn("scheduled work failed, retrying",
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

// pause waits for the given time, until wake receives a value, or until ctx ends. It returns false if ctx has ended.
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
