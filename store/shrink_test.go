// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/tier"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// grown returns a store with a page.db much larger than its content.
func grown(t *testing.T, o store.Options, keep ...uint64) *node {
	t.Helper()
	n := openNode(t, o)
	n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "default") })
	n.publishMany(1, 1500, 1800)
	_, err := n.s.Checkpoint(context.Background())
	require.NoError(t, err)
	n.commit(func(b *txn.Builder) {
		from := uint64(1)
		for _, k := range append(keep, 1501) {
			if k > from {
				b.Ack(1, 1, txn.Range{First: from, Last: k - 1})
			}
			from = k + 1
		}
	})
	return n
}

// Shrink releases free space at the end of the file, even if a single message at the end is still needed.
func TestShrink(t *testing.T) {
	ctx := context.Background()
	for name, keep := range map[string][]uint64{
		"empty": nil, "first": {1}, "last": {1500},
		"some": {3, 700, 701, 1200, 1499},
	} {
		t.Run(name, func(t *testing.T) {
			mem := memfs.New()
			n := grown(t, options(mem), keep...)
			want := dumpStore(t, n.s)
			plan, err := n.s.Maintenance().PlanShrink(ctx, rewrite.ShrinkOptions{})
			require.NoError(t, err)
			r, err := n.s.Maintenance().Shrink(ctx, rewrite.ShrinkOptions{})
			require.NoError(t, err)
			require.Greater(t, r.FileBytesBefore, uint64(1500*1800))
			require.Equal(t, plan.FileBytes, r.FileBytesBefore)
			require.InDelta(t, r.FileBytesBefore-r.FileBytesAfter, plan.GainBytes, 100*2048,
				"the plan includes recent acknowledgements")
			require.Less(t, r.FileBytesAfter, uint64(64<<10+100*2048), "remaining messages and a few free pages")
			require.False(t, r.Held)
			require.Equal(t, want, dumpStore(t, n.s))
			n.check()
			n.publishMany(1, 100, 1800) // the file grows again
			want = dumpStore(t, n.s)
			n.check()
			_, err = n.s.Maintenance().Shrink(ctx, rewrite.ShrinkOptions{MoveBytes: -1})
			require.NoError(t, err)
			n.check()
			require.NoError(t, n.s.Close())
			checkOffline(t, mem)
			again := openNode(t, options(mem))
			again.applyAll()
			require.Equal(t, want, dumpStore(t, again.s))
		})
	}
}

// PlanShrink predicts the released space.
func TestPlanShrink(t *testing.T) {
	ctx := context.Background()
	n := grown(t, options(memfs.New()), 1, 1500)
	_, err := n.s.Checkpoint(ctx)
	require.NoError(t, err)
	plan, err := n.s.Maintenance().PlanShrink(ctx, rewrite.ShrinkOptions{})
	require.NoError(t, err)
	require.Equal(t, uint64(4096), plan.MoveBytes)
	none, err := n.s.Maintenance().PlanShrink(ctx, rewrite.ShrinkOptions{MoveBytes: -1})
	require.NoError(t, err)
	require.Less(t, none.GainBytes, plan.GainBytes/10)
	r, err := n.s.Maintenance().Shrink(ctx, rewrite.ShrinkOptions{})
	require.NoError(t, err)
	require.InDelta(t, float64(plan.GainBytes), float64(r.FileBytesBefore-r.FileBytesAfter), 80*2048)
}

// After a crash before any write, sync or truncate of a shrink, a restart finds all content.
func TestShrinkCrashEverywhere(t *testing.T) {
	for seed := range uint64(tier.Count(2, 4)) {
		mem := memfs.New()
		fault := faultfs.New(mem)
		n := grown(t, options(fault), 5, 900, 901, 1498, 1499)
		want := dumpStore(t, n.s)
		clones, points := crashPoints(t, mem, fault, seed, func() {
			_, err := n.s.Maintenance().Shrink(context.Background(), rewrite.ShrinkOptions{})
			require.NoError(t, err)
		})
		for i, clone := range clones {
			again := openNode(t, options(clone))
			again.applyAll()
			require.Equal(t, want, dumpStore(t, again.s), "crash before %s", points[i])
			again.check()
			r, err := again.s.Maintenance().Shrink(context.Background(), rewrite.ShrinkOptions{})
			require.NoError(t, err, "crash before %s", points[i])
			require.Less(t, r.FileBytesAfter, uint64(64<<10+100*2048), "crash before %s", points[i])
			require.Equal(t, want, dumpStore(t, again.s))
			again.check()
			require.NoError(t, again.s.Close())
			checkOffline(t, clone)
		}
	}
}

