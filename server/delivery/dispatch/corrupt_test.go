// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
)

// corruptQueue is a queue with corrupt messages.
type corruptQueue struct {
	*memoryQueue
	corrupt map[uint64]bool // guarded by memoryQueue.mu
}

func (q *corruptQueue) Read(
	ctx context.Context, key dispatch.Key, from uint64, maxMessages, maxBytes int, dst []dispatch.Message,
) ([]dispatch.Message, uint64, error) {
	dst, next, err := q.memoryQueue.Read(ctx, key, from, maxMessages, maxBytes, dst)
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range dst {
		if q.corrupt[dst[i].Sequence] {
			dst[i].Record = nil
		}
	}
	return dst, next, err
}

// Messages behind corrupt messages are delivered immediately. Corrupt messages are delivered when they are readable
// again.
func TestCorruptMessagesAreSkipped(t *testing.T) {
	synctest.Test(t, testCorruptMessagesAreSkipped)
}

func testCorruptMessagesAreSkipped(t *testing.T) {
	q := &corruptQueue{memoryQueue: newMemoryQueue(), corrupt: map[uint64]bool{1: true, 3: true, 4: true, 6: true}}
	q.publish("one", "two", "three", "four", "five", "six")
	r := dispatch.NewRegistry(q, q, dispatch.Limits{
		Consumers: 10, Outstanding: 100, BatchBytes: 1 << 20,
		OutboxBytes: 1 << 20,
	}, zap.NewNop())
	defer r.Close(nil)
	c, err := r.Attach(dispatch.Key{Queue: 1, Sub: 1}, "", nil)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.AddCredit(100))
	next := func(n int) (got []uint64) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for len(got) < n {
			e, err := c.Next(ctx)
			require.NoError(t, err)
			for _, m := range e.Messages {
				require.NotNil(t, m.Record)
				got = append(got, m.Sequence)
			}
		}
		return got
	}
	require.Equal(t, []uint64{2, 5}, next(2))
	q.mu.Lock()
	q.corrupt = map[uint64]bool{3: true}
	q.mu.Unlock()
	require.Equal(t, []uint64{1, 4, 6}, next(3))
	r.Settled(dispatch.Key{Queue: 1, Sub: 1}, []dispatch.Range{{First: 3, Last: 3}}, nil) // discarded
	q.publish("seven")
	require.Equal(t, []uint64{7}, next(1))
}
