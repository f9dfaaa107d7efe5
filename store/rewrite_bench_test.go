// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// BenchmarkRewrite compares a rewrite with a plain copy and sync of the same file; the goal is half of the speed of
// the copy. It also reports the mean time of an append with its sync, without and during a rewrite, and the time
// after which a canceled rewrite returns.
func BenchmarkRewrite(b *testing.B) {
	for _, c := range []struct {
		size, to int
	}{{15_000, 30_720}, {15_000, 2048}, {512, 4096}} {
		b.Run(fmt.Sprintf("%d/2048to%d", c.size, c.to), func(b *testing.B) {
			for range b.N {
				benchRewrite(b, c.size, c.to)
			}
		})
	}
}

const benchBytes = 200 << 20

func benchRewrite(b *testing.B, size, to int) {
	dir := b.TempDir()
	s, err := store.Open(store.Options{FS: vfs.OS(), Dir: dir, MemoryBudget: 64 << 20, CheckpointBytes: 16 << 20})
	require.NoError(b, err)
	defer func() { require.NoError(b, s.Close()) }()
	var build txn.Builder
	commit := func(apply bool, fill func()) {
		build.Begin(wal.BeginFrame(nil), 1, nil)
		fill()
		frames, err := build.Finish()
		require.NoError(b, err)
		frames, end := wal.EndFrame(frames, 0, s.End(), 1, wal.KindTxn)
		require.NoError(b, s.Append(frames, end))
		require.NoError(b, s.Sync())
		if apply {
			require.NoError(b, s.Apply(end.LSN, nil))
		}
	}
	body := make([]byte, size)
	for i := range body {
		body[i] = byte(rand.Uint32())
	}
	publish := func(apply bool, n int) {
		commit(apply, func() {
			build.BeginPublish(1)
			for range n {
				build.Message(1, nil, body)
			}
			build.EndPublish()
		})
	}
	commit(true, func() { build.CreateQueue("q", txn.Config{}, "default") })
	for done := 0; done < benchBytes; done += 1 << 20 {
		publish(true, 1<<20/size)
	}
	_, err = s.Checkpoint(context.Background())
	require.NoError(b, err)
	b.ResetTimer()

	copied, copyTime := benchCopy(b, filepath.Join(dir, "page.db"), filepath.Join(dir, "copy"))
	require.NoError(b, os.Remove(filepath.Join(dir, "copy")))

	stop := make(chan struct{})
	var peak atomic.Uint64
	finished := make(chan struct{})
	go func() { // samples the heap
		defer close(finished)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak.Store(max(peak.Load(), m.HeapInuse))
		}
	}()
	begun := time.Now()
	result, err := s.Maintenance().Rewrite(context.Background(), rewrite.Options{PageSize: to})
	require.NoError(b, err)
	took := time.Since(begun)
	close(stop)
	<-finished

	ctx, cancel := context.WithCancel(context.Background())
	var canceledAt atomic.Int64
	_, err = s.Maintenance().Rewrite(ctx, rewrite.Options{Progress: func(p checkpoint.Progress) {
		if p.Phase == "copy" && p.Pages > p.TotalPages/2 && canceledAt.CompareAndSwap(0, time.Now().UnixNano()) {
			cancel()
		}
	}})
	require.ErrorIs(b, err, rewrite.ErrCanceled)
	cancelTime := time.Duration(time.Now().UnixNano() - canceledAt.Load())
	cancel()
	require.Eventually(b, func() bool { _, _, busy := s.Maintenance().Running(); return !busy }, time.Minute,
		time.Millisecond)

	logs := benchLog(publish, nil)
	logsDuring := benchLog(publish, func(ctx context.Context) error {
		_, err := s.Maintenance().Rewrite(ctx, rewrite.Options{})
		return err
	})
	begun = time.Now()
	scan, err := scanStore(context.Background(), s, checkpoint.ScanOptions{})
	require.NoError(b, err)
	scanTime := time.Since(begun)

	rate := func(bytes int64, d time.Duration) float64 { return float64(bytes) / d.Seconds() / 1e6 }
	live := int64(result.MessageBytes)
	b.ReportMetric(rate(copied, copyTime), "cp-MB/s")
	b.ReportMetric(rate(live, took), "rewrite-MB/s")
	b.ReportMetric(rate(live, took)/rate(copied, copyTime)*100, "%ofcp")
	b.ReportMetric(float64(peak.Load())/1e6, "heap-MB")
	b.ReportMetric(float64(cancelTime.Microseconds())/1e3, "cancel-ms")
	b.ReportMetric(float64(logs.Microseconds())/1e3, "sync-ms")
	b.ReportMetric(float64(logsDuring.Microseconds())/1e3, "sync-ms-during")
	b.ReportMetric(rate(live, scanTime), "scan-MB/s")
	b.ReportMetric(float64(len(scan.Candidates)), "candidates")
}

// benchCopy copies a file like cp, and syncs it.
func benchCopy(b *testing.B, from, to string) (int64, time.Duration) {
	begun := time.Now()
	in, err := os.Open(from)
	require.NoError(b, err)
	defer func() { _ = in.Close() }()
	out, err := os.Create(to)
	require.NoError(b, err)
	n, err := io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{in}, make([]byte, 1<<20))
	require.NoError(b, err)
	require.NoError(b, out.Sync())
	require.NoError(b, out.Close())
	return n, time.Since(begun)
}

// benchLog returns the mean time of an append and its sync while the function concurrent runs.
func benchLog(publish func(bool, int), concurrent func(context.Context) error) time.Duration {
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(done)
		if concurrent != nil {
			_ = concurrent(ctx) // canceled when enough was measured
		}
	}()
	begun, n := time.Now(), 0
	for ; n < 100; n++ {
		publish(false, 1)
	}
	took := time.Since(begun) / time.Duration(n)
	cancel()
	<-done
	return took
}
