// SPDX-License-Identifier: Apache-2.0

package expiry

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/replication"
)

// fakeTask is a task that returns configured results.
type fakeTask struct {
	calls atomic.Int64
	wait  time.Duration
	err   error
	wake  chan struct{}
}

func (f *fakeTask) Name() string          { return "fake" }
func (f *fakeTask) Wake() <-chan struct{} { return f.wake }

func (f *fakeTask) RunOnce(context.Context) (time.Duration, error) {
	f.calls.Add(1)
	return f.wait, f.err
}

// A task is called again after the time that it returns, or immediately when it is woken. After an error, it is
// called again after a pause. After Stop, it is never called.
func TestTasksAreRescheduled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		idle := &fakeTask{wait: time.Hour, wake: make(chan struct{}, 1)}
		blocked := &fakeTask{err: replication.ErrBlocked}
		failing := &fakeTask{err: errors.New("no")}
		s := run(Options{Log: zap.NewNop()}, idle, blocked, failing)
		time.Sleep(10*time.Second + time.Millisecond) //nolint:forbidigo // the clock is that of synctest
		synctest.Wait()
		require.EqualValues(t, 1, idle.calls.Load())
		require.EqualValues(t, 201, blocked.calls.Load())
		require.EqualValues(t, 11, failing.calls.Load())
		idle.wake <- struct{}{}
		synctest.Wait()
		require.EqualValues(t, 2, idle.calls.Load())
		s.Stop()
		calls := blocked.calls.Load()
		time.Sleep(time.Minute) //nolint:forbidigo // the clock is that of synctest
		require.Equal(t, calls, blocked.calls.Load())
	})
}
