// SPDX-License-Identifier: Apache-2.0

package page

import "iter"

// Region describes the use of the pages in a range of the file.
type Region struct {
	First No
	Pages uint64
	// Live pages are used by the checkpoint being built.
	Live uint64
	// Held pages are freed but not yet reusable. A Pin or a Guard holds the HeldByReaders pages; a checkpoint holds
	// the other pages.
	Held, HeldByReaders uint64
}

// Regions iterates over the file in ranges of the given number of pages. The result is not a consistent snapshot. It
// yields nothing for a file that is open read-only.
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

// region counts the pages of a range of zero-based pages. ok is false if the range begins after the end.
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

func (f *File) heldByReaders(pages uint64) []uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.space == nil || pages == 0 {
		return nil
	}
	f.releaseFreedLocked()
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

// Live filters extents in place and returns those that the checkpoint being built uses, in order.
func (f *File) Live(extents []Extent) []Extent {
	f.mu.Lock()
	defer f.mu.Unlock()
	kept := extents[:0]
	for _, r := range extents {
		if f.space != nil && r.First > 0 && f.space.isLive(uint64(r.First-1), uint64(r.Pages)) {
			kept = append(kept, r)
		}
	}
	return kept
}
