// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/units"
	"github.com/lockstep-mq/lockstep/test/tier"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// crashPoints runs do. For each change of the disk, it returns two clones of the disk after a crash before this
// change: one with some and one without any unsynced writes. ops describes the clones.
func crashPoints(
	t *testing.T, mem *memfs.FS, fault *faultfs.FS, seed uint64, do func(),
) (clones []*memfs.FS, ops []string) {
	t.Helper()
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 9))
	fault.SetHook(func(op faultfs.Op) error {
		switch op.Kind {
		case faultfs.OpWrite, faultfs.OpSync, faultfs.OpRename, faultfs.OpSyncDir, faultfs.OpTruncate, faultfs.OpCreate,
			faultfs.OpRemove, faultfs.OpAllocate:
			mu.Lock()
			defer mu.Unlock()
			clones = append(clones, mem.CrashClone(crashRand(rng)), mem.CrashClone(nil))
			what := fmt.Sprintf("%s %s", op.Kind, op.Name)
			ops = append(ops, what, what+", without unsynced writes")
		default:
		}
		return nil
	})
	do()
	fault.SetHook(nil)
	mu.Lock()
	defer mu.Unlock()
	return append(clones, mem.CrashClone(nil)), append(ops, "the end")
}

// After a crash before any write, sync or rename of a rewrite, a restart finds one valid page.db, every message, and no
// partial files.
func TestRewriteCrashEverywhere(t *testing.T) {
	for seed := range uint64(tier.Count(3, 6)) {
		mem := memfs.New()
		fault := faultfs.New(mem)
		n, m := filled(t, options(fault))
		ops := rand.New(rand.NewPCG(seed, 5))
		for range 20 { // these are in the log and applied, but not in the checkpoint
			require.NoError(t, n.appendTxn(m.step(t, ops, 9_000)))
		}
		n.applyAll()
		for range 5 { // these are in the log, but not applied
			require.NoError(t, n.appendTxn(m.step(t, ops, 9_000)))
		}
		want := m.dump()
		clones, points := crashPoints(t, mem, fault, seed, func() {
			_, err := n.s.Maintenance().Rewrite(context.Background(), rewrite.Options{PageSize: 8192})
			require.NoError(t, err)
		})
		sizes := map[int]int{}
		for i, clone := range clones {
			again := openNode(t, options(clone))
			again.applyAll()
			require.Equal(t, want, dumpStore(t, again.s), "crash before %s", points[i])
			again.check()
			st, err := again.s.Stats()
			require.NoError(t, err)
			sizes[st.PageSize]++
			_, err = again.s.Maintenance().Rewrite(context.Background(), rewrite.Options{PageSize: 4096})
			require.NoError(t, err, "crash before %s: next rewrite", points[i])
			require.Equal(t, want, dumpStore(t, again.s))
			require.NoError(t, again.s.Close())
			checkOffline(t, clone)
		}
		require.Positive(t, sizes[2048])
		require.Positive(t, sizes[8192])
		require.Len(t, sizes, 2)
		n.applyAll()
		require.Equal(t, want, dumpStore(t, n.s))
		require.NoError(t, n.s.Close())
		checkOffline(t, mem)
	}
}

// If any disk operation of a rewrite fails, with an I/O error or because the disk is full, the store continues with
// its old file, or it fails. After a failure, a restart finds all content.
func TestRewriteFails(t *testing.T) {
	for _, cause := range []error{syscall.ENOSPC, syscall.EIO} {
		var failed, continued int
		for at := 0; ; at++ {
			mem := memfs.New()
			fault := faultfs.New(mem)
			n, m := filled(t, options(fault))
			n.commit(func(b *txn.Builder) { b.CreateQueue("big", txn.Config{}, "s") })
			var count atomic.Int64
			var what atomic.Value
			fault.SetHook(func(op faultfs.Op) error {
				switch op.Kind {
				case faultfs.OpWrite, faultfs.OpSync, faultfs.OpRename, faultfs.OpSyncDir, faultfs.OpTruncate,
					faultfs.OpCreate,
					faultfs.OpAllocate:
					// Ignore the log's background operations on its spare segments.
					if strings.HasPrefix(op.Name, "/data/page.db_new") || op.Kind == faultfs.OpRename &&
						strings.HasPrefix(op.Name, "/data/page.db") ||
						op.Kind == faultfs.OpSyncDir && op.Name == "/data" {
						if count.Add(1) == int64(at+1) {
							what.Store(fmt.Sprintf("%s %s", op.Kind, op.Name))
							return cause
						}
					}
				default:
				}
				return nil
			})
			_, err := n.s.Maintenance().Rewrite(context.Background(), rewrite.Options{PageSize: 6144})
			fault.SetHook(nil)
			if err == nil {
				require.Greater(t, at, 8)
				break
			}
			where := what.Load()
			require.ErrorIs(t, err, cause, "%v", where)
			if errors.Is(err, store.ErrFailed) {
				failed++
			} else {
				continued++
				require.Equal(t, m.dump()+"queue 5 big next=1\n sub 1:\n", dumpBig(t, n, m), "%v", where)
				n.check()
			}
			_ = n.s.Close()
			again := openNode(t, options(mem))
			again.applyAll()
			again.check()
			require.Equal(t, m.dump()+"queue 5 big next=1\n sub 1:\n", dumpBig(t, again, m), "%v", where)
			require.NoError(t, again.s.Close())
			checkOffline(t, mem)
		}
		require.Positive(t, continued)
		t.Logf("%v: %d stores continued, %d failed", cause, continued, failed)
	}
}

// dumpBig returns the result of dumpStore, with the number of queue big replaced by 5, so that results for different
// models are comparable.
func dumpBig(t *testing.T, n *node, m *model) string {
	t.Helper()
	return strings.Replace(dumpStore(t, n.s), fmt.Sprintf("queue %d big", m.nextID+1), "queue 5 big", 1)
}

// A rewrite without enough space is rejected. The error contains the required and the available space.
func TestRewriteNeedsSpace(t *testing.T) {
	n, m := filled(t, options(memfs.New()))
	_, err := n.s.Maintenance().Rewrite(context.Background(), rewrite.Options{PageSize: 4096, ReserveBytes: 1 << 60})
	require.ErrorIs(t, err, rewrite.ErrNoSpace)
	var space *rewrite.SpaceError
	require.ErrorAs(t, err, &space)
	require.Positive(t, space.NeedBytes)
	require.Positive(t, space.AvailableBytes)
	require.Contains(t, err.Error(), units.Bytes(space.NeedBytes))
	require.Contains(t, err.Error(), units.Bytes(space.AvailableBytes))
	require.Equal(t, m.dump(), dumpStore(t, n.s))
	n.check()
}
