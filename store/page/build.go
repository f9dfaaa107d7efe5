// SPDX-License-Identifier: Apache-2.0

package page

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

const (
	// syncEveryBytes is how much a Builder writes before that is handed to the disk. That goes on beside the writing, so
	// that neither a large heap of unwritten pages builds up in the system, behind which another file's sync would have
	// to wait, nor the last sync takes long. It is no sync, which would commit the filesystem's journal and empty the
	// disk's cache: other files' writes, and syncs, would wait for each of them.
	syncEveryBytes = 4 << 20
)

// BuildOptions are what NewBuilder needs to know.
type BuildOptions struct {
	// PageSize of the new file, in bytes.
	PageSize int
	// StoreID names the store that the file belongs to.
	StoreID [16]byte
	// Checkpoint is the number that the file's only checkpoint gets: larger than that of any before it.
	Checkpoint uint64
	// FileBytes is how large the file is expected to become; that much space is reserved. 0 reserves nothing.
	FileBytes int64
}

// Builder writes a new page file from its first page to its last, without a gap: the copy of another one's content.
// Its memory does not depend on how much it writes. Until Finish it is no page file: whatever interrupts the
// building, Open refuses what is there. It is for one goroutine.
type Builder struct {
	fsys  vfs.FS
	path  string
	file  vfs.File
	o     BuildOptions
	geo   geometry
	next  No         // of the run that Begin begins
	first No         // page at buf[0]
	buf   []byte     // runs that are complete and not written
	past  vfs.Bypass // the file is not read before it is finished
	sync  backgroundSync
}

// NewBuilder begins to build a file at path; what is under that name is dropped. It returns ErrFull if there is not
// enough space for FileBytes.
func NewBuilder(fsys vfs.FS, path string, o BuildOptions) (*Builder, error) {
	if err := CheckPageSize(o.PageSize); err != nil {
		return nil, err
	}
	if o.Checkpoint == 0 {
		return nil, fmt.Errorf("%w: checkpoint number 0", ErrMisuse)
	}
	file, err := fsys.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return nil, fmt.Errorf("build page file: %w", err)
	}
	b := &Builder{fsys: fsys, path: path, file: file, o: o, geo: geometry{pageSize: o.PageSize}, next: 1, first: 1}
	b.sync.file = file
	b.past.Use(vfs.AvoidCache)
	if o.FileBytes > 0 {
		if err := file.Allocate(0, o.FileBytes); err != nil {
			b.Abort()
			return nil, b.explain("reserve space", err)
		}
	}
	return b, nil
}

// explain adds ErrFull where the disk is.
func (b *Builder) explain(what string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG) {
		err = fmt.Errorf("%w: %w", ErrFull, err)
	}
	return fmt.Errorf("build page file %s: %s: %w", b.path, what, err)
}

// PageSize in bytes.
func (b *Builder) PageSize() int { return b.o.PageSize }

// Pages is how many pages were taken so far.
func (b *Builder) Pages() uint64 { return uint64(b.next) - 1 }

// Begin returns a buffer to whose end the payload of the next run is to be appended. The result belongs to the Builder
// again when it is given to End.
func (b *Builder) Begin() []byte { return append(b.buf, make([]byte, RunHeaderBytes)...) }

// End makes what was appended to the buffer that Begin returned the payload of a run in as many pages as it takes. The
// run is written now or later, in large pieces. After an error only Abort can be called.
func (b *Builder) End(buf []byte, kind Kind) (Run, error) {
	start := len(b.buf)
	payload := len(buf) - start - RunHeaderBytes
	if payload < 0 {
		return Run{}, fmt.Errorf("%w: End without Begin", ErrMisuse)
	}
	run := Run{First: b.next, Pages: PagesFor(b.o.PageSize, payload), Born: b.o.Checkpoint}
	if run.Pages > MaxRunPages || uint64(run.End()) > b.geo.maxPages() {
		return Run{}, fmt.Errorf("build page file %s: %w: run %v", b.path, ErrFull, run)
	}
	end := start + int(run.Pages)*b.o.PageSize
	used := len(buf)
	buf = slices.Grow(buf, end-used)[:end]
	clear(buf[used:])
	sealRun(buf[start:], run, kind, payload)
	b.buf, b.next = buf, run.End()
	if len(b.buf) < writeBytes {
		return run, nil
	}
	return run, b.flush()
}

// WriteNode is End for a tree's node (tree.NodeWriter).
func (b *Builder) WriteNode(_ int, appendTo func(dst []byte) []byte) (Run, error) {
	return b.End(appendTo(b.Begin()), KindNode)
}

// flush writes what is complete.
func (b *Builder) flush() error {
	if len(b.buf) == 0 {
		return nil
	}
	if _, err := b.past.Write(b.file, b.geo.offset(b.first), b.buf); err != nil {
		return b.explain("write", err)
	}
	b.first = b.next
	n := len(b.buf)
	if b.buf = b.buf[:0]; cap(b.buf) > 4*writeBytes {
		b.buf = nil // one very large run should not hold so much memory for good
	}
	if err := b.sync.wrote(n, b.geo.offset(b.next)); err != nil {
		return b.explain("sync", err)
	}
	return nil
}

