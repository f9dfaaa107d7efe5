// SPDX-License-Identifier: Apache-2.0

package expiry

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// fakeCommits records proposed deletions of temporary queues.
type fakeCommits struct {
	t       *testing.T
	deleted []uint64
	inUse   bool
	err     error
}

func (f *fakeCommits) Commit(_ context.Context, payload []byte) (*txn.Result, error) {
	if f.err != nil {
		return nil, f.err
	}
	var r txn.Reader
	require.NoError(f.t, r.Reset(payload))
	op, err := r.Next()
	require.NoError(f.t, err)
	require.Equal(f.t, txn.OpDeleteQueue, op.Code)
	require.Equal(f.t, uint64(30_000), op.Temporary)
	if f.inUse {
		return &txn.Result{Code: txn.ErrQueueInUse}, nil
	}
	f.deleted = append(f.deleted, op.Queue)
	return &txn.Result{Op: -1, Ops: []txn.OpResult{{}}}, nil
}

// A temporary queue with a consumer is not deleted. Without a consumer, it is deleted after its grace period. The
// period begins at the last check that found a consumer, or else at the first check of the queue.
func TestTemporaryQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queues := []query.TemporaryQueue{
			{ID: 1, GraceMS: 30_000, Subscriptions: []uint32{1, 2}},
			{ID: 2, GraceMS: 30_000, Subscriptions: []uint32{1}},
			{ID: 3, GraceMS: 30_000},
		}
		attached := map[dispatch.Key]uint32{{Queue: 1, Sub: 2}: 1}
		commits := &fakeCommits{t: t}
		task := &temporary{
			queues:    func() []query.TemporaryQueue { return queues },
			consumers: func(k dispatch.Key) (uint64, uint32) { return 0, attached[k] },
			commit:    commits, log: zap.NewNop(),
		}
		run := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); {
				wait, err := task.RunOnce(t.Context())
				require.NoError(t, err)
				<-time.After(wait)
			}
		}
		run(29 * time.Second)
		require.Empty(t, commits.deleted)
		attached[dispatch.Key{Queue: 2, Sub: 1}] = 1
		run(time.Second)
		delete(attached, dispatch.Key{Queue: 2, Sub: 1})
		run(time.Second)
		require.Equal(t, []uint64{3}, slices.Compact(slices.Clone(commits.deleted)))
		queues = queues[:2]
		run(27 * time.Second)
		require.Equal(t, []uint64{3}, slices.Compact(slices.Clone(commits.deleted)), "queue 2 had a consumer in the meantime")
		run(3 * time.Second)
		require.Contains(t, commits.deleted, uint64(2))
		require.NotContains(t, commits.deleted, uint64(1))

		queues = []query.TemporaryQueue{{ID: 4, GraceMS: 30_000}}
		commits.deleted, commits.inUse = nil, true
		run(40 * time.Second)
		commits.inUse = false
		run(10 * time.Second)
		require.Empty(t, commits.deleted, "it is retried after another grace period")
		run(20 * time.Second)
		require.NotEmpty(t, commits.deleted)
	})
}
