// SPDX-License-Identifier: Apache-2.0

package page

import "fmt"

// trimSpare is the number of free pages that Trim keeps, if the file has them.
const trimSpare = 64

// AllocLow makes the next allocation search for free pages from the start of the file.
func (f *File) AllocLow() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.space != nil {
		f.space.cursor = 0
	}
}

// RelocateBitmap makes the next Checkpoint move the bitmap and directory pages with a page number >= from.
func (f *File) RelocateBitmap(from No) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.space == nil {
		return
	}
	perLeaf := int(f.geo.leafChunks())
	for i, c := range f.space.chunks {
		if c.at.page >= from {
			c.dirty = true
			f.space.leaves[i/perLeaf].dirty = true
		}
	}
	for i := range f.space.leaves {
		if l := &f.space.leaves[i]; l.at.page >= from {
			l.dirty = true
		}
	}
}

// FreeTail returns the number of reusable pages at the end of the file.
func (f *File) FreeTail() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.space == nil {
		return 0
	}
	f.releaseFreedLocked()
	return f.space.pages - f.space.end()
}

// Trim frees the unused end of the file in the filesystem, and returns the number of bytes freed. It first writes two
// checkpoints with the content of the last one. A crash at any point leaves a valid file with the old length or a
// shorter one.
//
// Every allocated or freed extent must be included in the last Checkpoint. Trim can be retried after the same errors as
// Checkpoint.
func (f *File) Trim() (int64, error) {
	if err := f.writable(); err != nil {
		return 0, err
	}
	meta := f.Meta()
	if !f.trimSpace() {
		// A crash may have interrupted a Trim before the truncation.
		if over, err := f.excess(); err != nil || over == 0 {
			return 0, err
		}
	}
	for range 2 {
		if _, err := f.Checkpoint(Meta{
			Position: meta.Position, Root: meta.Root, CreatedMS: meta.CreatedMS,
			AppData: meta.AppData,
		}); err != nil {
			return 0, fmt.Errorf("trim: %w", err)
		}
	}
	return f.truncate()
}

func (f *File) trimSpace() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.releaseFreedLocked()
	end := f.space.end()
	if free := end - f.space.busy; free < trimSpare {
		end = min(end+trimSpare-free, f.space.pages)
	}
	if end == f.space.pages {
		return false
	}
	for _, at := range f.space.shrink(end) {
		f.freeLocked(at.extent())
	}
	f.grown = 0
	f.pages.Store(end)
	return true
}

func (f *File) excess() (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.excessLocked()
}

func (f *File) excessLocked() (int64, error) {
	size, err := f.file.SizeBytes()
	if err != nil {
		return 0, fmt.Errorf("trim %s: %w", f.path, err)
	}
	return max(size-f.geo.offset(No(f.space.pages+1)), 0), nil
}

// truncate truncates the file after its current last page; the file may have grown since trimSpace.
func (f *File) truncate() (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	over, err := f.excessLocked()
	if err != nil || over == 0 {
		return 0, err
	}
	end := f.geo.offset(No(f.space.pages + 1))
	if err := f.file.Truncate(end); err != nil {
		return 0, fmt.Errorf("trim %s to %d bytes: %w", f.path, end, err)
	}
	return over, nil
}

// end returns the number of pages up to the last busy page.
func (s *space) end() uint64 {
	size := s.geo.chunkPages()
	for i := len(s.chunks); i > 0; i-- {
		from := uint64(i-1) * size
		n := min(s.pages-from, size)
		c := s.chunks[i-1]
		if c.busyCount == size-n { // no existing page is busy
			continue
		}
		for n > 0 && c.busy[(n-1)/64]>>((n-1)%64)&1 == 0 {
			n--
		}
		return from + n
	}
	return 0
}

// shrink reduces the number of pages; the removed pages must be free. It returns the parts of the bitmap that are
// no longer needed.
func (s *space) shrink(pages uint64) []ref {
	var unneeded []ref
	size, chunks, leaves := s.geo.chunkPages(), int(s.geo.chunksFor(pages)), int(s.geo.leavesFor(pages))
	for _, c := range s.chunks[chunks:] {
		if c.at != (ref{}) {
			unneeded = append(unneeded, c.at)
		}
	}
	for _, l := range s.leaves[leaves:] {
		if l.at != (ref{}) {
			unneeded = append(unneeded, l.at)
		}
	}
	if off := pages % size; off != 0 {
		c := s.chunks[chunks-1]
		n := min(s.pages-uint64(chunks-1)*size, size) - off
		setBits(c.busy, off, n)
		c.busyCount += n
	}
	if len(s.chunks) > chunks && leaves > 0 {
		s.leaves[leaves-1].dirty = true
	}
	clear(s.chunks[chunks:])
	s.chunks, s.leaves, s.pages = s.chunks[:chunks], s.leaves[:leaves], pages
	s.cursor, s.noFit = 0, 0
	return unneeded
}
