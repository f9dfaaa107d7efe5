// SPDX-License-Identifier: Apache-2.0

package page

import (
	"errors"
	"fmt"
	"io"
)

// The file grows by the amount that it has grown since it was opened or trimmed, but at most by an eighth or
// maxGrowBytes. It grows at least by minGrowBytes and by the requested pages. If the disk has less space, it grows
// only by the requested pages.
const (
	minGrowBytes = 1 << 20
	maxGrowBytes = 256 << 20
)

// Alloc allocates an extent for the checkpoint being built. The extent must be reachable from the Root of the next
// Checkpoint, or be freed before it. Alloc returns ErrFull, ErrFailed, ErrReadOnly, ErrClosed, ErrMisuse for an invalid
// size, or an error of the filesystem.
func (f *File) Alloc(pages uint32) (Extent, error) {
	extents, err := f.AllocExtents([]uint32{pages})
	if err != nil {
		return Extent{}, err
	}
	return extents[0], nil
}

// AllocExtents is Alloc for extents of the given sizes. The extents are adjacent if the free space permits it. On an
// error nothing is allocated.
func (f *File) AllocExtents(pages []uint32) ([]Extent, error) {
	if err := f.writable(); err != nil {
		return nil, err
	}
	var total uint64
	for _, n := range pages {
		if n == 0 || n > MaxExtentPages {
			return nil, fmt.Errorf("%w: an extent of %d pages", ErrMisuse, n)
		}
		total += uint64(n)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	extents, err := f.allocLocked(make([]Extent, 0, len(pages)), pages, total)
	if err != nil {
		for _, r := range extents {
			f.freeLocked(r)
		}
		return nil, fmt.Errorf("allocate %d pages: %w", total, err)
	}
	return extents, nil
}

func (f *File) allocLocked(dst []Extent, pages []uint32, total uint64) ([]Extent, error) {
	if len(pages) == 0 {
		return dst, nil
	}
	at, ok := f.space.find(total)
	if !ok && (len(pages) == 1 || f.space.pages-f.space.busy < total) {
		if err := f.makeRoom(total); err != nil {
			if len(pages) == 1 {
				return dst, err
			}
		} else {
			at, ok = f.space.find(total)
		}
	}
	if ok {
		f.space.take(at, total)
		for _, n := range pages {
			dst = append(dst, Extent{First: No(at + 1), Pages: n, Born: f.building.Load()})
			at += uint64(n)
		}
		return dst, nil
	}
	if len(pages) == 1 {
		return dst, fmt.Errorf("%w: no %d contiguous pages", ErrFull, total) // unreachable: makeRoom succeeded
	}
	half := len(pages) / 2
	var first uint64
	for _, n := range pages[:half] {
		first += uint64(n)
	}
	dst, err := f.allocLocked(dst, pages[:half], first)
	if err != nil {
		return dst, err
	}
	return f.allocLocked(dst, pages[half:], total-first)
}

// makeRoom moves the search position to a free range of the given number of pages. For that, it reclaims pages released
// by readers, or grows the file.
func (f *File) makeRoom(pages uint64) error {
	if f.readers.left.Load() {
		f.releaseFreedLocked()
		if at, ok := f.space.find(pages); ok {
			f.space.cursor = at
			return nil
		}
	}
	size := uint64(f.geo.pageSize)
	step := max(min(f.grown, f.space.pages/8, maxGrowBytes/size), minGrowBytes/size, 1)
	room := f.geo.maxPages() - f.space.pages
	if pages > room {
		return fmt.Errorf("%w: a page file has at most %d pages of %d bytes; a larger page size allows more", ErrFull,
			f.geo.maxPages(), size)
	}
	grow := min(max(step, pages), room)
	err := f.growLocked(grow)
	if err != nil && grow > pages && errors.Is(err, ErrFull) {
		grow = pages
		err = f.growLocked(grow)
	}
	if err != nil {
		return err
	}
	f.space.cursor = f.space.pages - grow
	return nil
}

func (f *File) growLocked(pages uint64) error {
	err := f.file.Allocate(f.geo.offset(No(f.space.pages+1)), int64(pages)*int64(f.geo.pageSize))
	if err != nil {
		return addFull(fmt.Errorf("extend %s by %d pages: %w", f.path, pages, err))
	}
	f.space.grow(pages)
	f.grown += pages
	f.pages.Store(f.space.pages)
	return nil
}

// Free releases an extent or a part of it. Before the call, the caller must publish a tree without the extent, so that
// new readers can no longer find it. Free must be called before the Checkpoint with the first Root that no longer
// refers to the extent. The pages are not reused until the checkpoint after that Checkpoint is durable and every Pin
// and Guard that may read them is released.
//
// If pages in the extent are not in use, the file fails (ErrFailed).
func (f *File) Free(ext Extent) {
	if f.writable() != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.freeLocked(ext)
}

func (f *File) freeLocked(ext Extent) {
	at, n := uint64(ext.First)-1, uint64(ext.Pages)
	if !ext.within(f.space.pages) || !f.space.isLive(at, n) {
		// later calls return the error
		_ = f.fail(fmt.Errorf("%w: free of extent %v, which is not entirely in use", ErrMisuse, ext))
		return
	}
	f.space.drop(at, n)
	f.pending.add(freed{at: at, n: n, born: ext.Born, epoch: f.building.Load()})
}

func (f *File) releaseFreedLocked() {
	f.pending.releaseFreed(f.older, f.readers.blocked(), func(q freed) { f.space.release(q.at, q.n) })
}

// WriteExtents writes adjacent extents, which are encoded in buf; the next Checkpoint makes them durable. It returns
// ErrMisuse for pages that a durable checkpoint may use and for unallocated pages. After another error the content of
// the pages is undefined; they can be written again, or freed.
func (f *File) WriteExtents(first No, buf []byte) error { return f.writeExtents(first, buf) }

// WritePieces is WriteExtents for one extent in several buffers, of which the first contains the header. It does not
// copy them.
func (f *File) WritePieces(ext Extent, pieces ...[]byte) error {
	if size := sizeOf(pieces); size != int(ext.Pages)*f.geo.pageSize {
		return fmt.Errorf("%w: extent %v written with %d bytes", ErrMisuse, ext, size)
	}
	return f.writeExtents(ext.First, pieces...)
}

func (f *File) writeExtents(first No, pieces ...[]byte) error {
	if err := f.writable(); err != nil {
		return err
	}
	size := sizeOf(pieces)
	if err := f.checkWrite(first, pieces[0], size); err != nil {
		return err
	}
	at := f.geo.offset(first)
	if err := f.writePages(at, pieces...); err != nil {
		return fmt.Errorf("write %d bytes at page %d of %s: %w", size, first, f.path, err)
	}
	if size >= writeBytes {
		writeBehind(f.file, byteRange{at, at + int64(size)})
	}
	return nil
}

func sizeOf(pieces [][]byte) (bytes int) {
	for _, p := range pieces {
		bytes += len(p)
	}
	return bytes
}

func (f *File) writePages(offset int64, pieces ...[]byte) error {
	f.writing.Lock()
	defer f.writing.Unlock()
	_, err := f.past.Write(f.file, offset, pieces...)
	return err
}

// checkWrite verifies the extent headers in buf, which is the first part of a write of sizeBytes, and records the
// write.
func (f *File) checkWrite(first No, buf []byte, sizeBytes int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	whole := byteRange{f.geo.offset(first), f.geo.offset(first) + int64(sizeBytes)}
	for len(buf) > 0 {
		h, err := PeekExtent(buf)
		if err != nil {
			return fmt.Errorf("%w: write to page %d without an extent header: %w", ErrMisuse, first, err)
		}
		size := uint64(h.Extent.Pages) * uint64(f.geo.pageSize)
		if h.Extent.First != first || size == 0 || size > uint64(sizeBytes) {
			return fmt.Errorf("%w: write of extent %v to page %d with %d bytes", ErrMisuse, h.Extent, first, sizeBytes)
		}
		if h.Extent.Born <= f.durable.Checkpoint || h.Extent.Born > f.building.Load() || !h.Extent.within(f.space.pages) ||
			!f.space.isLive(uint64(first)-1, uint64(h.Extent.Pages)) {
			return fmt.Errorf("%w: write of extent %v of checkpoint %d, which is not newly allocated", ErrMisuse,
				h.Extent, h.Extent.Born)
		}
		first, buf, sizeBytes = h.Extent.End(), buf[min(size, uint64(len(buf))):], sizeBytes-int(size)
	}
	f.written(whole)
	return nil
}

// WriteExtent encodes and writes one extent.
func (f *File) WriteExtent(ext Extent, kind Kind, payload []byte) error {
	buf, err := AppendExtent(nil, f.geo.pageSize, ext, kind, payload)
	if err != nil {
		return err
	}
	return f.WriteExtents(ext.First, buf)
}

// ReadExtent reads and verifies an extent. payload aliases buf if buf is large enough; otherwise, ReadExtent
// allocates memory. The error is a CorruptError, ErrClosed or a read error.
func (f *File) ReadExtent(ext Extent, buf []byte) (kind Kind, payload []byte, err error) {
	if !ext.within(f.pages.Load()) {
		return 0, nil, f.explain(&CorruptError{Reason: "reference to an extent outside the file"}, ext.First,
			f.geo.offset(ext.First))
	}
	size := int(ext.Pages) * f.geo.pageSize
	if cap(buf) < size {
		buf = make([]byte, size)
	}
	if err := f.ReadPages(ext.First, buf[:size]); err != nil {
		return 0, nil, err
	}
	return f.DecodeExtent(ext, buf[:size])
}

// ReadPages fills buf with whole pages, beginning with page first, without verification.
func (f *File) ReadPages(first No, buf []byte) error { return f.readPages(first, buf, f.file.ReadAt) }

func (f *File) readPages(first No, buf []byte, read func([]byte, int64) (int, error)) error {
	if f.closed.Load() {
		return ErrClosed
	}
	if first == 0 || len(buf)%f.geo.pageSize != 0 {
		return fmt.Errorf("%w: read of %d bytes at page %d", ErrMisuse, len(buf), first)
	}
	n, err := read(buf, f.geo.offset(first))
	if n == len(buf) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return &CorruptError{
			Path: f.path, Page: first, Offset: f.geo.offset(first),
			Reason: "file is truncated within the extent",
		}
	}
	return fmt.Errorf("read %d bytes at page %d of %s: %w", len(buf), first, f.path, err)
}