// Shrinks concurrent with publishes, acknowledgements and reads keep the store consistent and all reads correct.
func TestConcurrentShrinks(t *testing.T) {
	n := openNode(t, options(memfs.New()))
	n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "a", "b") })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var all sync.WaitGroup
	errs := make(chan error, 4)
	var shrunk atomic.Int64
	all.Go(func() {
		for ctx.Err() == nil {
			if _, err := n.s.Maintenance().Shrink(ctx, rewrite.ShrinkOptions{}); err != nil && ctx.Err() == nil {
				errs <- err
				return
			}
			shrunk.Add(1)
		}
	})
	all.Go(func() {
		for ctx.Err() == nil {
			if err := readAll(ctx, n.s); err != nil && ctx.Err() == nil {
				errs <- err
				return
			}
		}
	})
	m := &shrinkLoad{n: n, rng: rand.New(rand.NewPCG(4, 4))}
	for i := 0; i < 300 || shrunk.Load() < 5; i++ {
		m.step()
	}
	cancel()
	all.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
	n.check()
	t.Logf("%d shrinks", shrunk.Load())
}

// shrinkLoad publishes messages that contain their own sequence, and acknowledges most of them.
type shrinkLoad struct {
	n    *node
	rng  *rand.Rand
	next uint64
}

func (l *shrinkLoad) step() {
	l.n.commit(func(b *txn.Builder) {
		b.BeginPublish(1)
		for range 5 {
			l.next++
			body := make([]byte, 20+l.rng.IntN(4000))
			copy(body, []byte(itoa(l.next)+" "))
			b.Message(1, nil, body)
		}
		b.EndPublish()
	})
	from := 1 + l.rng.Uint64N(l.next)
	to := min(l.next, from+l.rng.Uint64N(40))
	l.n.commit(func(b *txn.Builder) {
		b.Ack(1, 1, txn.Range{First: from, Last: to})
		b.Ack(1, 2, txn.Range{First: from, Last: to})
	})
}

func itoa(n uint64) string {
	var b []byte
	for ; n > 0; n /= 10 {
		b = append([]byte{byte('0' + n%10)}, b...)
	}
	return string(b)
}

// Shrinks and rewrites between random transactions, restarts and crashes do not change the content.
func TestShrinkAndRewriteRandom(t *testing.T) {
	ctx := context.Background()
	ops, other := rand.New(rand.NewPCG(21, 1)), rand.New(rand.NewPCG(21, 77))
	mem := memfs.New()
	o := options(mem)
	n, m := openNode(t, o), &model{}
	for i := range 400 {
		require.NoError(t, n.appendTxn(m.step(t, ops, 60_000)))
		switch other.IntN(10) {
		case 0:
			n.applyAll()
		case 1:
			_, err := n.s.Maintenance().Shrink(ctx, rewrite.ShrinkOptions{MoveBytes: int64(other.IntN(3)-1) * 50_000})
			require.NoError(t, err)
		case 2:
			if other.IntN(4) == 0 {
				_, err := n.s.Maintenance().Rewrite(ctx, rewrite.Options{PageSize: 2048 * (1 + other.IntN(6))})
				require.NoError(t, err)
			}
		case 3:
			if other.IntN(2) == 0 {
				require.NoError(t, n.s.Close())
			} else {
				mem = mem.CrashClone(crashRand(other))
				o.FS = mem
			}
			n = openNode(t, o)
		}
		if i%40 == 39 {
			n.applyAll()
			require.Equal(t, m.dump(), dumpStore(t, n.s), "after %d transactions", i+1)
			n.check()
		}
	}
}

// A shrink fails with the error of any of its writes and syncs. After an error other than a full disk, the store is
// unusable (INV-7). A restart finds all content.
func TestShrinkFails(t *testing.T) {
	for _, cause := range []error{syscall.ENOSPC, syscall.EIO} {
		for at := int64(1); ; at++ {
			mem := memfs.New()
			fault := faultfs.New(mem)
			n := grown(t, options(fault), 5, 1499)
			want := dumpStore(t, n.s)
			_, err := n.s.Checkpoint(context.Background())
			require.NoError(t, err)
			var count atomic.Int64
			fault.SetHook(func(op faultfs.Op) error {
				wrong := op.Kind == faultfs.OpWrite || op.Kind == faultfs.OpTruncate ||
					(op.Kind == faultfs.OpSync && !errors.Is(cause, syscall.ENOSPC))
				if wrong && op.Name == datadir.PageFile("/data") && count.Add(1) == at {
					return cause
				}
				return nil
			})
			_, err = n.s.Maintenance().Shrink(context.Background(), rewrite.ShrinkOptions{})
			fault.SetHook(nil)
			if err == nil {
				require.Greater(t, at, int64(3))
				break
			}
			require.ErrorIs(t, err, cause)
			if errors.Is(cause, syscall.EIO) {
				require.ErrorIs(t, err, store.ErrFailed)
			}
			_ = n.s.Close()
			again := openNode(t, options(mem))
			again.applyAll()
			require.Equal(t, want, dumpStore(t, again.s), "%v at %d", cause, at)
			again.check()
			require.NoError(t, again.s.Close())
		}
	}
}
