package store_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// BenchmarkPublish appends and applies batches of messages, without replication or gRPC around it.
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
	var build txn.Builder
	commit := func(fill func()) {
		frames := wal.BeginFrame(make([]byte, 0, batch*(size+64)+256))
		build.Begin(frames, 1, nil)
		fill()
		frames, err := build.Finish()
		require.NoError(b, err)
		frames, end := wal.EndFrame(frames, 0, s.End(), 1, wal.KindTxn)
		require.NoError(b, s.Append(frames, end))
		require.NoError(b, s.Sync())
		require.NoError(b, s.Apply(end.LSN, nil))
	}
	commit(func() { build.CreateQueue("q", txn.Config{}, "default") })
	body := make([]byte, size)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += batch {
		commit(func() {
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
		got, from, err = s.Read(context.Background(), store.ReadRequest{Queue: 1, Sub: 1, From: from, MaxMessages: 1000, MaxBytes: 1 << 20}, got[:0])
		require.NoError(b, err)
		if len(got) == 0 {
			break
		}
		count += len(got)
	}
	require.GreaterOrEqual(b, count, b.N)
}
