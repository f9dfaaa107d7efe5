// SPDX-License-Identifier: Apache-2.0

package page

import (
	"errors"
	"fmt"
	"io"
	"syscall"
)

// How the file grows, in bytes: by as much as it has grown since it was opened, within these limits, and by no more
// than an eighth of what it has. A file that was just rewritten or shrunk to save space is not made an eighth larger
// for its first new page.
const (
	minGrowBytes = 1 << 20
	maxGrowBytes = 256 << 20
)

// Alloc hands out a run of neighbouring pages, whose content is undefined until it is written. The run belongs to the
// checkpoint that is being built: it must be reachable from the Root of the next Checkpoint, or freed before that. It
// returns ErrFull, ErrFailed, ErrReadOnly or ErrClosed.
func (f *File) Alloc(pages uint32) (Run, error) {
	runs, err := f.AllocRuns([]uint32{pages})
	if err != nil {
		return Run{}, err
	}
	return runs[0], nil
}

// AllocRuns hands out one run for each of the sizes (in pages), next to each other as far as the free space allows, so
// that they can be written with few large writes. On an error none is handed out. Otherwise it is like Alloc.
func (f *File) AllocRuns(pages []uint32) ([]Run, error) {
	if err := f.writable(); err != nil {
		return nil, err
	}
	var total uint64
	for _, n := range pages {
		if n == 0 || n > MaxRunPages {
			return nil, fmt.Errorf("%w: a run of %d pages", ErrMisuse, n)
		}
		total += uint64(n)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	runs, err := f.allocLocked(make([]Run, 0, len(pages)), pages, total)
	if err != nil {
		for _, r := range runs {
			f.freeLocked(r)
		}
		return nil, fmt.Errorf("allocate %d pages: %w", total, err)
	}
	return runs, nil
}

// allocLocked takes one stretch for all of the runs if there is one, and otherwise for each half of them.
func (f *File) allocLocked(dst []Run, pages []uint32, total uint64) ([]Run, error) {
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
			dst = append(dst, Run{First: No(at + 1), Pages: n, Born: f.building.Load()})
			at += uint64(n)
		}
		return dst, nil
	}
	if len(pages) == 1 {
		return dst, fmt.Errorf("%w: no %d neighbouring pages", ErrFull, total) // cannot be: there was room made
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

// makeRoom lets find succeed: with pages that readers have let go of in the meantime, or with a larger file.
func (f *File) makeRoom(pages uint64) error {
	if f.readers.left.Load() {
		f.sweepLocked()
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

// growLocked makes the file longer.
func (f *File) growLocked(pages uint64) error {
	err := f.file.Allocate(f.geo.offset(No(f.space.pages+1)), int64(pages)*int64(f.geo.pageSize))
	if err != nil {
		err = fmt.Errorf("enlarge %s by %d pages: %w", f.path, pages, err)
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG) {
			err = fmt.Errorf("%w: %w", ErrFull, err)
		}
		return err
	}
	f.space.grow(pages)
	f.grown += pages
	f.pages.Store(f.space.pages)
	return nil
}

// Free gives a run back, or a part of one. Call it when no reader can newly find a way to the run any more (the tree's
// View without it is published), and before the Checkpoint whose Root does not refer to it. The pages are not reused
// until the checkpoint after that is durable and until every Pin and Guard is released that may still look at them.
//
// Pages that are not in use cannot be freed; an attempt is a bug that would destroy data, and makes the file fail.
func (f *File) Free(run Run) {
	if f.writable() != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.freeLocked(run)
}

func (f *File) freeLocked(run Run) {
	at, n := uint64(run.First)-1, uint64(run.Pages)
	if !run.within(f.space.pages) || !f.space.isLive(at, n) {
		// the next call returns it
		_ = f.fail(fmt.Errorf("%w: run %v is freed, but not all of it is in use", ErrMisuse, run))
		return
	}
	f.space.drop(at, n)
	f.pending.add(freed{at: at, n: n, born: run.Born, epoch: f.building.Load()})
}

// sweepLocked makes pages reusable that no reader can look at any more.
func (f *File) sweepLocked() {
	f.pending.sweep(f.older, f.readers.blocked(), func(q freed) { f.space.release(q.at, q.n) })
}

// Encode appends the bytes of a run to dst, for WriteRuns. It returns ErrMisuse if the payload does not fit.
func (f *File) Encode(dst []byte, run Run, kind Kind, payload []byte) ([]byte, error) {
	return AppendRun(dst, f.geo.pageSize, run, kind, payload)
}

// WriteRuns writes neighbouring runs, which Encode put into buf one after the other, with one write. They are durable
// after the next Checkpoint. It refuses with ErrMisuse to write where a durable checkpoint may look, or to pages that
// are not allocated. After another error the content of the pages is undefined; they can be written again, or freed.
func (f *File) WriteRuns(first No, buf []byte) error { return f.writeRuns(first, buf) }

// WritePieces is WriteRuns for one run whose bytes are in pieces, so that a large payload is written from where it is.
// The first piece has the run's header.
func (f *File) WritePieces(run Run, pieces ...[]byte) error {
	if size := sizeOf(pieces); size != int(run.Pages)*f.geo.pageSize {
		return fmt.Errorf("%w: run %v is to be written with %d bytes", ErrMisuse, run, size)
	}
	return f.writeRuns(run.First, pieces...)
}

// writeRuns writes neighbouring runs that are in one piece, or one that is in several.
func (f *File) writeRuns(first No, pieces ...[]byte) error {
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
		writeBehind(f.file, stretch{at, at + int64(size)})
	}
	return nil
}

func sizeOf(pieces [][]byte) (bytes int) {
	for _, p := range pieces {
		bytes += len(p)
	}
	return bytes
}

// writePages writes past the system's cache if that is wanted.
func (f *File) writePages(offset int64, pieces ...[]byte) error {
	f.writing.Lock()
	defer f.writing.Unlock()
	_, err := f.past.Write(f.file, offset, pieces...)
	return err
}

// checkWrite looks at the runs in buf before they are written. They have sizeBytes; the header of one that has more
// than buf is in buf.
func (f *File) checkWrite(first No, buf []byte, sizeBytes int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	whole := stretch{f.geo.offset(first), f.geo.offset(first) + int64(sizeBytes)}
	for len(buf) > 0 {
		h, err := PeekRun(buf)
		if err != nil {
			return fmt.Errorf("%w: page %d is to be written without a run's header: %w", ErrMisuse, first, err)
		}
		size := uint64(h.Run.Pages) * uint64(f.geo.pageSize)
		if h.Run.First != first || size == 0 || size > uint64(sizeBytes) {
			return fmt.Errorf("%w: run %v is to be written to page %d with %d bytes", ErrMisuse, h.Run, first, sizeBytes)
		}
		if h.Run.Born <= f.durable.Checkpoint || h.Run.Born > f.building.Load() || !h.Run.within(f.space.pages) ||
			!f.space.isLive(uint64(first)-1, uint64(h.Run.Pages)) {
			return fmt.Errorf("%w: run %v of checkpoint %d is to be written, but it is not newly allocated", ErrMisuse,
				h.Run, h.Run.Born)
		}
		first, buf, sizeBytes = h.Run.End(), buf[min(size, uint64(len(buf))):], sizeBytes-int(size)
	}
	f.written(whole)
	return nil
}

// WriteRun encodes and writes one run. See WriteRuns.
func (f *File) WriteRun(run Run, kind Kind, payload []byte) error {
	buf, err := f.Encode(nil, run, kind, payload)
	if err != nil {
		return err
	}
	return f.WriteRuns(run.First, buf)
}

// ReadRun reads and verifies a run. It uses buf if that is large enough; payload aliases it. It returns a DamagedError
// if the pages do not hold what was written to this run, ErrClosed, or what the file system says.
func (f *File) ReadRun(run Run, buf []byte) (kind Kind, payload []byte, err error) {
	if !run.within(f.pages.Load()) {
		return 0, nil, f.explain(&DamagedError{Reason: "a reference to a run outside of the file"}, run.First,
			f.geo.offset(run.First))
	}
	size := int(run.Pages) * f.geo.pageSize
	if cap(buf) < size {
		buf = make([]byte, size)
	}
	if err := f.ReadPages(run.First, buf[:size]); err != nil {
		return 0, nil, err
	}
	return f.DecodeRun(run, buf[:size])
}

// ReadPages fills buf, a whole number of pages, from page first on, without verifying anything: for several
// neighbouring runs at once, each then decoded with DecodeRun, or for a copy of the file.
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
		return &DamagedError{
			Path: f.path, Page: first, Offset: f.geo.offset(first),
			Reason: "the file ends before the end of the run",
		}
	}
	return fmt.Errorf("read %d bytes at page %d of %s: %w", len(buf), first, f.path, err)
}

