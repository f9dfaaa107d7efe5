// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	randv2 "math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// These tests number all sync, rename and remove calls on the files of a store, and all writes of a meta slot. For
// each call of an operation, the operation is executed twice: once with an error in the call, and once with a crash
// before the call.
//
// backup.TestRestoreAfterError and backup.TestRestoreAfterCrash do the same for a restore.

// numbered is an operation with numbered calls.
type numbered struct {
	name string
	// begin creates a store. do is the operation. At any time during do, the content of the store is one of contents.
	begin func(t *testing.T, o store.Options) (n *node, do func() error, contents []string)
	// least is the minimum number of calls of each kind.
	least map[faultfs.OpKind]int
}

func numberedOperations() []numbered {
	ctx := context.Background()
	return []numbered{
		{
			name: "checkpoint",
			begin: func(t *testing.T, o store.Options) (*node, func() error, []string) {
				n, m := filled(t, o)
				for ops := randv2.New(randv2.NewPCG(6, 6)); n.s.End().LSN < 80; {
					require.NoError(t, n.appendTxn(m.step(t, ops, 9_000)))
				}
				n.applyAll()
				return n, func() error {
					_, err := n.s.Checkpoint(ctx)
					return err
				}, []string{dumpStore(t, n.s)}
			},
			least: map[faultfs.OpKind]int{faultfs.OpSync: 2, faultfs.OpWrite: 1},
		},
		{
			name: "rewrite",
			begin: func(t *testing.T, o store.Options) (*node, func() error, []string) {
				n, _ := filled(t, o)
				return n, func() error {
					_, err := n.s.Maintenance().Rewrite(ctx, rewrite.Options{PageSize: 6144})
					return err
				}, []string{dumpStore(t, n.s)}
			},
			least: map[faultfs.OpKind]int{faultfs.OpSync: 2, faultfs.OpRename: 1, faultfs.OpSyncDir: 1},
		},
		{
			name: "shrink",
			begin: func(t *testing.T, o store.Options) (*node, func() error, []string) {
				n := grown(t, o, 5, 1499)
				return n, func() error {
					_, err := n.s.Maintenance().Shrink(ctx, rewrite.ShrinkOptions{})
					return err
				}, []string{dumpStore(t, n.s)}
			},
			least: map[faultfs.OpKind]int{faultfs.OpSync: 3, faultfs.OpWrite: 1},
		},
		{
			name:  "install",
			begin: beginInstall,
			least: map[faultfs.OpKind]int{
				faultfs.OpSync: 2, faultfs.OpRename: 2, faultfs.OpRemove: 1, faultfs.OpSyncDir: 2,
			},
		},
	}
}

// beginInstall creates a store that has received a snapshot. The returned operation commits it.
func beginInstall(t *testing.T, o store.Options) (*node, func() error, []string) {
	source, m := filled(t, options(memfs.New()))
	snap, err := source.s.OpenSnapshot()
	require.NoError(t, err)
	defer snap.Close()
	n, foreign := openNode(t, o), &model{}
	n.commit(foreign.foreign(t))
	_, err = n.s.Checkpoint(context.Background())
	require.NoError(t, err)
	in, err := n.s.BeginInstall(snap.Header)
	require.NoError(t, err)
	for {
		at, data, err := snap.ReadNext(in.Offset(), 1<<20, nil)
		if err != nil {
			break
		}
		require.NoError(t, in.WriteAt(at, data))
	}
	return n, in.Commit, []string{dumpStore(t, n.s), m.dump()}
}

// numbers counts the calls of an operation, and runs inject before each counted call.
type numbers struct {
	mu     sync.Mutex // guards the fields below: goroutines of the log do I/O too
	count  int
	kinds  map[faultfs.OpKind]int
	inject func(number int, op faultfs.Op) error
}

