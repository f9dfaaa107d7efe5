// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/tier"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
	"github.com/stretchr/testify/require"
)

// checkOffline verifies after a rewrite that page.db is consistent and that no partial file exists.
func checkOffline(t *testing.T, fs vfs.FS) {
	t.Helper()
	report, err := checkDir(fs)
	require.NoError(t, err)
	require.Empty(t, report.Problems)
	_, err = fs.Stat("/data/page.db_new")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// Rewrites to random page sizes between random transactions, restarts and crashes do not change the content: the digest
// equals that of a store that was never rewritten.
func TestRewriteRandom(t *testing.T) {
	ctx := context.Background()
	for seed := range uint64(tier.Count(2, 3)) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			ops, other := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 77))
			mem := memfs.New()
			o := options(mem)
			n, plain, m := openNode(t, o), openNode(t, options(memfs.New())), &model{}
			sizes := []int{0, 2048, 4096, 6144, 14336, 32768, 1 << 20}
			for i := range 300 {
				payload := m.step(t, ops, 40_000)
				require.NoError(t, n.appendTxn(payload))
				require.NoError(t, plain.appendTxn(payload))
				switch other.IntN(12) {
				case 0:
					n.applyAll()
				case 1:
					size := sizes[other.IntN(len(sizes))]
					before, err := n.s.Stats()
					require.NoError(t, err)
					plan, err := n.s.Maintenance().PlanRewrite(ctx, rewrite.Options{PageSize: size})
					require.NoError(t, err)
					result, err := n.s.Maintenance().Rewrite(ctx, rewrite.Options{PageSize: size, Reason: "test"})
					require.NoError(t, err)
					require.Equal(t, plan.NeedBytes, result.FileBytesAfter, "the plan is exact")
					require.Equal(t, plan.Messages, result.Messages)
					after, err := n.s.Stats()
					require.NoError(t, err)
					if size == 0 {
						size = before.PageSize
					}
					require.Equal(t, size, after.PageSize)
					require.Equal(t, before.Messages, after.Messages)
				case 2:
					require.NoError(t, n.s.Close())
					n = openNode(t, o)
				case 3:
					mem = mem.CrashClone(crashRand(other))
					o.FS = mem
					n = openNode(t, o)
				}
				if i%25 == 24 {
					n.applyAll()
					require.Equal(t, m.dump(), dumpStore(t, n.s), "after %d transactions", i+1)
					n.check()
				}
			}
			n.applyAll()
			plain.applyAll()
			want, err := digestOf(ctx, plain.s)
			require.NoError(t, err)
			got, err := digestOf(ctx, n.s)
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.NoError(t, n.s.Close())
			checkOffline(t, mem)
		})
	}
}

func (n *node) publishMany(queue uint64, count, size int) {
	n.t.Helper()
	for done := 0; done < count; {
		k := min(count-done, 200_000/size+1)
		n.commit(func(b *txn.Builder) {
			b.BeginPublish(queue)
			for i := range k {
				b.Message(1, nil, []byte(fmt.Sprintf("%0*d", size, done+i)))
			}
			b.EndPublish()
		})
		done += k
	}
}

// A rewrite stores each message of a queue with many subscriptions only once.
func TestRewriteStoresSharedMessagesOnce(t *testing.T) {
	ctx := context.Background()
	mem := memfs.New()
	n := openNode(t, options(mem))
	var names []string
	for i := range 50 {
		names = append(names, fmt.Sprintf("s%02d", i))
	}
	n.commit(func(b *txn.Builder) { b.CreateQueue("topic", txn.Config{}, names...) })
	n.publishMany(1, 300, 5000)
	for i := range uint64(49) { // one subscription still needs all messages
		n.commit(func(b *txn.Builder) { b.Ack(1, uint32(i+2), txn.Range{First: 1, Last: (i + 1) * 6}) })
	}
	want := dumpStore(t, n.s)
	for _, size := range []int{8192, 2048, 0} {
		result, err := n.s.Maintenance().Rewrite(ctx, rewrite.Options{PageSize: size})
		require.NoError(t, err)
		require.Equal(t, uint64(300), result.Messages)
		require.Less(t, result.FileBytesAfter, uint64(300*5000*2), "each message is stored once")
		require.Equal(t, want, dumpStore(t, n.s))
		n.check()
	}
	dropped, err := n.s.Maintenance().DropOld()
	require.NoError(t, err)
	require.Positive(t, dropped)
	dropped, err = n.s.Maintenance().DropOld()
	require.NoError(t, err)
	require.Zero(t, dropped)
}

