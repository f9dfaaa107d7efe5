// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// watcher verifies that no page is written that a reader may still read.
type watcher struct {
	w     *world
	slots map[uint64]map[No]bool // pages of the checkpoints in the meta slots, by checkpoint number
	pins  map[*Pin]map[No]bool
	looks map[*Guard]map[No]bool
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

// current returns the pages referenced now, published or not.
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

func (a *watcher) check(op faultfs.Op) error {
	if op.Kind != faultfs.OpWrite || op.Offset < DataOffset {
		return nil
	}
	size := a.w.f.geo.pageSize
	for at := op.Offset; at < op.Offset+op.Length; at += int64(size) {
		no := NoAt(at, size)
		for number, pages := range a.slots {
			if pages[no] {
				return fmt.Errorf("page %d of checkpoint %d was overwritten", no, number)
			}
		}
		for _, pages := range a.pins {
			if pages[no] {
				return fmt.Errorf("page %d of a pinned checkpoint was overwritten", no)
			}
		}
		for _, pages := range a.looks {
			if pages[no] {
				return fmt.Errorf("page %d was overwritten while a guarded reader may read it", no)
			}
		}
	}
	return nil
}

// afterCheckpoint records the pages of the new checkpoint.
func (a *watcher) afterCheckpoint() {
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

// TestQuarantine checks every write while pins and guards are taken and released.
func TestQuarantine(t *testing.T) {
	for seed := range int64(8) {
		mem := newMem(t)
		fault := faultfs.New(mem)
		w := newWorld(t, fault, 2048, seed)
		a := &watcher{
			w: w, slots: map[uint64]map[No]bool{}, pins: map[*Pin]map[No]bool{},
			looks: map[*Guard]map[No]bool{},
		}
		fault.SetHook(a.check)
		for range 150 {
			w.step()
			if w.rng.Intn(3) == 0 {
				w.checkpoint()
				a.afterCheckpoint()
			}
			a.comeAndGo()
		}
		for pin := range a.pins {
			pin.Release()
		}
		for guard := range a.looks {
			guard.Release()
		}
		clear(a.pins)
		clear(a.looks)
		w.drop(len(w.extents))
		for range 3 {
			w.checkpoint()
		}
		st := w.f.Stats()
		require.Zero(t, st.Guards+st.Pins)
		require.LessOrEqual(t, st.Pending, uint64(6), "only the own pages of the last two checkpoints are held back")
		require.Equal(t, st.Pages, st.Used+st.Free+st.Pending)
		fault.SetHook(nil)
		w.requireSound(w.steps)
		require.NoError(t, w.f.Close())
	}
}

func (a *watcher) comeAndGo() {
	w := a.w
	switch w.rng.Intn(8) {
	case 0:
		pin := w.f.Pin()
		a.pins[pin] = pagesOf(w.t, w.f, pin)
	case 1, 2:
		guard := w.f.ReadGuard()
		a.looks[guard] = w.current()
	case 3:
		for pin, pages := range a.pins {
			require.Equal(w.t, pages, pagesOf(w.t, w.f, pin), "a pinned checkpoint changed")
			delete(a.pins, pin)
			pin.Release()
			pin.Release() // no effect
			break
		}
	case 4, 5:
		for guard := range a.looks {
			delete(a.looks, guard)
			guard.Release()
			guard.Release() // no effect
			break
		}
	}
}

// Pages are reusable after two checkpoints, so a file with constant content does not grow.
func TestReuse(t *testing.T) {
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

// Pages written and freed while a snapshot is read do not accumulate.
func TestPinHoldsOnlyItsOwn(t *testing.T) {
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

// TestGuardedReaders reads with guards while extents are replaced continuously.
func TestGuardedReaders(t *testing.T) {
	w := newWorld(t, newMem(t), 2048, 1)
	var mu sync.RWMutex // published position, like in a tree View
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