// DecodeRun verifies the bytes of a run that ReadPages read; payload aliases b. It returns a DamagedError.
func (f *File) DecodeRun(run Run, b []byte) (kind Kind, payload []byte, err error) {
	kind, payload, err = DecodeRun(b, f.geo.pageSize, run)
	if err != nil {
		err = f.explain(err, run.First, f.geo.offset(run.First))
		if fn := f.onDamage.Load(); fn != nil {
			(*fn)(run.First, err)
		}
		return 0, nil, err
	}
	return kind, payload, nil
}

// OnDamage has fn called, from whatever goroutine it is, whenever a run turns out to be damaged when it is read. fn
// must be quick.
func (f *File) OnDamage(fn func(first No, err error)) { f.onDamage.Store(&fn) }

// Stats says how full the file is. All counts are in pages.
type Stats struct {
	// Pages that the file has room for.
	Pages uint64
	// Used by the checkpoint that is being built.
	Used uint64
	// Pending pages are not used any more, but held back for the last checkpoints and for readers.
	Pending uint64
	// Free pages, ready for use.
	Free uint64
	// PageSize in bytes.
	PageSize int
	// Guards and Pins that are held.
	Guards, Pins int
}

// Stats returns the current figures. Of a file that is open read-only, those of its checkpoint.
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
