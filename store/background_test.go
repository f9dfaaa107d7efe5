// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/throttle"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// Background work with pauses has the same results as background work at full speed. A canceled context ends a
// pause.
func TestBackgroundPauses(t *testing.T) {
	o := options(memfs.New())
	o.BackgroundPercent = 50
	n, _ := filled(t, o)
	ctx := t.Context()
	full := throttle.FullSpeed(ctx)

	want, err := scanStore(full, n.s, checkpoint.ScanOptions{})
	require.NoError(t, err)
	got, err := scanStore(ctx, n.s, checkpoint.ScanOptions{})
	require.NoError(t, err)
	require.Positive(t, got.Messages)
	got.Time, got.Checkpoint, got.FileBytes = want.Time, want.Checkpoint, want.FileBytes
	got.GainBytes, got.Pages, got.UsedPages = want.GainBytes, want.Pages, want.UsedPages
	require.Equal(t, want, got)

	wantDigest, err := digestOf(full, n.s)
	require.NoError(t, err)
	digest, err := digestOf(ctx, n.s)
	require.NoError(t, err)
	require.Equal(t, wantDigest, digest)
	report, err := checkStore(ctx, n.s, nil)
	require.NoError(t, err)
	require.Empty(t, report.Problems)
	require.Equal(t, want.Messages+want.DeadMessages, report.Messages)
	plan, err := n.s.Maintenance().PlanRewrite(ctx, rewrite.Options{PageSize: 8192})
	require.NoError(t, err)
	require.Equal(t, want.Messages, plan.Messages)
	n.check()

	require.NoError(t, n.s.Close())
	o.BackgroundPercent = 1 // a pause is 99 times as long as the work
	n = openNode(t, o)
	ended, cancel := context.WithCancel(ctx)
	pausing := make(chan struct{}, 1)
	result := make(chan error, 1)
	go func() {
		_, err := checkStore(ended, n.s, func(_, _ uint64) {
			select {
			case pausing <- struct{}{}:
			default:
			}
		})
		result <- err
	}()
	<-pausing // progress is reported before the pause
	cancel()
	if err := <-result; err != nil { // the work may have finished before the cancel
		require.ErrorIs(t, err, context.Canceled)
	}
}

// withMessages opens a store with a checkpoint of n messages of 4 KB, each in a separate extent.
func withMessages(t *testing.T, o store.Options, n int) *node {
	t.Helper()
	node := openNode(t, o)
	node.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "s") })
	for range n / 100 {
		node.commit(func(b *txn.Builder) {
			b.BeginPublish(1)
			for range 100 {
				b.Message(1, nil, make([]byte, 4000))
			}
			b.EndPublish()
		})
	}
	_, err := node.s.Checkpoint(t.Context())
	require.NoError(t, err)
	return node
}

// countReads returns a file system and the number of bytes read from its page.db.
func countReads() (*faultfs.FS, *atomic.Int64) {
	fs, read := faultfs.New(memfs.New()), new(atomic.Int64)
	fs.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpRead && strings.HasSuffix(op.Name, "page.db") {
			read.Add(op.Length)
		}
		return nil
	})
	return fs, read
}

// While a walk is throttled, it does not read far ahead: otherwise the reader could occupy a processor that commits
// need.
func TestThrottledWalkReadsLittleAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs, read := countReads()
		o := options(fs)
		o.BackgroundPercent = 50
		n := withMessages(t, o, 3000)
		ahead := func(ctx context.Context) int64 {
			most := int64(0)
			err := n.s.ReadCheckpoint(ctx, store.ReadOptions{}, func(c *checkpoint.Checkpoint) error {
				begin, consumed := read.Load(), int64(0)
				return c.Extents(ctx, checkpoint.WalkOptions{}, func(_ *index.Entry, p []byte, err error) error {
					consumed += int64(len(p))
					synctest.Wait() // until the reader waits
					most = max(most, read.Load()-begin-consumed)
					return err
				})
			})
			require.NoError(t, err)
			return most
		}
		require.Less(t, ahead(t.Context()), int64(1<<20))
		require.Greater(t, ahead(throttle.FullSpeed(t.Context())), int64(2<<20))
	})
}

// The plan of a rewrite is throttled like the copy.
func TestPlanOfRewriteIsThrottled(t *testing.T) { synctest.Test(t, testPlanOfRewriteIsThrottled) }

