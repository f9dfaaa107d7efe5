// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"slices"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

// The system keeps what was written in its page cache, for readers. Where there are none, as on a standby, that
// takes memory from other uses, and the memory must first be found: on a virtual machine whose host takes back
// what lay idle, writing to a page that is new to the cache takes some twenty times as long as writing to one that has
// just become free.

// stretch is a part of the file, in bytes.
type stretch struct{ from, to int64 }

// maxStretches bounds what is remembered of what was written; the rest stays in the system's cache.
const maxStretches = 1 << 16

// written notes what was written since the last checkpoint began. mu is held.
func (f *File) written(s stretch) {
	if n := len(f.fresh); n > 0 && f.fresh[n-1].to == s.from {
		f.fresh[n-1].to = s.to
	} else if n < maxStretches {
		f.fresh = append(f.fresh, s)
	}
}

// UseCache says whether what a checkpoint writes goes through the system's cache, as it does until told otherwise. With
// vfs.AvoidCache what has to (small pieces) leaves it once it is durable.
func (f *File) UseCache(use vfs.CacheUse) {
	f.past.Use(use)
	f.drops.Store(use == vfs.AvoidCache)
}

// dropFresh has the system forget what a checkpoint wrote, which is on the disk now.
func (f *File) dropFresh(fresh []stretch) {
	if !f.drops.Load() {
		return
	}
	slices.SortFunc(fresh, func(a, b stretch) int { return int(min(max(a.from-b.from, -1), 1)) })
	for i := 0; i < len(fresh); {
		s := fresh[i]
		for i++; i < len(fresh) && fresh[i].from <= s.to; i++ {
			s.to = max(s.to, fresh[i].to)
		}
		dropCache(f.file, s)
	}
}

// dropCache has the system forget what it holds of a part of a file.
func dropCache(file vfs.File, s stretch) {
	if c, ok := file.(vfs.Cached); ok {
		c.DropCache(s.from, s.to-s.from)
	}
}

// writeBehind has the system begin to write what will be synced later: a sync that finds little to write holds up those
// of the log on the same disk for less long.
func writeBehind(file vfs.File, s stretch) {
	if c, ok := file.(vfs.Cached); ok {
		c.WriteBehind(s.from, s.to-s.from)
	}
}

// HasCache tells whether the system's cache can be controlled (vfs.Cached).
func (f *File) HasCache() bool {
	_, ok := f.file.(vfs.Cached)
	return ok
}

// IsCached tells whether the system holds all of some pages; known is false where it does not say.
func (f *File) IsCached(first No, bytes int64) (yes, known bool) {
	c, ok := f.file.(vfs.Cached)
	if !ok || f.closed.Load() || first == 0 {
		return false, false
	}
	n, known := c.CachedBytes(f.geo.offset(first), bytes)
	return n >= bytes-bytes/16, known // one page of the system's more or less is no reason to go to the disk
}

// cachedAhead is how far ahead, in bytes, CachedAhead looks: further than a system reads by itself, which is up to
// twice what it is set to (read_ahead_kb of the disk: mostly 128, but 8192 was seen).
const cachedAhead = 64 << 20

// CachedAhead tells whether the system seems to hold what lies behind a page, and not merely what it has read ahead by
// itself, which looks the same to a reader that is always right behind. It looks here and there. known is false where
// the system does not say.
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

// ReadExactly is ReadPages that has the system read nothing else: for a reader that does not go on behind, or reads
// ahead by other means.
func (f *File) ReadExactly(first No, buf []byte) error {
	c, ok := f.file.(vfs.Cached)
	if !ok {
		return f.ReadPages(first, buf)
	}
	return f.readPages(first, buf, c.ReadExactly)
}

// ReadOnce is ReadPages for a walk through the whole file: what the system does not have in its cache is not put
// there, where it would drive out what consumers read. It returns the pages; room is as for ReadUncached.
func (f *File) ReadOnce(first No, bytes int, room []byte) ([]byte, error) {
	if cached, known := f.IsCached(first, int64(bytes)); cached || !known {
		return room[:bytes], f.ReadPages(first, room[:bytes])
	}
	return f.ReadUncached(first, bytes, room)
}

// UncachedRoom is how much longer the memory must be that ReadUncached reads into than what it reads.
const UncachedRoom = 2 * vfs.UncachedAlign

// ReadUncached is ReadPages that leaves nothing in the system's cache where that is possible. It returns the pages,
// which are somewhere in room: a vfs.AlignedBlock with UncachedRoom more bytes than they have.
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
