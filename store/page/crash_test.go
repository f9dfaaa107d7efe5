// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"maps"
	"math/rand"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/store/vfs/memfs"
)

// crasher clones the filesystem before each operation that changes something, as crashes at that instant could leave
// it.
type crasher struct {
	mem    *memfs.FS
	fault  *faultfs.FS
	rng    *rand.Rand
	clones int // per operation, beside the one that keeps only what was synced
	found  []crashed
}

type crashed struct {
	op string
	fs *memfs.FS
}

func newCrasher(t *testing.T, seed int64, clones int) *crasher {
	mem := newMem(t)
	return &crasher{mem: mem, fault: faultfs.New(mem), rng: rand.New(rand.NewSource(seed)), clones: clones}
}

func (c *crasher) start() {
	c.found = nil
	c.fault.SetHook(func(op faultfs.Op) error {
		switch op.Kind {
		case faultfs.OpWrite, faultfs.OpSync, faultfs.OpAllocate, faultfs.OpTruncate, faultfs.OpRename,
			faultfs.OpSyncDir:
			c.crash(fmt.Sprintf("%v at %d", op.Kind, op.Offset))
		default:
		}
		return nil
	})
}

func (c *crasher) crash(op string) {
	c.found = append(c.found, crashed{op, c.mem.CrashClone(nil)})
	for range c.clones {
		c.found = append(c.found, crashed{op, c.mem.CrashClone(c.rng)})
	}
}

func (c *crasher) stop() []crashed {
	c.fault.SetHook(nil)
	c.crash("the end")
	return c.found
}

// TestCrash crashes at every operation of rounds of changes and checkpoints. What is found then must be the previous
// checkpoint or the new one, whole, and work must go on from there, crash again, and still be right.
func TestCrash(t *testing.T) {
	for _, pageSize := range pageSizes {
		for seed := range int64(3) {
			t.Run(fmt.Sprintf("page=%d/seed=%d", pageSize, seed), func(t *testing.T) {
				c := newCrasher(t, seed, 2)
				w := newWorld(t, c.fault, pageSize, seed)
				newer := 0
				for round := range 12 {
					c.start()
					w.step()
					w.checkpoint()
					if round%4 == 3 {
						w.reopen(c.fault)
					}
					for _, crash := range c.stop() {
						newer += w.afterCrash(crash, w.steps-1)
					}
				}
				require.Positive(t, newer)
				require.NoError(t, w.f.Close())
			})
		}
	}
}

// afterCrash opens what a crash left, and returns 1 if it is already the new checkpoint.
func (w *world) afterCrash(crash crashed, previous uint64) (newer int) {
	w.t.Helper()
	f, err := Open(crash.fs, pageFile, Options{})
	require.NoError(w.t, err, "crash before %s", crash.op)
	at, err := w.verify(f)
	require.NoError(w.t, err, "crash before %s", crash.op)
	require.True(w.t, at == previous || at == previous+1, "crash before %s: checkpoint %d, %d or %d were expected",
		crash.op, at, previous,
		previous+1)
	if crash.op == "the end" {
		require.Equal(w.t, previous+1, at, "a checkpoint that was reported is lost")
	}
	require.NoError(w.t, f.Close())
	if w.rng.Intn(6) == 0 {
		w.goOn(crash.fs)
	}
	return int(at - previous)
}

// goOn continues on what a crash left, crashes again, and verifies.
func (w *world) goOn(mem *memfs.FS) {
	w.t.Helper()
	o := &world{t: w.t, rng: w.rng, next: w.next + 1_000_000, states: maps.Clone(w.states)}
	o.open(mem)
	for range 2 {
		o.step()
		o.checkpoint()
		o.requireSound(o.steps)
	}
	o.step()
	require.NoError(w.t, o.f.Close())
	o.open(mem.CrashClone(w.rng))
	require.NoError(w.t, o.f.Close())
}

// TestCrashInCreate: a file is there and whole, or it is not there.
func TestCrashInCreate(t *testing.T) {
	missing, there := 0, 0
	for seed := range int64(5) {
		c := newCrasher(t, seed, 4)
		c.start()
		w := newWorld(t, c.fault, 4096, seed)
		for i, crash := range c.stop() {
			if _, err := crash.fs.Stat(pageFile); err != nil {
				missing++
				require.NotEqual(t, "the end", crash.op)
				again := newWorld(t, crash.fs, 4096, int64(i)) // what was left behind does no harm
				again.step()
				again.checkpoint()
				require.NoError(t, again.f.Close())
				continue
			}
			there++
			f, err := Open(crash.fs, pageFile, Options{})
			require.NoError(t, err, "crash before %s", crash.op)
			_, err = w.verify(f)
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}
		require.NoError(t, w.f.Close())
	}
	require.Positive(t, missing)
	require.Positive(t, there)
}

// TestLyingSync: even if the device loses what was said to be synced in the last checkpoint, the older one, which
// shares no page with what was written since, is found or the damage is reported; wrong content is never given out.
func TestLyingSync(t *testing.T) {
	older := 0
	for seed := range int64(30) {
		mem := newMem(t)
		fault := faultfs.New(mem)
		w := newWorld(t, fault, 2048, seed)
		for range 6 {
			w.step()
			w.checkpoint()
		}
		fault.SetHook(func(op faultfs.Op) error {
			if op.Kind == faultfs.OpSync {
				return faultfs.ErrDropped
			}
			return nil
		})
		w.step()
		w.checkpoint()
		fault.SetHook(nil)
		f, err := Open(mem.CrashClone(w.rng), pageFile, Options{})
		if err != nil {
			require.ErrorIs(t, err, ErrDamaged)
		} else {
			at, err := w.verify(f)
			if err != nil {
				require.ErrorIs(t, err, ErrDamaged)
			} else if at == w.steps-1 {
				older++
			}
			require.NoError(t, f.Close())
		}
		require.NoError(t, w.f.Close())
	}
	require.Positive(t, older)
}
