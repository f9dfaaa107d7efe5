// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/binary"
	"fmt"
)

// space is the allocator. It uses zero-based page indexes: page number - 1.
//
// There are two bits per page. The bit in live, which is stored in the file, is set if the checkpoint being built
// refers to the page. The bit in busy is set if the page must not be allocated: it is live, was live recently, or
// does not exist. Alloc sets both bits, Free clears live, and the page is reusable once busy is cleared.
//
// The bits are kept in chunks, each with as many bits as one bitmap page.
type space struct {
	geo    geometry
	pages  uint64
	chunks []*chunk
	leaves []leaf
	live   uint64
	busy   uint64 // without nonexistent pages
	cursor uint64 // where a search begins: after the last allocation
	noFit  uint64 // no free range has this length or more; 0: unknown
}

type chunk struct {
	live, busy []uint64
	liveCount  uint64
	busyCount  uint64 // including nonexistent pages
	longest    uint64 // no free range inside this chunk is longer
	at         ref    // zero before its first checkpoint
	dirty      bool   // the next checkpoint must write the chunk
}

type leaf struct {
	at    ref
	dirty bool
}

func newSpace(pageSize int) *space { return &space{geo: geometry{pageSize: pageSize}} }

func (s *space) grow(pages uint64) {
	size := s.geo.chunkPages()
	for from, to := s.pages, s.pages+pages; from < to; {
		if from%size == 0 {
			c := &chunk{live: make([]uint64, size/64), busy: make([]uint64, size/64), busyCount: size}
			setBits(c.busy, 0, size)
			s.chunks = append(s.chunks, c)
		}
		c, off := s.chunks[from/size], from%size
		n := min(to-from, size-off)
		clearBits(c.busy, off, n)
		c.busyCount -= n
		c.longest = size
		from += n
	}
	s.pages += pages
	for uint64(len(s.leaves)) < s.geo.leavesFor(s.pages) {
		s.leaves = append(s.leaves, leaf{})
	}
	s.noFit = 0
}

func (s *space) find(n uint64) (uint64, bool) {
	if n == 0 || n > s.pages-s.busy || (s.noFit != 0 && n >= s.noFit) {
		return 0, false
	}
	at, ok := s.search(n, s.cursor, s.pages)
	if !ok {
		at, ok = s.search(n, 0, min(s.cursor+n-1, s.pages))
	}
	if !ok {
		s.noFit = n
	}
	return at, ok
}

func (s *space) search(n, from, to uint64) (uint64, bool) {
	size := s.geo.chunkPages()
	var run uint64 // free pages directly before pos, not before from
	for pos := from; pos < to; {
		c, base := s.chunks[pos/size], pos/size*size
		off, end := pos-base, min(to-base, size)
		whole := off == 0 && end == size
		switch {
		case whole && c.busyCount == size:
			run = 0
		case whole && c.busyCount > 0 && c.longest < n && run+nextBit(c.busy, 0, size) < n:
			run = clearTail(c.busy, size)
		default:
			at, left, longest := c.search(n, run, off, end)
			if at < end {
				return base + at - left, true
			}
			if whole {
				c.longest = longest
			}
			run = left
		}
		pos = base + end
	}
	return 0, false
}

// search searches [off, end) for a free range of n pages. The run pages directly before off are free and can be the
// beginning of that range. If a range is found, it begins left pages before at, and at is less than end. Otherwise
// at is end, left is the number of free pages directly before end, and longest is the length of the longest free
// range in [off, end).
func (c *chunk) search(n, run, off, end uint64) (at, left, longest uint64) {
	for i := off; i < end; {
		stop := nextBit(c.busy, i, end)
		if stop > i && run+stop-i >= n {
			return i, run, 0
		}
		longest = max(longest, stop-i)
		run += stop - i
		if stop == end {
			break
		}
		i, run = nextClear(c.busy, stop, end), 0
	}
	return end, run, longest
}

func (s *space) each(at, n uint64, fn func(c *chunk, off, n uint64)) {
	size := s.geo.chunkPages()
	for end := at + n; at < end; {
		off := at % size
		count := min(end-at, size-off)
		fn(s.chunks[at/size], off, count)
		at += count
	}
}

func (s *space) take(at, n uint64) {
	s.each(at, n, func(c *chunk, off, n uint64) {
		setBits(c.live, off, n)
		setBits(c.busy, off, n)
		c.liveCount += n
		c.busyCount += n
		c.dirty = true
	})
	s.live += n
	s.busy += n
	s.cursor = at + n
}

func (s *space) isLive(at, n uint64) bool {
	if at+n > s.pages || at+n < at {
		return false
	}
	live := true
	s.each(at, n, func(c *chunk, off, n uint64) { live = live && allSet(c.live, off, n) })
	return live
}

// drop clears the live bits of a range of zero-based pages; the pages stay busy.
func (s *space) drop(at, n uint64) {
	s.each(at, n, func(c *chunk, off, n uint64) {
		clearBits(c.live, off, n)
		c.liveCount -= n
		c.dirty = true
	})
	s.live -= n
}

func (s *space) release(at, n uint64) {
	s.each(at, n, func(c *chunk, off, n uint64) {
		clearBits(c.busy, off, n)
		c.busyCount -= n
		c.longest = s.geo.chunkPages()
	})
	s.busy -= n
	s.noFit = 0
}

func (s *space) chunkPayload(dst []byte, index int) []byte {
	for _, w := range s.chunks[index].live {
		dst = binary.LittleEndian.AppendUint64(dst, w)
	}
	return dst
}

func (s *space) leafPayload(dst []byte, index int) []byte {
	first := index * int(s.geo.leafChunks())
	for _, c := range s.chunks[first:min(first+int(s.geo.leafChunks()), len(s.chunks))] {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(c.at.page))
		dst = binary.LittleEndian.AppendUint64(dst, c.at.born)
	}
	return dst
}

func decodeLeaf(payload []byte, chunks int, pages uint64) ([]ref, error) {
	if len(payload) != chunks*16 {
		return nil, &CorruptError{Reason: fmt.Sprintf("bitmap directory of %d bytes, expected %d", len(payload),
			chunks*16)}
	}
	refs := make([]ref, chunks)
	for i := range refs {
		r := ref{
			page: No(binary.LittleEndian.Uint64(payload[16*i:])),
			born: binary.LittleEndian.Uint64(payload[16*i+8:]),
		}
		if r != (ref{}) && !r.extent().within(pages) {
			return nil, &CorruptError{Reason: fmt.Sprintf("bitmap directory refers to page %d, outside the file",
				r.page)}
		}
		refs[i] = r
	}
	return refs, nil
}

func decodeChunk(payload []byte, geo geometry, pages uint64) ([]uint64, error) {
	if uint64(len(payload))*8 != geo.chunkPages() {
		return nil, &CorruptError{Reason: fmt.Sprintf("bitmap of %d bytes, expected %d", len(payload),
			geo.chunkPages()/8)}
	}
	words := make([]uint64, len(payload)/8)
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(payload[8*i:])
	}
	if !noneSet(words, pages, geo.chunkPages()-pages) {
		return nil, &CorruptError{Reason: "bitmap has pages beyond the end of the file"}
	}
	return words, nil
}

func (s *space) load(index int, at ref, words []uint64) {
	c := s.chunks[index]
	c.live, c.at = words, at
	c.liveCount = countBits(words)
	for i, w := range words {
		c.busy[i] |= w
	}
	c.busyCount += c.liveCount
	s.live += c.liveCount
	s.busy += c.liveCount
}
