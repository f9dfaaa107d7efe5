// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"maps"
	"math/rand"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/tier"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// crasher clones the filesystem before each changing operation, in the states that a crash at that point could leave.
type crasher struct {
	mem    *memfs.FS
	fault  *faultfs.FS
	rng    *rand.Rand
	clones int // per operation, in addition to the one with only synced data
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

// After a crash at any operation during changes and checkpoints, Open finds the complete previous or new checkpoint.
// The file can be changed, and survives another crash.
func TestCheckpointAfterCrash(t *testing.T) {
	for _, pageSize := range pageSizes {
		for seed := range int64(tier.Count(2, 3)) {
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

// afterCrash opens the file after a crash and returns 1 if it has the new checkpoint.
func (w *world) afterCrash(crash crashed, previous uint64) (newer int) {
	w.t.Helper()
	f, err := Open(crash.fs, pageFile, Options{})
	require.NoError(w.t, err, "crash before %s", crash.op)
	at, err := w.verify(f)
	require.NoError(w.t, err, "crash before %s", crash.op)
	require.True(w.t, at == previous || at == previous+1, "crash before %s: checkpoint %d, want %d or %d",
		crash.op, at, previous,
		previous+1)
	if crash.op == "the end" {
		require.Equal(w.t, previous+1, at, "completed checkpoint is missing")
	}
	require.NoError(w.t, f.Close())
	if w.rng.Intn(6) == 0 {
		w.crashAgain(crash.fs)
	}
	return int(at - previous)
}

// crashAgain continues after a crash, crashes again, and verifies the file.
func (w *world) crashAgain(mem *memfs.FS) {
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

// After a crash in Create, the file is complete or does not exist.
func TestCrashInCreate(t *testing.T) {
	missing, complete := 0, 0
	for seed := range int64(5) {
		c := newCrasher(t, seed, 4)
		c.start()
		w := newWorld(t, c.fault, 4096, seed)
		for i, crash := range c.stop() {
			if _, err := crash.fs.Stat(pageFile); err != nil {
				missing++
				require.NotEqual(t, "the end", crash.op)
				again := newWorld(t, crash.fs, 4096, int64(i)) // a leftover file does not matter
				again.step()
				again.checkpoint()
				require.NoError(t, again.f.Close())
				continue
			}
			complete++
			f, err := Open(crash.fs, pageFile, Options{})
			require.NoError(t, err, "crash before %s", crash.op)
			_, err = w.verify(f)
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}
		require.NoError(t, w.f.Close())
	}
	require.Positive(t, missing)
	require.Positive(t, complete)
}

// If the disk loses synced data of the last checkpoint, Open finds the older checkpoint or reports corruption. Reads
// return no wrong content.
func TestLostSync(t *testing.T) {
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
			require.ErrorIs(t, err, ErrCorrupt)
		} else {
			at, err := w.verify(f)
			if err != nil {
				require.ErrorIs(t, err, ErrCorrupt)
			} else if at == w.steps-1 {
				older++
			}
			require.NoError(t, f.Close())
		}
		require.NoError(t, w.f.Close())
	}
	require.Positive(t, older)
}
