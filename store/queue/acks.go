// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"math/bits"
	"slices"
)

const (
	chunkBits = 12
	// ChunkSize is the number of sequences in a chunk of a queue.
	ChunkSize  = 1 << chunkBits
	chunkMask  = ChunkSize - 1
	chunkWords = ChunkSize / 64
)

// words is a bitmap of one chunk: sequence s is bit s&63 of word (s&chunkMask)>>6.
type words [chunkWords]uint64

type ackChunk struct {
	words

	n int // bits set
}

// ackSlot is one chunk of an ackSet. If full is false and c is nil, no sequence of the chunk at or above the floor is
// acknowledged.
type ackSlot struct {
	c      *ackChunk
	full   bool // all sequences are acknowledged; needs no bitmap
	dirty  bool // changed since the last Collect
	stored bool // the tree contains its key
}

// ackSet is a set of acknowledged sequences: the sequences below floor, the sequences of full chunks, and the
// sequences with a set bit. No bit below floor is set. Sequence 0 does not exist and counts as acknowledged.
type ackSet struct {
	chunkSlots[ackSlot]

	floor uint64
	above uint64   // number of acknowledged sequences at or above floor
	gone  []uint64 // stored chunks dropped since the last Collect
}

// chunkSlots has a slot for each chunk of a range.
type chunkSlots[T any] struct {
	base  uint64 // chunk of slots[0]
	slots []T
}

func (c *chunkSlots[T]) slot(chunk uint64) *T {
	if i := chunk - c.base; chunk >= c.base && i < uint64(len(c.slots)) {
		return &c.slots[i]
	}
	return nil
}

// ensure returns the slot of a chunk and creates missing slots. In an empty set, the first slot is for chunk first.
func (c *chunkSlots[T]) ensure(chunk, first uint64) *T {
	if len(c.slots) == 0 {
		c.base = first
	}
	for uint64(len(c.slots)) <= chunk-c.base {
		c.slots = append(c.slots, *new(T))
	}
	return &c.slots[chunk-c.base]
}

// drop removes the first n slots.
func (c *chunkSlots[T]) drop(n int) {
	c.base += uint64(n)
	c.slots = slices.Delete(c.slots, 0, n)
	if len(c.slots) == 0 && cap(c.slots) > maxPooled {
		c.slots = nil
	}
}

// word returns word w of a chunk's bitmap. The bits of sequences below the floor are set.
func (a *ackSet) word(chunk uint64, w int) uint64 {
	first := wordFirst(chunk, w)
	if first+64 <= a.floor {
		return ^uint64(0)
	}
	v := uint64(0)
	if s := a.slot(chunk); s != nil {
		if s.full {
			return ^uint64(0)
		}
		if s.c != nil {
			v = s.c.words[w]
		}
	}
	if first < a.floor {
		v |= 1<<(a.floor-first) - 1
	}
	return v
}

func wordFirst(chunk uint64, w int) uint64 {
	return chunk<<chunkBits + uint64(w)*64
}

func (a *ackSet) none(chunk uint64) bool {
	s := a.slot(chunk)
	return a.floor <= chunk<<chunkBits && (s == nil || s.c == nil && !s.full)
}

func (a *ackSet) all(chunk uint64) bool {
	s := a.slot(chunk)
	return a.floor >= (chunk+1)<<chunkBits || s != nil && s.full
}

func (a *ackSet) has(seq uint64) bool {
	return seq < a.floor || a.word(seq>>chunkBits, int(seq&chunkMask)>>6)>>(seq&63)&1 == 1
}

// rangeMask returns a mask of the bits in word w that represent the offsets lo to hi of a chunk.
func rangeMask(w int, lo, hi uint64) uint64 {
	first := uint64(w) * 64
	mask := ^uint64(0)
	if lo > first {
		mask <<= lo - first
	}
	if hi < first+63 {
		mask &= ^uint64(0) >> (first + 63 - hi)
	}
	return mask
}

