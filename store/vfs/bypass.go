// SPDX-License-Identifier: Apache-2.0

package vfs

import (
	"sync/atomic"
	"time"
	"unsafe"
)

// CacheUse says whether what is written goes through the system's cache.
type CacheUse int32

const (
	// UseCache writes through the system's cache, where readers find it.
	UseCache CacheUse = iota
	// AvoidCache writes past it.
	AvoidCache
	// FasterWay does either, whichever takes less time.
	FasterWay
)

const (
	// bypassBytes is the least that is written past the cache: the disk takes some 100 µs for a write, however small.
	bypassBytes = 128 << 10
	// bounceBytes is how much is copied to where the disk can take it from, at once.
	bounceBytes = 1 << 20
	// retryAfter is how long the way that was slower is left alone.
	retryAfter = time.Second
)

// Bypass writes to files, and goes past the system's cache with what is large, for one writer at a time.
//
// A cache is of no use for what is not read back soon, and it is not free: each page of it has to be found, filled by a
// copy, and written to the disk later, all of it by processors that have other things to do. On a virtual machine whose
// host takes back memory that lay idle, the finding alone takes twenty times as long as the copy. What a disk fetches
// by itself costs next to nothing.
//
// While a write past the cache is under way, no other goroutine may write to that file through the cache: the system
// could not tell which of the two is right where they share a page, and fails the next Sync.
type Bypass struct {
	use           atomic.Int32
	through, past cost
	// retry is when the slower way is tried again.
	retry  time.Time
	bounce []byte
}

// cost is how long a mebibyte took lately; 0 if it is not known.
type cost time.Duration

// took learns from n bytes that took d.
func (p *cost) took(n int, d time.Duration) {
	each := cost(d) * (1 << 20) / cost(n)
	if *p == 0 {
		*p = each
	}
	*p = max(*p+(each-*p)/4, 1)
}

// Use says what to do from now on. Unlike Write it may be called at any time.
func (b *Bypass) Use(use CacheUse) { b.use.Store(int32(use)) }

// Write is File.WriteVec.
func (b *Bypass) Write(f File, offset int64, bufs ...[]byte) (int, error) {
	total := 0
	for _, p := range bufs {
		total += len(p)
	}
	c, ok := f.(Cached)
	if !ok || total < bypassBytes {
		return f.WriteVec(offset, bufs...)
	}
	use := CacheUse(b.use.Load())
	now := time.Now()
	if use == UseCache || use == FasterWay && !b.goesPast(now) {
		n, err := f.WriteVec(offset, bufs...)
		b.through.took(total, time.Since(now))
		return n, err
	}
	n, err := b.writePast(f, c, offset, total, bufs)
	b.past.took(total, time.Since(now))
	return n, err
}

// goesPast tells whether to go past the cache: if that took less time lately, or if it is time to find out whether it
// would. What is tried again is judged anew.
func (b *Bypass) goesPast(now time.Time) bool {
	if b.past == 0 || b.through == 0 {
		return b.past == 0
	}
	past := b.past <= b.through
	if now.Before(b.retry) {
		return past
	}
	b.retry = now.Add(retryAfter)
	if past {
		b.through = 0
	} else {
		b.past = 0
	}
	return !past
}

// writePast writes whole blocks past the cache, and what lies before and behind them through it.
func (b *Bypass) writePast(f File, c Cached, offset int64, total int, bufs [][]byte) (int, error) {
	v := vector{bufs: bufs}
	done := 0
	write := func(p []byte, to func(p []byte, offset int64) (int, error)) error {
		n, err := to(p, offset+int64(done))
		done += n
		return err
	}
	head := min(int(-offset&(UncachedAlign-1)), total)
	whole := head + (total-head)/UncachedAlign*UncachedAlign
	for done < total {
		var err error
		switch {
		case done < head:
			err = write(v.next(head-done), f.WriteAt)
		case done < whole:
			err = write(b.blocks(&v, whole-done), c.WriteUncached)
		default:
			err = write(v.next(total-done), f.WriteAt)
		}
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// blocks returns the next bytes of v, limit at most, where the disk can take them from: as they are, or copied.
func (b *Bypass) blocks(v *vector, limit int) []byte {
	if p := v.peek(); isAligned(p) && min(len(p), limit) >= UncachedAlign {
		return v.next(min(len(p), limit) / UncachedAlign * UncachedAlign)
	}
	if b.bounce == nil {
		b.bounce = AlignedBlock(bounceBytes)
	}
	out := b.bounce[:min(limit, bounceBytes)]
	for rest := out; len(rest) > 0; {
		rest = rest[copy(rest, v.next(len(rest))):]
	}
	return out
}

// vector goes over some buffers from the first byte to the last.
type vector struct {
	bufs [][]byte
	skip int // of the first one
}

// peek returns what is left of the next buffer, which is not empty unless nothing is left.
func (v *vector) peek() []byte {
	for len(v.bufs) > 0 && v.skip == len(v.bufs[0]) {
		v.bufs, v.skip = v.bufs[1:], 0
	}
	if len(v.bufs) == 0 {
		return nil
	}
	return v.bufs[0][v.skip:]
}

// next returns the next bytes, limit at most, as far as they lie together.
func (v *vector) next(limit int) []byte {
	p := v.peek()
	p = p[:min(limit, len(p))]
	v.skip += len(p)
	return p
}

// isAligned tells whether the disk can take p from where it is.
func isAligned(p []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(p)))%sectorBytes == 0 //nolint:gosec // G103: only the address matters
}

// sectorBytes is what memory must be aligned to that a disk writes from or reads into; offsets are aligned to
// UncachedAlign.
const sectorBytes = 512