func (c *numbers) hook(op faultfs.Op) error {
	const slots = 64 << 10 // both meta slots are below this offset
	if strings.HasSuffix(op.Name, ".new") {
		return nil // a goroutine of the log prepares the next segment at any time: not a call of the operation
	}
	switch op.Kind { // other operations do not make changes durable
	case faultfs.OpSync, faultfs.OpSyncDir, faultfs.OpRename, faultfs.OpRemove:
	case faultfs.OpWrite:
		if op.Name != datadir.PageFile("/data") || op.Offset >= slots {
			return nil
		}
	default:
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	c.kinds[op.Kind]++
	return c.inject(c.count, op)
}

// run executes the operation with numbered calls.
func (x *numbered) run(
	t *testing.T, mem *memfs.FS, inject func(number int, op faultfs.Op) error,
) (c *numbers, contents []string, err error) {
	t.Helper()
	fault := faultfs.New(mem)
	n, do, contents := x.begin(t, options(fault))
	c = &numbers{kinds: map[faultfs.OpKind]int{}, inject: inject}
	fault.SetHook(c.hook)
	err = do()
	fault.SetHook(nil)
	// A goroutine of the log may still be in the hook. Close waits for it, so a lock that it needs must not be held here.
	_ = n.s.Close() // a failed store returns its error again
	c.mu.Lock()
	defer c.mu.Unlock()
	return c, contents, err
}

// requireSound opens the store on a disk. It verifies that its content is one of contents, that no page is corrupt,
// and that it is usable.
func requireSound(t *testing.T, mem *memfs.FS, contents []string, what string) {
	t.Helper()
	n := openNode(t, options(mem))
	n.applyAll()
	require.Contains(t, contents, dumpStore(t, n.s), what)
	n.check()
	_, err := n.s.Checkpoint(context.Background())
	require.NoError(t, err, what)
	require.NoError(t, n.s.Close(), what)
	checkOffline(t, mem)
}

// After an I/O error in any call, the store has one of the valid contents: after a restart, and after a power failure
// that follows the error.
func TestErrorAtEachCall(t *testing.T) {
	for _, x := range numberedOperations() {
		t.Run(x.name, func(t *testing.T) {
			injected := map[faultfs.OpKind]int{}
			for at := 1; ; at++ {
				mem, what := memfs.New(), ""
				c, contents, err := x.run(t, mem, func(number int, op faultfs.Op) error {
					if number != at {
						return nil
					}
					injected[op.Kind]++
					what = fmt.Sprintf("call %d, %s %s, fails", number, op.Kind, op.Name)
					return syscall.EIO
				})
				if what == "" {
					require.NoError(t, err)
					require.Less(t, c.count, at)
					break
				}
				if err != nil && !errors.Is(err, syscall.EIO) {
					require.ErrorIs(t, err, store.ErrFailed, what)
				}
				requireSound(t, mem.CrashClone(nil), contents, what+", then a power failure")
				requireSound(t, mem, contents, what)
			}
			for kind, least := range x.least {
				require.GreaterOrEqual(t, injected[kind], least, "%s", kind)
			}
			t.Logf("errors by operation: %v", injected)
		})
	}
}

// After a crash before any call, with the loss of all or some unsynced data, the store has one of the valid contents.
func TestCrashAtEachCall(t *testing.T) {
	for _, x := range numberedOperations() {
		t.Run(x.name, func(t *testing.T) {
			mem, rng := memfs.New(), rand.New(rand.NewSource(1))
			var clones []*memfs.FS
			var calls []string
			c, contents, err := x.run(t, mem, func(number int, op faultfs.Op) error {
				clones = append(clones, mem.CrashClone(nil), mem.CrashClone(rng))
				what := fmt.Sprintf("crash before call %d, %s %s", number, op.Kind, op.Name)
				calls = append(calls, what, what+", with some unsynced writes")
				return nil
			})
			require.NoError(t, err)
			for i, clone := range clones {
				requireSound(t, clone, contents, calls[i])
			}
			for kind, least := range x.least {
				require.GreaterOrEqual(t, c.kinds[kind], least, "%s", kind)
			}
			t.Logf("crashes: %d; calls: %v", len(clones), c.kinds)
		})
	}
}
