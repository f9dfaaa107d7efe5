// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

type byteRange struct{ from, to int64 }

// maxByteRanges limits the number of recorded ranges for each checkpoint; later writes stay in the page cache.
const maxByteRanges = 1 << 16

// written records a write for evictFresh. The caller must hold mu.
func (f *File) written(s byteRange) {
	if n := len(f.fresh); n > 0 && f.fresh[n-1].to == s.from {
		f.fresh[n-1].to = s.to
	} else if n < maxByteRanges {
		f.fresh = append(f.fresh, s)
	}
}

// UseCache selects whether large extent writes go through the page cache; the default is vfs.UseCache. Small writes
// always go through the cache. With vfs.AvoidCache, their data is evicted when a checkpoint has made it durable.
func (f *File) UseCache(use vfs.CacheUse) {
	f.past.Use(use)
	f.drops.Store(use == vfs.AvoidCache)
}

// evictFresh evicts the data of a durable checkpoint from the page cache, if writes avoid the cache (UseCache).
func (f *File) evictFresh(fresh []byteRange) {
	if !f.drops.Load() {
		return
	}
	slices.SortFunc(fresh, func(a, b byteRange) int { return cmp.Compare(a.from, b.from) })
	for i := 0; i < len(fresh); {
		s := fresh[i]
		for i++; i < len(fresh) && fresh[i].from <= s.to; i++ {
			s.to = max(s.to, fresh[i].to)
		}
		dropCache(f.file, s)
	}
}

func dropCache(file vfs.File, s byteRange) {
	if c, ok := file.(vfs.Cached); ok {
		c.DropCache(s.from, s.to-s.from)
	}
}

// writeBehind starts writeback of a range that will be synced later.
func writeBehind(file vfs.File, s byteRange) {
	if c, ok := file.(vfs.Cached); ok {
		c.WriteBehind(s.from, s.to-s.from)
	}
}

// HasCache reports whether the page cache can be controlled (vfs.Cached).
func (f *File) HasCache() bool {
	_, ok := f.file.(vfs.Cached)
	return ok
}

// IsCached reports whether almost all bytes of a range, which begins at page first, are in the page cache. known is
// false if this cannot be determined.
func (f *File) IsCached(first No, bytes int64) (yes, known bool) {
	c, ok := f.file.(vfs.Cached)
	if !ok || f.closed.Load() || first == 0 {
		return false, false
	}
	n, known := c.CachedBytes(f.geo.offset(first), bytes)
	return n >= bytes-bytes/16, known // one missing cache page does not justify a disk read
}

// cachedAhead is the distance, in bytes, that CachedAhead checks. It must exceed the kernel's readahead.
const cachedAhead = 64 << 20

// CachedAhead reports whether the data from a page on seems to be in the page cache beyond the kernel's readahead. It
// checks samples within cachedAhead bytes, up to the end of the file. known is false if this cannot be determined.
func (f *File) CachedAhead(first No) (yes, known bool) {
	const look, step = 64 << 10, cachedAhead / 4
	size := int64(f.geo.pageSize)
	end := int64(f.pages.Load()) * size
	for at := int64(first-1) * size; at < int64(first-1)*size+cachedAhead; at += step {
		n := min(look, end-at)
		if n <= 0 {
			break
		}
		if yes, known := f.IsCached(No(at/size)+1, n); !yes {
			return false, known
		}
	}
	return true, true
}

// ReadExactly is ReadPages without kernel readahead, if the system supports that.
func (f *File) ReadExactly(first No, buf []byte) error {
	c, ok := f.file.(vfs.Cached)
	if !ok {
		return f.ReadPages(first, buf)
	}
	return f.readPages(first, buf, c.ReadExactly)
}

// ReadOnce is ReadPages for a scan of the whole file. If the system reports which data is cached, ReadOnce adds
// almost no data to the page cache. See ReadUncached for room and the result.
func (f *File) ReadOnce(first No, bytes int, room []byte) ([]byte, error) {
	if cached, known := f.IsCached(first, int64(bytes)); cached || !known {
		return room[:bytes], f.ReadPages(first, room[:bytes])
	}
	return f.ReadUncached(first, bytes, room)
}

// UncachedRoom is the extra buffer size that ReadUncached needs.
const UncachedRoom = 2 * vfs.UncachedAlign

// ReadUncached is like ReadPages, but bypasses the page cache if possible. It returns the pages as a slice of room, a
// vfs.AlignedBlock with UncachedRoom more bytes than the pages.
func (f *File) ReadUncached(first No, bytes int, room []byte) ([]byte, error) {
	c, ok := f.file.(vfs.Cached)
	if !ok || first == 0 {
		return room[:bytes], f.ReadPages(first, room[:bytes])
	}
	const align = vfs.UncachedAlign
	begin := f.geo.offset(first)
	from := begin - begin%align
	to := (begin + int64(bytes) + align - 1) / align * align
	if to-from > int64(len(room)) {
		return nil, fmt.Errorf("%w: read of %d bytes at page %d into %d", ErrMisuse, bytes, first, len(room))
	}
	skip := int(begin - from)
	pages := room[skip : skip+bytes]
	return pages, f.readPages(first, pages, func([]byte, int64) (int, error) {
		n, err := c.ReadUncached(room[:to-from], from)
		return min(max(n-skip, 0), bytes), err
	})
}