func testPlanOfRewriteIsThrottled(t *testing.T) {
	fs := faultfs.New(memfs.New())
	n := withMessages(t, options(fs), 1000)
	var planned atomic.Value
	fs.SetHook(func(op faultfs.Op) error {
		if strings.HasSuffix(op.Name, "page.db_new") {
			planned.CompareAndSwap(nil, n.s.Governor().Status().Reason)
		}
		return nil
	})
	n.s.Governor().Report(time.Millisecond) // there are commits
	_, err := n.s.Maintenance().Rewrite(t.Context(), rewrite.Options{})
	require.NoError(t, err)
	require.NotEqual(t, throttle.NoWork, planned.Load(), "the plan did not use the governor")
}

// A rewrite reads each message once: the plan uses only the index.
func TestRewriteReadsMessagesOnce(t *testing.T) {
	fs, read := countReads()
	n := openNode(t, options(fs))
	n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "s") })
	n.publishMany(1, 20_000, 300)
	_, err := n.s.Checkpoint(t.Context())
	require.NoError(t, err)
	before := read.Load()
	result, err := n.s.Maintenance().Rewrite(t.Context(), rewrite.Options{PageSize: 8192})
	require.NoError(t, err)
	require.Less(t, read.Load()-before, int64(result.FileBytesBefore)*3/2)
}

// An estimate from the index has the exact numbers of messages, and almost the size of the result of a survey, which
// reads the messages.
func TestEstimate(t *testing.T) {
	n, rnd := openNode(t, options(memfs.New())), rand.New(rand.NewPCG(1, 2))
	n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "s") })
	const batches, batch = 50, 50
	for range batches {
		n.commit(func(b *txn.Builder) {
			b.BeginPublish(1)
			for range batch {
				b.Message(1, nil, make([]byte, 10<<rnd.IntN(10)+rnd.IntN(100)))
			}
			b.EndPublish()
		})
	}
	_, err := n.s.Checkpoint(t.Context())
	require.NoError(t, err)
	n.commit(func(b *txn.Builder) {
		for seq := uint64(1); seq <= batches*batch; seq++ {
			if rnd.IntN(3) == 0 {
				b.Ack(1, 1, txn.Range{First: seq, Last: seq})
			}
		}
	})
	err = n.s.ReadCheckpoint(t.Context(), store.ReadOptions{}, func(c *checkpoint.Checkpoint) error {
		live, err := c.Live()
		require.NoError(t, err)
		sizes := []int{2048, 4096, 65536}
		exact, err := c.Survey(t.Context(), live, sizes, checkpoint.NewMeter(nil))
		require.NoError(t, err)
		estimate, err := c.Estimate(t.Context(), live, sizes, checkpoint.NewMeter(nil))
		require.NoError(t, err)
		require.Positive(t, exact.DeadMessages)
		require.Equal(t, exact.Messages, estimate.Messages)
		require.Equal(t, exact.DeadMessages, estimate.DeadMessages)
		require.InEpsilon(t, exact.MessageBytes, estimate.MessageBytes, 0.05)
		for i := range sizes {
			require.InEpsilon(t, exact.Candidates[i].FileBytes, estimate.Candidates[i].FileBytes, 0.05)
		}
		return nil
	})
	require.NoError(t, err)
}

// A scan allocates almost nothing per extent: garbage collections would delay commits.
func TestScanAllocations(t *testing.T) {
	allocations := func(messages int) float64 {
		n := withMessages(t, options(memfs.New()), messages)
		return testing.AllocsPerRun(1, func() {
			_, err := scanStore(throttle.FullSpeed(t.Context()), n.s, checkpoint.ScanOptions{}) // pauses allocate
			require.NoError(t, err)
		})
	}
	few, many := allocations(1000), allocations(5000)
	require.Less(t, (many-few)/4000, 0.2)
}

// The buffer of a snapshot's reader is reused.
func TestSnapshotBufferIsReused(t *testing.T) {
	n := withMessages(t, options(memfs.New()), 2000)
	snap, err := n.s.OpenSnapshot()
	require.NoError(t, err)
	defer snap.Close()
	var buf []byte
	buffers, pieces := make(map[*byte]bool), 0
	for offset := uint64(0); ; pieces++ {
		at, data, err := snap.ReadNext(offset, 64<<10, &buf)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if offset = at + uint64(len(data)); at > 0 {
			buffers[&buf[0]] = true
		}
	}
	require.Greater(t, pieces, 50)
	require.LessOrEqual(t, len(buffers), 3)
}
