// SPDX-License-Identifier: Apache-2.0

package vfs

import (
	"sync/atomic"
	"time"
	"unsafe"
)

// CacheUse selects whether writes go through the system's page cache.
type CacheUse int32

// UseCache writes through the page cache. AvoidCache uses direct I/O for large writes. FasterPath uses the faster of
// the two for large writes.
const (
	UseCache CacheUse = iota
	AvoidCache
	FasterPath
)

const (
	// bypassBytes is the minimum size of a write that can use direct I/O.
	bypassBytes = 128 << 10
	// bounceBytes is the size of the aligned buffer for unaligned data.
	bounceBytes = 1 << 20
	// retryAfter is the time after which the slower path is measured again.
	retryAfter = time.Second
)

// Bypass writes to files, and can use direct I/O for large writes. It must be used by one writer at a time.
//
// During a direct write, no other goroutine may write to the file through the page cache: if both writes change the
// same page, the next Sync fails.
type Bypass struct {
	use            atomic.Int32
	cached, direct cost
	retry          time.Time
	bounce         []byte
}

// cost is the recent time per written mebibyte; 0 if unknown.
type cost time.Duration

func (p *cost) took(n int, d time.Duration) {
	each := cost(d) * (1 << 20) / cost(n)
	if *p == 0 {
		*p = each
	}
	*p = max(*p+(each-*p)/4, 1)
}

// Use sets the mode for later writes. It may be called at any time.
func (b *Bypass) Use(use CacheUse) { b.use.Store(int32(use)) }

// Write is like f.WriteVec, but uses direct I/O for large writes if the mode selects it.
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
	if use == UseCache || use == FasterPath && !b.isDirect(now) {
		n, err := f.WriteVec(offset, bufs...)
		b.cached.took(total, time.Since(now))
		return n, err
	}
	n, err := b.writeDirect(f, c, offset, total, bufs)
	b.direct.took(total, time.Since(now))
	return n, err
}

// isDirect reports whether to use direct I/O. It selects the path that was faster recently, unless the other path
// must be measured.
func (b *Bypass) isDirect(now time.Time) bool {
	if b.direct == 0 || b.cached == 0 {
		return b.direct == 0
	}
	past := b.direct <= b.cached
	if now.Before(b.retry) {
		return past
	}
	b.retry = now.Add(retryAfter)
	if past {
		b.cached = 0
	} else {
		b.direct = 0
	}
	return !past
}

// writeDirect writes whole blocks with direct I/O, and the bytes before and after them through the page cache.
func (b *Bypass) writeDirect(f File, c Cached, offset int64, total int, bufs [][]byte) (int, error) {
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

// blocks returns the next bytes of v, at most limit, in aligned memory: in place, or copied.
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

type vector struct {
	bufs [][]byte
	skip int // consumed bytes of the first buffer
}

func (v *vector) peek() []byte {
	for len(v.bufs) > 0 && v.skip == len(v.bufs[0]) {
		v.bufs, v.skip = v.bufs[1:], 0
	}
	if len(v.bufs) == 0 {
		return nil
	}
	return v.bufs[0][v.skip:]
}

func (v *vector) next(limit int) []byte {
	p := v.peek()
	p = p[:min(limit, len(p))]
	v.skip += len(p)
	return p
}

func isAligned(p []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(p)))%sectorBytes == 0 //nolint:gosec // G103: only the address matters
}

// sectorBytes is the required alignment of memory for direct I/O; offsets are aligned to UncachedAlign.
const sectorBytes = 512
