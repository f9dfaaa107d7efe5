// SPDX-License-Identifier: Apache-2.0

package page

import "iter"

// Region tells what the pages of a stretch of the file are used for, as far as the file knows it.
type Region struct {
	// First page, and how many.
	First No
	Pages uint64
	// Live pages belong to what is being built: the next checkpoint refers to them.
	Live uint64
	// Held pages were freed and cannot be used again yet: HeldByReaders because a Pin or a Guard may look at them, the
	// others because one of the last two checkpoints refers to them.
	Held, HeldByReaders uint64
}

// Regions yields the file in stretches of that many pages, from its beginning to its end; the last one may be shorter.
// It is no snapshot: each stretch is counted for itself, under a lock that is held for as long as it takes to count its
// bits. It yields nothing for a file that was opened read-only.
func (f *File) Regions(pages uint64) iter.Seq[Region] {
	return func(yield func(Region) bool) {
		held := f.heldByReaders(pages)
		for from := uint64(0); pages > 0; from += pages {
			r, ok := f.region(from, pages)
			if !ok {
				return
			}
			if i := from / pages; i < uint64(len(held)) {
				r.HeldByReaders = min(held[i], r.Held)
			}
			if !yield(r) {
				return
			}
		}
	}
}

// region counts the stretch that begins with page from, counted from 0; ok is false behind the end.
func (f *File) region(from, pages uint64) (r Region, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.space == nil || from >= f.space.pages {
		return Region{}, false
	}
	r = Region{First: No(from + 1), Pages: min(pages, f.space.pages-from)}
	var busy uint64
	f.space.each(from, r.Pages, func(c *chunk, off, n uint64) {
		r.Live += countRange(c.live, off, n)
		busy += countRange(c.busy, off, n)
	})
	r.Held = busy - r.Live
	return r, true
}

// heldByReaders counts, for each stretch of that many pages, those that only a reader keeps.
func (f *File) heldByReaders(pages uint64) []uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.space == nil || pages == 0 {
		return nil
	}
	f.sweepLocked()
	counts := make([]uint64, (f.space.pages+pages-1)/pages)
	for _, h := range f.pending.held {
		for at, end := h.at, h.at+h.n; at < end; {
			i := at / pages
			n := min(end, (i+1)*pages) - at
			if i < uint64(len(counts)) {
				counts[i] += n
			}
			at += n
		}
	}
	return counts
}

// Live keeps of runs those that are still in use, in their order. It changes the slice.
func (f *File) Live(runs []Run) []Run {
	f.mu.Lock()
	defer f.mu.Unlock()
	kept := runs[:0]
	for _, r := range runs {
		if f.space != nil && r.First > 0 && f.space.isLive(uint64(r.First-1), uint64(r.Pages)) {
			kept = append(kept, r)
		}
	}
	return kept
}
