// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// Samples visits each queue once, although it releases the lock at intervals.
func TestSamples(t *testing.T) {
	n := openNode(t, options(memfs.New()))
	for _, queues := range []int{0, 1, 1000, 2500} {
		for i := query.QueueCount(n.s); i < queues; i++ {
			n.commit(func(b *txn.Builder) { b.CreateQueue(fmt.Sprintf("q%d", i), txn.Config{}, "s") })
		}
		var got []query.QueueSample
		query.Samples(n.s, func(q query.QueueSample) { got = append(got, q) })
		require.Equal(t, query.Sample(n.s, nil), got)
		require.Len(t, got, queues)
	}
}

// OldestSequence ignores retained messages that all subscriptions have acknowledged.
func TestOldestSequence(t *testing.T) {
	n := openNode(t, options(memfs.New()))
	n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{RetentionMessages: 10}, "a", "b") })
	n.commit(func(b *txn.Builder) {
		b.BeginPublish(1)
		b.Message(1, nil, []byte("one"))
		b.Message(1, nil, []byte("two"))
		b.EndPublish()
	})
	n.commit(func(b *txn.Builder) {
		b.Ack(1, 1, txn.Range{First: 1, Last: 2})
		b.Ack(1, 2, txn.Range{First: 1, Last: 1})
	})
	sequence, ok := query.OldestSequence(n.s, 1)
	require.True(t, ok)
	require.Equal(t, uint64(2), sequence)
	n.commit(func(b *txn.Builder) { b.Ack(1, 2, txn.Range{First: 2, Last: 2}) })
	_, ok = query.OldestSequence(n.s, 1)
	require.False(t, ok, "the queue contains only retained messages")
}
