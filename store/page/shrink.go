// SPDX-License-Identifier: Apache-2.0

package page

import "fmt"

// trimSpare is how many free pages a Trim leaves below the end if there are not as many elsewhere: the next checkpoint
// needs a few, and should not have to enlarge the file again for them.
const trimSpare = 64

// AllocLow makes the next allocations take the first free pages of the file rather than those behind the last ones
// handed out.
func (f *File) AllocLow() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.space != nil {
		f.space.cursor = 0
	}
}

// RelocateBitmap makes the next Checkpoint write those parts of the bitmap anew that lie at or behind page from.
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

// FreeTail returns how many pages at the end of the file are free: neither in use nor held back for a checkpoint or a
// reader.
func (f *File) FreeTail() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.space == nil {
		return 0
	}
	f.sweepLocked()
	return f.space.pages - f.space.end()
}

// Trim gives the free pages at the end of the file back to the file system, and returns how many bytes that are. It
// makes two checkpoints with the content of the last one, so that no meta slot refers to what is cut off; the cut
// itself comes last. A crash at any instant leaves a file that is as long as it was, or shorter, and valid.
//
// There must be nothing that waits for a Checkpoint: no run allocated or freed since the last one that it does not
// hold. After an error of a kind that Checkpoint can go on from, so can this.
func (f *File) Trim() (int64, error) {
	if err := f.writable(); err != nil {
		return 0, err
	}
	meta := f.Meta()
	if !f.trimSpace() {
		// A crash may have come between the checkpoints and the cut.
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

// trimSpace forgets the free pages at the end; false if there are none.
func (f *File) trimSpace() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sweepLocked()
	end := f.space.end()
	if free := end - f.space.busy; free < trimSpare {
		end = min(end+trimSpare-free, f.space.pages)
	}
	if end == f.space.pages {
		return false
	}
	for _, at := range f.space.shrink(end) {
		f.freeLocked(at.run())
	}
	f.grown = 0
	f.pages.Store(end)
	return true
}

// excess is how much longer the file is than its pages.
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

// truncate cuts the file off behind its last page, where that is now: it may have grown again. Neither meta slot refers
// to anything there.
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

// end is how many pages there are up to the last one that is not free.
func (s *space) end() uint64 {
	size := s.geo.chunkPages()
	for i := len(s.chunks); i > 0; i-- {
		from := uint64(i-1) * size
		n := min(s.pages-from, size)
		c := s.chunks[i-1]
		if c.busyCount == size-n { // only pages that do not exist
			continue
		}
		for n > 0 && c.busy[(n-1)/64]>>((n-1)%64)&1 == 0 {
			n--
		}
		return from + n
	}
	return 0
}

// shrink makes the file end after that many pages; the pages behind must be free. It returns where parts of the bitmap
// are stored that are not needed any more.
func (s *space) shrink(pages uint64) []ref {
	var gone []ref
	size, chunks, leaves := s.geo.chunkPages(), int(s.geo.chunksFor(pages)), int(s.geo.leavesFor(pages))
	for _, c := range s.chunks[chunks:] {
		if c.at != (ref{}) {
			gone = append(gone, c.at)
		}
	}
	for _, l := range s.leaves[leaves:] {
		if l.at != (ref{}) {
			gone = append(gone, l.at)
		}
	}
	if off := pages % size; off != 0 {
		c := s.chunks[chunks-1]
		n := min(s.pages-uint64(chunks-1)*size, size) - off
		setBits(c.busy, off, n)
		c.busyCount += n
	}
	if len(s.chunks) > chunks && leaves > 0 {
		s.leaves[leaves-1].dirty = true // it is shorter now
	}
	clear(s.chunks[chunks:])
	s.chunks, s.leaves, s.pages = s.chunks[:chunks], s.leaves[:leaves], pages
	s.cursor, s.noFit = 0, 0
	return gone
}