// Finish writes the bitmap, makes the pages durable, then the file a page file with m as its only checkpoint, and
// closes it. Of m it takes Position, Root, CreatedMS and AppData. When it returns nil, all is durable, the name
// included. After an error the building is over, and the file removed.
func (b *Builder) Finish(m Meta) (Meta, error) {
	m.Checkpoint, m.PageSize, m.StoreID = b.o.Checkpoint, b.o.PageSize, b.o.StoreID
	err := b.writeBitmap(&m)
	if err == nil {
		err = b.flush()
	}
	if err == nil {
		err = b.complete(m)
	}
	if err != nil {
		b.Abort()
		return Meta{}, err
	}
	return m, nil
}

// complete makes the file durable under its name.
func (b *Builder) complete(m Meta) error {
	if err := b.sync.wait(); err != nil {
		return b.explain("sync", err)
	}
	if err := b.file.Truncate(m.FileBytes()); err != nil {
		return b.explain("set its length", err)
	}
	if err := b.file.Sync(); err != nil { // before the slots, which refer to what is synced here
		return b.explain("sync", err)
	}
	if err := writeIdentity(b.file, m); err != nil {
		return b.explain("write header and meta slots", err)
	}
	file := b.file
	b.file = nil
	if err := file.Close(); err != nil {
		return b.explain("close", err)
	}
	if err := b.fsys.SyncDir(filepath.Dir(b.path)); err != nil {
		return b.explain("make its name durable", err)
	}
	return nil
}

// writeBitmap puts the bitmap behind the other pages and fills in what m says of it.
func (b *Builder) writeBitmap(m *Meta) error {
	total, chunks, leaves := b.geo.withBitmap(b.Pages())
	m.Pages, m.UsedPages, m.leaves = total, total, make([]ref, 0, leaves)
	size := b.geo.chunkPages()
	sp := space{geo: b.geo} // encodes the parts, and nothing else
	for i := range chunks {
		c := &chunk{live: make([]uint64, size/64)}
		setBits(c.live, 0, min(size, total-i*size))
		sp.chunks = []*chunk{c}
		run, err := b.End(sp.chunkPayload(b.Begin(), 0), KindBitmap)
		if err != nil {
			return err
		}
		*c = chunk{at: ref{page: run.First, born: run.Born}}
	}
	first := b.next - No(chunks)
	for i := range leaves {
		sp.chunks = sp.chunks[:0]
		for n := min(chunks-i*b.geo.leafChunks(), b.geo.leafChunks()); n > 0; n-- {
			sp.chunks = append(sp.chunks, &chunk{at: ref{page: first, born: b.o.Checkpoint}})
			first++
		}
		run, err := b.End(sp.leafPayload(b.Begin(), 0), KindBitmapDir)
		if err != nil {
			return err
		}
		m.leaves = append(m.leaves, ref{page: run.First, born: run.Born})
	}
	return nil
}

// withBitmap returns how many pages a file has that consists of that many and the bitmap for all of them.
func (g geometry) withBitmap(pages uint64) (total, chunks, leaves uint64) {
	for total = pages; ; total = pages + chunks + leaves {
		chunks, leaves = g.chunksFor(total), g.leavesFor(total)
		if total == pages+chunks+leaves {
			return total, chunks, leaves
		}
	}
}

// BuiltSize returns how large a Builder makes a file of that many pages of runs: its pages, those of the bitmap among
// them, and its bytes.
func BuiltSize(pageSize int, pages uint64) (total, bitmap uint64, fileBytes int64) {
	g := geometry{pageSize: pageSize}
	total, chunks, leaves := g.withBitmap(pages)
	return total, chunks + leaves, g.offset(No(total + 1))
}

// Abort ends the building and removes what there is. It waits for a sync that is under way. After Finish or Abort it
// does nothing.
func (b *Builder) Abort() {
	if b.file == nil {
		return
	}
	_ = b.sync.wait()  // whatever became of it
	_ = b.file.Close() // nothing of it is wanted
	b.file, b.buf = nil, nil
	_ = vfs.RemoveLarge(b.fsys, b.path) // the next Open of the store drops it, too
}

// backgroundSync hands a file to the disk beside the goroutine that writes it, which is at most one piece ahead.
type backgroundSync struct {
	file  vfs.File
	bytes int // since the last piece began
	// what lies before it is not in the system's cache any more: a copy may be larger than memory, and is not read yet
	dropped int64
	running sync.WaitGroup
	err     error // of the last one; valid after running.Wait
}

// wrote hands over what was written if it is time. It returns the error of the time before.
func (s *backgroundSync) wrote(n int, end int64) error {
	if s.bytes += n; s.bytes < syncEveryBytes {
		return nil
	}
	if err := s.wait(); err != nil {
		return err
	}
	s.bytes = 0
	s.running.Go(func() {
		if s.err = s.file.SyncRange(s.dropped, end-s.dropped); s.err == nil {
			dropCache(s.file, stretch{s.dropped, end})
			s.dropped = end
		}
	})
	return nil
}

func (s *backgroundSync) wait() error {
	s.running.Wait()
	return s.err
}
