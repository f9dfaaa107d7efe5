// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// A high-priority message behind a large low-priority backlog in pages is read first, before and after a restart.
// LOCKSTEP_BACKLOG sets the size of the backlog.
func TestHighPriorityBehindBacklog(t *testing.T) {
	backlog := 20_000
	if env := os.Getenv("LOCKSTEP_BACKLOG"); env != "" {
		var err error
		backlog, err = strconv.Atoi(env)
		require.NoError(t, err)
	}
	fs := memfs.New()
	n := openNode(t, options(fs))
	n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{Priorities: 1}, "default") })
	const batch = 1000
	add := func(b *txn.Builder, priority uint8, body string) {
		rec, err := txn.AppendMessage(nil, 1, &txn.Attributes{Priority: &priority}, nil, []byte(body))
		require.NoError(t, err)
		b.Record(rec)
	}
	for range backlog / batch {
		n.commit(func(b *txn.Builder) {
			b.BeginPublish(1)
			for range batch {
				add(b, 1, "low")
			}
			b.EndPublish()
		})
		n.raw = nil
	}
	_, err := n.s.Checkpoint(t.Context())
	require.NoError(t, err)
	read := func(s *store.Store, lanes *store.Lanes, most int) []store.Delivery {
		begin := time.Now()
		got, _, err := s.Read(context.Background(), store.ReadRequest{
			Queue: 1, Sub: 1, Lanes: lanes, MaxMessages: most, MaxBytes: 1 << 20,
		}, nil)
		require.NoError(t, err)
		t.Logf("%d messages of %d in %v", len(got), backlog, time.Since(begin))
		return got
	}
	lanes := new(store.Lanes)
	require.Len(t, read(n.s, lanes, 10), 10)
	n.commit(func(b *txn.Builder) {
		b.BeginPublish(1)
		add(b, 9, "high")
		b.EndPublish()
	})
	got := read(n.s, lanes, 10)
	require.Equal(t, uint64(backlog+1), got[0].Sequence, "high priority first")
	require.Equal(t, uint64(11), got[1].Sequence, "then continues at its position")
	require.Len(t, got, 10)
	n.check()

	require.NoError(t, n.s.Close())
	n = openNode(t, options(fs))
	n.applyAll()
	got = read(n.s, new(store.Lanes), 2)
	require.Equal(t, uint64(backlog+1), got[0].Sequence)
	require.Equal(t, uint64(1), got[1].Sequence)
	require.Equal(t, []uint8{9, 1}, query.Priorities(n.s, 1, []uint64{uint64(backlog + 1), 7}))
	require.NotZero(t, lanes.Empty&(1<<5), "no message of that priority")
}
