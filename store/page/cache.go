package page

import (
	"slices"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

// The system keeps what was written in its page cache, for whoever reads it. Where nobody will, as on a standby, that takes memory from
// those who need it, and the memory must first be found: on a virtual machine whose host takes back what lay idle, writing to a page that
// is new to the cache takes some twenty times as long as writing to one that has just become free.

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

// KeepCached says whether what a checkpoint wrote is to stay in the system's cache once it is durable. It is, until told otherwise.
func (f *File) KeepCached(on bool) { f.uncached.Store(!on) }

// DropCached has the system forget what it holds of the pages from first on, unless KeepCached says otherwise. It is a hint, for what was
// read and will not be read again.
func (f *File) DropCached(first No, bytes int64) {
	if f.uncached.Load() && !f.closed.Load() {
		dropCache(f.file, stretch{f.geo.offset(first), f.geo.offset(first) + bytes})
	}
}

// dropFresh has the system forget what a checkpoint wrote, which is on the disk now.
func (f *File) dropFresh(fresh []stretch) {
	if !f.uncached.Load() {
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
	if c, ok := file.(vfs.CacheControl); ok {
		c.DropCache(s.from, s.to-s.from)
	}
}

// writeBehind has the system begin to write what will be synced later: a sync that finds little to write holds up those of the log on the
// same disk for less long.
func writeBehind(file vfs.File, s stretch) {
	if c, ok := file.(vfs.CacheControl); ok {
		c.WriteBehind(s.from, s.to-s.from)
	}
}
