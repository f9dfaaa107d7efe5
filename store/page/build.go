// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

// syncEveryBytes is the number of bytes that a Builder writes between two starts of writeback.
const syncEveryBytes = 4 << 20

// BuildOptions configures a Builder.
type BuildOptions struct {
	PageSize int
	StoreID  [16]byte
	// Checkpoint is the number of the file's only checkpoint. It must be larger than all numbers used before.
	Checkpoint uint64
	FileBytes  int64 // space to reserve; 0 reserves none
}

// Builder writes a new page file sequentially. Its memory use does not depend on the file size. Until Finish, Open
// rejects the file. A Builder is not safe for concurrent use.
type Builder struct {
	fsys  vfs.FS
	path  string
	file  vfs.File
	o     BuildOptions
	geo   geometry
	next  No
	first No // page of buf[0]
	buf   []byte
	past  vfs.Bypass // the file is not read before Finish
	sync  backgroundSync
}

// NewBuilder creates or truncates the file at path. It returns ErrFull if there is no space for FileBytes, and
// ErrPageSize or ErrMisuse for invalid options.
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

func (b *Builder) explain(what string, err error) error {
	return fmt.Errorf("build page file %s: %s: %w", b.path, what, addFull(err))
}

// PageSize returns the page size in bytes.
func (b *Builder) PageSize() int { return b.o.PageSize }

// Pages returns the number of allocated pages.
func (b *Builder) Pages() uint64 { return uint64(b.next) - 1 }

// Begin returns a buffer for the next extent. The caller appends the payload to it and passes it to End.
func (b *Builder) Begin() []byte { return append(b.buf, make([]byte, ExtentHeaderBytes)...) }

// End turns the payload appended to the buffer from Begin into an extent. Extents are buffered and written in large
// writes. After an error only Abort can be called.
func (b *Builder) End(buf []byte, kind Kind) (Extent, error) {
	start := len(b.buf)
	payload := len(buf) - start - ExtentHeaderBytes
	if payload < 0 {
		return Extent{}, fmt.Errorf("%w: End without Begin", ErrMisuse)
	}
	ext := Extent{First: b.next, Pages: PagesFor(b.o.PageSize, payload), Born: b.o.Checkpoint}
	if ext.Pages > MaxExtentPages || uint64(ext.End()) > b.geo.maxPages() {
		return Extent{}, fmt.Errorf("build page file %s: %w: extent %v", b.path, ErrFull, ext)
	}
	end := start + int(ext.Pages)*b.o.PageSize
	used := len(buf)
	buf = slices.Grow(buf, end-used)[:end]
	clear(buf[used:])
	SealExtent(buf[start:], ext, kind, payload)
	b.buf, b.next = buf, ext.End()
	if len(b.buf) < writeBytes {
		return ext, nil
	}
	return ext, b.flush()
}

// WriteNode implements tree.NodeWriter.
func (b *Builder) WriteNode(_ int, appendTo func(dst []byte) []byte) (Extent, error) {
	return b.End(appendTo(b.Begin()), KindNode)
}

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
		b.buf = nil // do not retain a buffer enlarged by one very large extent
	}
	if err := b.sync.wrote(n, b.geo.offset(b.next)); err != nil {
		return b.explain("sync", err)
	}
	return nil
}

// Finish makes the file durable under its name, with m as its only checkpoint, and closes it. It uses Position, Root,
// CreatedMS and AppData of m. After an error the Builder must not be used. The file is then removed if possible, unless
// closing it or syncing its directory failed.
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

func (b *Builder) complete(m Meta) error {
	if err := b.sync.wait(); err != nil {
		return b.explain("sync", err)
	}
	if err := b.file.Truncate(m.FileBytes()); err != nil {
		return b.explain("set length", err)
	}
	if err := b.file.Sync(); err != nil { // before the meta slots, which refer to these pages
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
		return b.explain("sync directory entry", err)
	}
	return nil
}

// writeBitmap writes the bitmap of used pages and its directory, and sets the fields of m that describe them.
func (b *Builder) writeBitmap(m *Meta) error {
	total, chunks, leaves := b.geo.withBitmap(b.Pages())
	m.Pages, m.UsedPages, m.leaves = total, total, make([]ref, 0, leaves)
	size := b.geo.chunkPages()
	sp := space{geo: b.geo} // only encodes the parts
	for i := range chunks {
		c := &chunk{live: make([]uint64, size/64)}
		setBits(c.live, 0, min(size, total-i*size))
		sp.chunks = []*chunk{c}
		ext, err := b.End(sp.chunkPayload(b.Begin(), 0), KindBitmap)
		if err != nil {
			return err
		}
		*c = chunk{at: ref{page: ext.First, born: ext.Born}}
	}
	first := b.next - No(chunks)
	for i := range leaves {
		sp.chunks = sp.chunks[:0]
		for n := min(chunks-i*b.geo.leafChunks(), b.geo.leafChunks()); n > 0; n-- {
			sp.chunks = append(sp.chunks, &chunk{at: ref{page: first, born: b.o.Checkpoint}})
			first++
		}
		ext, err := b.End(sp.leafPayload(b.Begin(), 0), KindBitmapDir)
		if err != nil {
			return err
		}
		m.leaves = append(m.leaves, ref{page: ext.First, born: ext.Born})
	}
	return nil
}

func (g geometry) withBitmap(pages uint64) (total, chunks, leaves uint64) {
	for total = pages; ; total = pages + chunks + leaves {
		chunks, leaves = g.chunksFor(total), g.leavesFor(total)
		if total == pages+chunks+leaves {
			return total, chunks, leaves
		}
	}
}

// BuiltSize returns the size of a file that a Builder writes. pages is the number of pages of the caller's extents,
// bitmap the number of bitmap and directory pages, and total the sum of both.
func BuiltSize(pageSize int, pages uint64) (total, bitmap uint64, fileBytes int64) {
	g := geometry{pageSize: pageSize}
	total, chunks, leaves := g.withBitmap(pages)
	return total, chunks + leaves, g.offset(No(total + 1))
}

// Abort cancels the build and removes the file. After Finish or Abort it does nothing.
func (b *Builder) Abort() {
	if b.file == nil {
		return
	}
	_ = b.sync.wait() // the file is discarded
	_ = b.file.Close()
	b.file, b.buf = nil, nil
	_ = vfs.RemoveLarge(b.fsys, b.path) // the next Open of the store removes it as well
}

// backgroundSync runs writeback concurrently with the writer. Before each writeback, the writer waits for the
// previous one.
type backgroundSync struct {
	file  vfs.File
	bytes int
	// dropped is the offset before which data was evicted from the page cache.
	dropped int64
	running sync.WaitGroup
	err     error // of the last writeback; valid after running.Wait
}

// wrote records n written bytes, which end at offset end. After syncEveryBytes, it waits for the previous writeback,
// and starts the next one or returns the error of the previous one.
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
			dropCache(s.file, byteRange{s.dropped, end})
			s.dropped = end
		}
	})
	return nil
}

func (s *backgroundSync) wait() error {
	s.running.Wait()
	return s.err
}