// add acknowledges the sequences at the offsets lo to hi (0 to chunkMask) of a chunk, and returns the number of
// sequences that were not acknowledged before. It sets their bits in newly, and overwrites only the words of newly that
// overlap the range.
func (a *ackSet) add(p *pool[ackChunk], chunk, lo, hi uint64, newly *words) (n uint64) {
	for w := int(lo >> 6); w <= int(hi>>6); w++ {
		newly[w] = rangeMask(w, lo, hi) &^ a.word(chunk, w)
		n += uint64(bits.OnesCount64(newly[w]))
	}
	if n == 0 {
		return 0
	}
	if chunk<<chunkBits+lo <= a.floor { // adding the previous chunk may have moved the floor into the range
		a.advance(p, chunk<<chunkBits+hi+1)
		return n
	}
	s := a.ensure(chunk, a.floor>>chunkBits)
	s.dirty = true
	a.above += n
	if n == ChunkSize {
		s.full = true
		return n
	}
	if s.c == nil {
		s.c = p.get()
	}
	for w := int(lo >> 6); w <= int(hi>>6); w++ {
		s.c.words[w] |= newly[w]
	}
	s.c.n += int(n)
	if s.c.n == ChunkSize {
		p.put(s.c)
		s.c, s.full = nil, true
	}
	return n
}

// advance raises the floor to the given sequence if that is higher, and then past the acknowledged sequences that
// directly follow.
func (a *ackSet) advance(p *pool[ackChunk], to uint64) {
	for {
		chunk := a.floor >> chunkBits
		end := (chunk + 1) << chunkBits
		s := a.slot(chunk)
		switch {
		case s == nil || s.c == nil && !s.full:
			a.floor = max(a.floor, min(to, end))
		case s.full: // the floor is at the start of the chunk: see add
			a.above -= ChunkSize
			a.floor = end
		default:
			a.absorb(s, min(to, end))
			if s.c.n == 0 {
				p.put(s.c)
				s.c = nil
			}
		}
		if a.floor < end {
			break
		}
	}
	a.trim(p)
}

func (a *ackSet) absorb(s *ackSlot, to uint64) {
	s.dirty = true
	end := (a.floor>>chunkBits + 1) << chunkBits
	for a.floor < end {
		w, bit := int(a.floor&chunkMask)>>6, a.floor&63
		v := s.c.words[w] >> bit
		step := uint64(bits.TrailingZeros64(^v))
		if a.floor < to {
			step = max(step, min(to-a.floor, 64-bit))
		}
		if step == 0 {
			return
		}
		step = min(step, 64-bit)
		cut := (^uint64(0) >> (64 - step)) << bit
		n := bits.OnesCount64(s.c.words[w] & cut)
		s.c.words[w] &^= cut
		s.c.n -= n
		a.above -= uint64(n)
		a.floor += step
	}
}

func (a *ackSet) trim(p *pool[ackChunk]) {
	k := 0
	for k < len(a.slots) && a.base+uint64(k) < a.floor>>chunkBits {
		if a.slots[k].stored {
			a.gone = append(a.gone, a.base+uint64(k))
		}
		p.put(a.slots[k].c)
		k++
	}
	a.drop(k)
}

// next returns the first unacknowledged sequence at or after from. If it is not below end, next returns end.
func (a *ackSet) next(from, end uint64) uint64 {
	seq := max(from, a.floor)
	for seq < end {
		chunk := seq >> chunkBits
		if a.none(chunk) {
			return seq
		}
		if a.all(chunk) {
			seq = (chunk + 1) << chunkBits
			continue
		}
		free := ^a.word(chunk, int(seq&chunkMask)>>6) >> (seq & 63)
		if free != 0 {
			return min(seq+uint64(bits.TrailingZeros64(free)), end)
		}
		seq = (seq | 63) + 1
	}
	return end
}

const maxPooled = 64

// pool retains up to maxPooled values for reuse. Many chunks are in use only for a few messages or acknowledgements.
type pool[T any] struct{ free []*T }

func (p *pool[T]) get() *T {
	n := len(p.free)
	if n == 0 {
		return new(T)
	}
	c := p.free[n-1]
	p.free = p.free[:n-1]
	return c
}

func (p *pool[T]) put(c *T) {
	if c == nil || len(p.free) >= maxPooled {
		return
	}
	*c = *new(T)
	p.free = append(p.free, c)
}