// DecodeExtent verifies an extent read by ReadPages; payload aliases b. The error is a CorruptError.
func (f *File) DecodeExtent(ext Extent, b []byte) (kind Kind, payload []byte, err error) {
	kind, payload, err = DecodeExtent(b, f.geo.pageSize, ext)
	if err != nil {
		err = f.explain(err, ext.First, f.geo.offset(ext.First))
		if fn := f.onCorruption.Load(); fn != nil {
			(*fn)(ext.First, err)
		}
		return 0, nil, err
	}
	return kind, payload, nil
}

// OnCorruption sets the function that ReadExtent and DecodeExtent call, from any goroutine, for an extent with invalid
// content. fn must not block.
func (f *File) OnCorruption(fn func(first No, err error)) { f.onCorruption.Store(&fn) }

// Stats contains the page counts of a file.
type Stats struct {
	Pages uint64
	Used  uint64
	// Pending pages are freed, but may still be read through a meta slot or by a reader.
	Pending      uint64
	Free         uint64
	PageSize     int
	Guards, Pins int
}

// Stats returns the counts for the checkpoint being built; for a file that is open read-only, the counts of its
// checkpoint.
func (f *File) Stats() Stats {
	guards, pins := f.readers.count()
	st := Stats{PageSize: f.geo.pageSize, Guards: guards, Pins: pins}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.space == nil {
		st.Pages, st.Used = f.durable.Pages, f.durable.UsedPages
		st.Free = st.Pages - st.Used
		return st
	}
	st.Pages, st.Used, st.Pending = f.space.pages, f.space.live, f.pending.pages
	st.Free = f.space.pages - f.space.busy
	return st
}