// A rewrite that cannot read a page leaves the old file unchanged. The readable messages in the file remain
// readable. A scan reports the location of the corruption.
func TestRewriteStopsAtCorruptPage(t *testing.T) {
	ctx := context.Background()
	mem := memfs.New()
	n := openNode(t, options(mem))
	n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "default") })
	n.publishMany(1, 200, 900)
	_, err := n.s.Checkpoint(ctx)
	require.NoError(t, err)
	clean, err := scanStore(ctx, n.s, checkpoint.ScanOptions{})
	require.NoError(t, err)
	require.Empty(t, clean.Problems)
	f, err := mem.OpenFile(datadir.PageFile("/data"), os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{0xff, 0xff}, page.OffsetOf(30, 2048)+500)
	require.NoError(t, err)
	before, err := vfs.ReadFile(mem, datadir.PageFile("/data"), 1<<30)
	require.NoError(t, err)

	_, err = n.s.Maintenance().Rewrite(ctx, rewrite.Options{PageSize: 4096})
	require.ErrorIs(t, err, index.ErrDataLoss)
	require.ErrorIs(t, err, page.ErrCorrupt)
	after, err := vfs.ReadFile(mem, datadir.PageFile("/data"), 1<<30)
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.Eventually(t, func() bool { _, _, busy := n.s.Maintenance().Running(); return !busy }, time.Minute,
		time.Millisecond)
	_, err = mem.Stat("/data/page.db_new")
	require.ErrorIs(t, err, os.ErrNotExist)
	n.commit(func(b *txn.Builder) { b.BeginPublish(1); b.Message(1, nil, []byte("after")); b.EndPublish() })

	scan, err := scanStore(ctx, n.s, checkpoint.ScanOptions{})
	require.NoError(t, err)
	require.Len(t, scan.Problems, 1)
	require.Equal(t, uint64(4), scan.DamagedMessages)
	require.Equal(t, clean.Messages+1-4, scan.Messages)
	_ = n.s.Close()
}

// A rewrite that is canceled at a random point returns immediately, Apply continues, and no file is left.
func TestRewriteCanceled(t *testing.T) {
	mem := memfs.New()
	fault := faultfs.New(mem)
	o := options(fault)
	n, m := filled(t, o)
	ops := rand.New(rand.NewPCG(5, 6))
	canceled, done := 0, 0
	for round := range 60 {
		ctx, cancel := context.WithCancel(context.Background())
		var count atomic.Int64
		at := int64(ops.IntN(60))
		stuck := make(chan struct{})
		fault.SetHook(func(op faultfs.Op) error {
			if strings.HasPrefix(op.Name, "/data/page.db") && count.Add(1) == at {
				cancel()
				if op.Name == "/data/page.db_new" && op.Kind != faultfs.OpRename {
					<-stuck // a disk that hangs must not delay a takeover while the rewrite can still be canceled
				}
			}
			return nil
		})
		_, err := n.s.Maintenance().Rewrite(ctx, rewrite.Options{PageSize: 2048 * (1 + round%5)})
		require.NoError(t, n.appendTxn(m.step(t, ops, 9_000)))
		n.applyAll()
		if err != nil {
			canceled++
			require.ErrorIs(t, err, rewrite.ErrCanceled)
			require.ErrorIs(t, err, context.Canceled)
		} else {
			done++
		}
		close(stuck)
		fault.SetHook(nil)
		cancel()
		require.Eventually(t, func() bool { _, _, busy := n.s.Maintenance().Running(); return !busy }, time.Minute,
			time.Millisecond)
		_, err = mem.Stat("/data/page.db_new")
		require.ErrorIs(t, err, os.ErrNotExist)
		require.Equal(t, m.dump(), dumpStore(t, n.s))
	}
	n.check()
	require.Positive(t, canceled)
	require.Positive(t, done)
	t.Logf("%d canceled, %d done", canceled, done)
	require.NoError(t, n.s.Close())
	checkOffline(t, mem)
}

// Records appended while a rewrite is blocked are applied after the rewrite. In the meantime a second rewrite is
// rejected, but a checkpoint is not.
func TestLogDuringRewrite(t *testing.T) {
	ctx := context.Background()
	mem := memfs.New()
	fault := faultfs.New(mem)
	n, m := filled(t, options(fault))
	reached, resume := make(chan struct{}), make(chan struct{})
	var once sync.Once
	fault.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpWrite && op.Name == "/data/page.db_new" {
			once.Do(func() { close(reached); <-resume })
		}
		return nil
	})
	var phases []string
	result := make(chan error, 1)
	go func() {
		_, err := n.s.Maintenance().Rewrite(ctx, rewrite.Options{
			PageSize: 4096,
			Progress: func(p checkpoint.Progress) { phases = append(phases, p.Phase) },
		})
		result <- err
	}()
	<-reached
	before := n.s.Applied()
	ops := rand.New(rand.NewPCG(50, 6))
	for range 100 {
		require.NoError(t, n.appendTxn(m.step(t, ops, 9_000)))
	}
	applied := make(chan error, 1)
	go func() { applied <- n.s.Apply(n.s.End().LSN, nil) }()
	_, err := n.s.Checkpoint(ctx)
	require.NoError(t, err)
	_, err = n.s.Maintenance().Rewrite(ctx, rewrite.Options{})
	require.ErrorIs(t, err, rewrite.ErrMaintenance)
	var busy *rewrite.MaintenanceError
	require.ErrorAs(t, err, &busy)
	require.Equal(t, "rewrite", busy.Running)
	_, err = n.s.Maintenance().DropOld()
	require.ErrorIs(t, err, rewrite.ErrMaintenance)
	require.Equal(t, before, n.s.Applied())
	require.Equal(t, n.s.End(), n.s.Durable())
	close(resume)
	require.NoError(t, <-result)
	require.NoError(t, <-applied)
	require.Equal(t, m.dump(), dumpStore(t, n.s))
	n.check()
	// A long phase is reported repeatedly.
	require.Equal(t, []string{"checkpoint", "plan", "copy", "finish", "done"}, slices.Compact(phases))
}

