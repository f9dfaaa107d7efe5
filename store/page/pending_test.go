// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// writeChecker makes writes to protected pages fail.
type writeChecker struct {
	w      *world
	slots  map[uint64]map[No]bool // pages of the checkpoints in the meta slots, by checkpoint number
	pins   map[*Pin]map[No]bool
	guards map[*Guard]map[No]bool
}

func pagesOf(t testing.TB, f *File, pin *Pin) map[No]bool {
	pages := map[No]bool{}
	for ext, err := range f.UsedExtents(pin) {
		require.NoError(t, err)
		for i := range No(ext.Pages) {
			pages[ext.First+i] = true
		}
	}
	return pages
}

// current returns the pages of the current extents and the root.
func (w *world) current() map[No]bool {
	pages := map[No]bool{}
	for _, ext := range w.extents {
		for i := range No(ext.Pages) {
			pages[ext.First+i] = true
		}
	}
	for i := range No(w.root.Pages) {
		pages[w.root.First+i] = true
	}
	return pages
}

func (a *writeChecker) check(op faultfs.Op) error {
	if op.Kind != faultfs.OpWrite || op.Offset < DataOffset {
		return nil
	}
	size := a.w.f.geo.pageSize
	for at := op.Offset; at < op.Offset+op.Length; at += int64(size) {
		no := NoAt(at, size)
		for number, pages := range a.slots {
			if pages[no] {
				return fmt.Errorf("write to page %d of checkpoint %d", no, number)
			}
		}
		for _, pages := range a.pins {
			if pages[no] {
				return fmt.Errorf("write to page %d of a pinned checkpoint", no)
			}
		}
		for _, pages := range a.guards {
			if pages[no] {
				return fmt.Errorf("write to guarded page %d", no)
			}
		}
	}
	return nil
}

func (a *writeChecker) afterCheckpoint() {
	f := a.w.f
	pin := f.Pin()
	defer pin.Release()
	a.slots[pin.Meta().Checkpoint] = pagesOf(a.w.t, f, pin)
	for number := range a.slots {
		if number != pin.Meta().Checkpoint && number != f.older {
			delete(a.slots, number)
		}
	}
}

// No write overwrites a page that a pin, a guard or a meta slot protects.
func TestProtectedPagesAreNotOverwritten(t *testing.T) {
	for seed := range int64(8) {
		mem := newMem(t)
		fault := faultfs.New(mem)
		w := newWorld(t, fault, 2048, seed)
		a := &writeChecker{
			w: w, slots: map[uint64]map[No]bool{}, pins: map[*Pin]map[No]bool{}, guards: map[*Guard]map[No]bool{},
		}
		fault.SetHook(a.check)
		for range 150 {
			w.step()
			if w.rng.Intn(3) == 0 {
				w.checkpoint()
				a.afterCheckpoint()
			}
			a.takeOrRelease()
		}
		for pin := range a.pins {
			pin.Release()
		}
		for guard := range a.guards {
			guard.Release()
		}
		clear(a.pins)
		clear(a.guards)
		w.drop(len(w.extents))
		for range 3 {
			w.checkpoint()
			a.afterCheckpoint()
		}
		st := w.f.Stats()
		require.Zero(t, st.Guards+st.Pins)
		require.LessOrEqual(t, st.Pending, uint64(6), "bitmap pages of the last two checkpoints")
		require.Equal(t, st.Pages, st.Used+st.Free+st.Pending)
		fault.SetHook(nil)
		w.requireSound(w.steps)
		require.NoError(t, w.f.Close())
	}
}

func (a *writeChecker) takeOrRelease() {
	w := a.w
	switch w.rng.Intn(8) {
	case 0:
		pin := w.f.Pin()
		a.pins[pin] = pagesOf(w.t, w.f, pin)
	case 1, 2:
		guard := w.f.ReadGuard()
		a.guards[guard] = w.current()
	case 3:
		for pin, pages := range a.pins {
			require.Equal(w.t, pages, pagesOf(w.t, w.f, pin), "pinned checkpoint")
			delete(a.pins, pin)
			pin.Release()
			pin.Release() // no effect
			break
		}
	case 4, 5:
		for guard := range a.guards {
			delete(a.guards, guard)
			guard.Release()
			guard.Release() // no effect
			break
		}
	}
}

// A file with a constant amount of content does not grow: pages are reusable after two checkpoints.
func TestPagesAreReused(t *testing.T) {
	w := newWorld(t, newMem(t), 2048, 1)
	w.add(50)
	for range 200 {
		w.drop(10)
		w.add(10)
		w.checkpoint()
	}
	require.Less(t, w.f.Stats().Pages, uint64(2000))
	w.requireSound(w.steps)
	require.NoError(t, w.f.Close())
}

// A pin does not prevent the reuse of pages that were allocated after it.
func TestPinHoldsOnlyOlderPages(t *testing.T) {
	w := newWorld(t, newMem(t), 2048, 1)
	w.add(50)
	w.checkpoint()
	pin := w.f.Pin()
	used := pin.Meta().UsedPages
	for range 200 {
		w.drop(10)
		w.add(10)
		w.checkpoint()
	}
	require.Less(t, w.f.Stats().Pages, uint64(2000)+used)
	held := w.f.Stats().Pending
	pin.Release()
	w.checkpoint()
	require.Less(t, w.f.Stats().Pending, held)
	require.NoError(t, w.f.Close())
}

// Reads under a guard return valid extents while a writer replaces them.
func TestGuardedReaders(t *testing.T) {
	w := newWorld(t, newMem(t), 2048, 1)
	var mu sync.RWMutex // guards published
	var published Extent
	replace := func(i int) {
		ext, err := w.f.Alloc(2)
		require.NoError(t, err)
		require.NoError(t, w.f.WriteExtent(ext, KindLarge, fmt.Appendf(nil, "%04000d", i)))
		mu.Lock()
		old := published
		published = ext
		mu.Unlock()
		if !old.IsZero() {
			w.f.Free(old)
		}
		_, err = w.f.Checkpoint(Meta{Root: ext})
		require.NoError(t, err)
	}
	replace(0)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			buf := make([]byte, 4096)
			for {
				select {
				case <-stop:
					return
				default:
				}
				guard := w.f.ReadGuard()
				mu.RLock()
				ext := published
				mu.RUnlock()
				for range 3 {
					if _, _, err := w.f.ReadExtent(ext, buf); err != nil {
						t.Error(err)
						return
					}
				}
				guard.Release()
			}
		})
	}
	for i := range 2000 {
		replace(i)
	}
	close(stop)
	readers.Wait()
	require.Less(t, w.f.Stats().Pages, uint64(4000))
	require.NoError(t, w.f.Close())
}
