// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"testing"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
	"github.com/stretchr/testify/require"
)

// Lookup resolves queues and subscriptions by name, marks unknown names, and does not allocate.
func TestLookup(t *testing.T) {
	n := openNode(t, options(memfs.New()))
	n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{MaxMessages: 9}, "a", "b") })
	n.publish([]byte("body"))

	names := []query.Target{
		{Queue: "q"}, {Queue: "q", Subscription: "b"}, {Queue: "q", Subscription: "none"}, {Queue: "none"},
	}
	prior, err := query.Lookup(n.s, nil, false, names)
	require.NoError(t, err)
	require.Nil(t, prior)
	for i, sub := range []uint32{txn.NoSub, 2, txn.NoSub} {
		require.Equal(t, sub, names[i].SubID)
		require.Equal(t, uint64(1), names[i].QueueID)
		require.Equal(t, uint64(1), names[i].Messages)
		require.Equal(t, uint64(9), names[i].Config.MaxMessages)
		require.Equal(t, 2, names[i].Subscriptions)
	}
	require.False(t, names[3].Found)
	require.Equal(t, uint64(txn.NoQueue), names[3].QueueID)

	names = names[:1]
	producer := &txn.Producer{ID: []byte("p"), Epoch: 1, Sequence: 1}
	require.Zero(t, testing.AllocsPerRun(100, func() { _, err = query.Lookup(n.s, producer, false, names) }))
	require.NoError(t, err)

	require.NoError(t, n.s.Close())
	_, err = query.Lookup(n.s, nil, false, names)
	require.ErrorIs(t, err, store.ErrClosed)
}

// Queues returns at least one queue, and stops before a limit is exceeded. It reports whether more queues follow.
func TestQueuesWithinLimits(t *testing.T) {
	n := openNode(t, options(memfs.New()))
	for _, name := range []string{"a1", "a2", "a3", "b1"} {
		n.commit(func(b *txn.Builder) { b.CreateQueue(name, txn.Config{}, "x", "y", "z") })
	}
	for _, c := range []struct {
		r     query.QueueRange
		names []string
		more  bool
	}{
		{query.QueueRange{MaxQueues: 4, MaxSubscriptions: 12}, []string{"a1", "a2", "a3", "b1"}, false},
		{query.QueueRange{MaxQueues: 3, MaxSubscriptions: 12}, []string{"a1", "a2", "a3"}, true},
		{query.QueueRange{MaxQueues: 4, MaxSubscriptions: 11}, []string{"a1", "a2", "a3"}, true},
		{query.QueueRange{MaxQueues: 4, MaxSubscriptions: 1}, []string{"a1"}, true},
		{query.QueueRange{Prefix: "a", After: "a1", MaxQueues: 4, MaxSubscriptions: 12}, []string{"a2", "a3"}, false},
		{query.QueueRange{After: "b1", MaxQueues: 4, MaxSubscriptions: 12}, nil, false},
	} {
		infos, more, err := query.Queues(n.s, c.r)
		require.NoError(t, err)
		var names []string
		for _, q := range infos {
			names = append(names, q.Name)
		}
		require.Equal(t, c.names, names, "%+v", c.r)
		require.Equal(t, c.more, more, "%+v", c.r)
	}
}
