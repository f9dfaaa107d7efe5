// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// BenchmarkPublish appends and applies batches of messages and then reads the messages, without replication or gRPC.
func BenchmarkPublish(b *testing.B) {
	for _, c := range []struct {
		name        string
		sync        wal.SyncMode
		size, batch int
	}{
		{"off/512x100", wal.SyncOff, 512, 100},
		{"off/15000x10", wal.SyncOff, 15000, 10},
		{"always/512x100", wal.SyncAlways, 512, 100},
	} {
		b.Run(c.name, func(b *testing.B) { benchPublish(b, c.sync, c.size, c.batch) })
	}
}

func benchPublish(b *testing.B, sync wal.SyncMode, size, batch int) {
	s, err := store.Open(store.Options{FS: vfs.OS(), Dir: b.TempDir(), Sync: sync})
	require.NoError(b, err)
	defer func() { require.NoError(b, s.Close()) }()
	commit := committer(b, s, batch*(size+64)+256)
	commit(func(build *txn.Builder) { build.CreateQueue("q", txn.Config{}, "default") })
	body := make([]byte, size)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += batch {
		commit(func(build *txn.Builder) {
			build.BeginPublish(1)
			for range batch {
				build.Message(1, nil, body)
			}
			build.EndPublish()
		})
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	var got []store.Delivery
	from, count := uint64(1), 0
	b.StartTimer()
	for {
		got, from, err = s.Read(context.Background(),
			store.ReadRequest{Queue: 1, Sub: 1, From: from, MaxMessages: 1000, MaxBytes: 1 << 20}, got[:0])
		require.NoError(b, err)
		if len(got) == 0 {
			break
		}
		count += len(got)
	}
	require.GreaterOrEqual(b, count, b.N)
}

// BenchmarkRead reads messages from pages, as for a lagging consumer: 1000 messages or 1 MiB per call.
func BenchmarkRead(b *testing.B) {
	for _, pageSize := range []int{2 << 10, 32 << 10} {
		b.Run(fmt.Sprintf("page=%d", pageSize), func(b *testing.B) { benchRead(b, pageSize) })
	}
}

func benchRead(b *testing.B, pageSize int) {
	const messages, size, perTxn = 200_000, 512, 100
	s, err := store.Open(store.Options{
		FS: vfs.OS(), Dir: b.TempDir(), Sync: wal.SyncOff, PageSize: pageSize, MemoryBudget: store.MinMemoryBudget,
	})
	require.NoError(b, err)
	defer func() { require.NoError(b, s.Close()) }()
	commit := committer(b, s, perTxn*(size+64)+256)
	commit(func(build *txn.Builder) { build.CreateQueue("q", txn.Config{}, "default") })
	body := make([]byte, size)
	for range messages / perTxn {
		commit(func(build *txn.Builder) {
			build.BeginPublish(1)
			for range perTxn {
				build.Message(1, nil, body)
			}
			build.EndPublish()
		})
	}
	_, err = s.Checkpoint(b.Context())
	require.NoError(b, err)
	b.SetBytes(size)
	b.ReportAllocs()
	var batch []store.Delivery
	var buffer store.ReadBuffer
	next, left := uint64(1), 0
	b.ResetTimer()
	for range b.N {
		if left--; left >= 0 {
			continue
		}
		batch, next, err = s.Read(b.Context(), store.ReadRequest{
			Queue: 1, Sub: 1, From: next, MaxMessages: 1000, MaxBytes: 1 << 20, Buffer: &buffer,
		}, batch[:0])
		require.NoError(b, err)
		if left = len(batch); left == 0 {
			next = 1
		}
	}
}

// committer returns a function that commits one transaction: log, sync, apply.
func committer(b *testing.B, s *store.Store, bytes int) func(fill func(*txn.Builder)) {
	var build txn.Builder
	return func(fill func(*txn.Builder)) {
		build.Begin(wal.BeginFrame(make([]byte, 0, bytes)), 1, nil) // the store retains the slice
		fill(&build)
		frames, err := build.Finish()
		require.NoError(b, err)
		frames, end := wal.EndFrame(frames, 0, s.End(), 1, wal.KindTxn)
		require.NoError(b, s.Append(frames, end))
		require.NoError(b, s.Sync())
		require.NoError(b, s.Apply(end.LSN, nil))
	}
}