// A rewrite does not exceed its rate limit. It can be canceled while the limit delays it.
func TestRewriteRateLimit(t *testing.T) { synctest.Test(t, testRewriteRateLimit) }

func testRewriteRateLimit(t *testing.T) {
	mem := memfs.New()
	n := openNode(t, options(mem))
	n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "default") })
	n.publishMany(1, 400, 1000)
	began := time.Now()
	_, err := n.s.Maintenance().Rewrite(context.Background(), rewrite.Options{PageSize: 4096, BytesPerSecond: 1 << 20})
	require.NoError(t, err)
	require.InDelta(t, 300*time.Millisecond, time.Since(began), float64(100*time.Millisecond),
		"400 kB at 1 MiB/s, less the initial burst")

	for name, end := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"canceled": context.WithCancel,
		"deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Second)
		},
	} {
		func() {
			ctx, cancel := end(context.Background())
			defer cancel()
			copies := make(chan struct{})
			copying := sync.OnceFunc(func() { close(copies) })
			result := make(chan error, 1)
			go func() {
				_, err := n.s.Maintenance().Rewrite(ctx, rewrite.Options{
					PageSize: 8192, BytesPerSecond: 1 << 10,
					Progress: func(p checkpoint.Progress) { // a delayed phase is reported repeatedly
						if p.Phase == "copy" {
							copying()
						}
					},
				})
				result <- err
			}()
			if name == "canceled" {
				<-copies
				cancel()
			}
			began := time.Now()
			err = <-result // at this rate the rewrite would take minutes
			require.Equal(t, map[string]time.Duration{"canceled": 0, "deadline": time.Second}[name], time.Since(began))
			require.ErrorIs(t, err, rewrite.ErrCanceled)
			require.ErrorIs(t, err, ctx.Err())
			require.Eventually(t, func() bool { _, _, busy := n.s.Maintenance().Running(); return !busy },
				time.Minute, time.Millisecond)
			_, err = mem.Stat("/data/page.db_new")
			require.ErrorIs(t, err, os.ErrNotExist)
		}()
	}
	n.check()
}

// Close during a rewrite cancels the rewrite, and no file is left.
func TestCloseDuringRewrite(t *testing.T) {
	mem := memfs.New()
	fault := faultfs.New(mem)
	n, m := filled(t, options(fault))
	reached := make(chan struct{})
	var once sync.Once
	fault.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpWrite && op.Name == "/data/page.db_new" {
			once.Do(func() { close(reached) })
		}
		return nil
	})
	result := make(chan error, 1)
	go func() {
		_, err := n.s.Maintenance().Rewrite(context.Background(), rewrite.Options{PageSize: 4096})
		result <- err
	}()
	<-reached
	require.NoError(t, n.s.Close())
	if err := <-result; err != nil {
		require.Condition(t, func() bool {
			return errors.Is(err, rewrite.ErrCanceled) ||
				errors.Is(err, store.ErrClosed)
		}, "%v", err)
	}
	checkOffline(t, mem)
	again := openNode(t, options(mem))
	again.applyAll()
	require.Equal(t, m.dump(), dumpStore(t, again.s))
}

// A snapshot opened before a rewrite reads the old file.
func TestSnapshotSurvivesRewrite(t *testing.T) {
	n, m := filled(t, options(memfs.New()))
	snap, err := n.s.OpenSnapshot()
	require.NoError(t, err)
	_, err = n.s.Maintenance().Rewrite(context.Background(), rewrite.Options{PageSize: 4096})
	require.NoError(t, err)
	target := openNode(t, options(memfs.New()))
	in, err := target.s.BeginInstall(snap.Header)
	require.NoError(t, err)
	for {
		at, data, err := snap.ReadNext(in.Offset(), 1<<20, nil)
		if err != nil {
			break
		}
		require.NoError(t, in.WriteAt(at, data))
	}
	require.NoError(t, in.Commit())
	snap.Close()
	require.Equal(t, m.dump(), dumpStore(t, target.s))
	target.check()
}
