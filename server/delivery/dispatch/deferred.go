// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"math/bits"
	"slices"
	"sort"
)

const (
	deferredBits = 12
	// maxDeferredChunks limits the number of chunks of deferred messages of a subscription. A chunk uses about 512 bytes.
	maxDeferredChunks = 1 << 14
)

// deferredSet is a set of sequences. It has a bitmap for each nonempty chunk of 4096 sequences.
type deferredSet struct {
	chunks []*deferredChunk // sorted by number
	n      int
}

type deferredChunk struct {
	number uint64
	n      int
	words  [1 << deferredBits / 64]uint64
}

func (s *deferredSet) len() int { return s.n }

func (s *deferredSet) at(number uint64) int {
	if n := len(s.chunks); n > 0 && s.chunks[n-1].number < number {
		return n // the usual case, because messages arrive in order
	}
	return sort.Search(len(s.chunks), func(i int) bool { return s.chunks[i].number >= number })
}

func (s *deferredSet) add(sequence uint64) {
	number := sequence >> deferredBits
	at := s.at(number)
	if at == len(s.chunks) || s.chunks[at].number != number {
		s.chunks = slices.Insert(s.chunks, at, &deferredChunk{number: number})
	}
	c := s.chunks[at]
	word, bit := &c.words[sequence>>6&(1<<deferredBits/64-1)], uint64(1)<<(sequence&63)
	if *word&bit == 0 {
		*word |= bit
		c.n++
		s.n++
	}
}

// visit calls take for the members from first to last in ascending order until take returns false. It removes the
// members for which take returns true.
func (s *deferredSet) visit(first, last uint64, take func(sequence uint64) bool) {
	going := true
	from := s.at(first >> deferredBits)
	to := from
	for ; going && to < len(s.chunks) && s.chunks[to].number <= last>>deferredBits; to++ {
		c := s.chunks[to]
		for w := range c.words {
			for v := c.words[w]; going && v != 0; v &= v - 1 {
				sequence := c.number<<deferredBits + uint64(w)*64 + uint64(bits.TrailingZeros64(v))
				if sequence < first || sequence > last {
					continue
				}
				if going = take(sequence); going {
					c.words[w] &^= 1 << (sequence & 63)
					c.n--
					s.n--
				}
			}
		}
	}
	kept := s.chunks[:from]
	for i, c := range s.chunks[from:] {
		if from+i >= to || c.n > 0 {
			kept = append(kept, c)
		}
	}
	clear(s.chunks[len(kept):])
	s.chunks = kept
}

// take removes at most the given number of members, starting at from, and appends them to dst.
func (s *deferredSet) take(from uint64, most int, dst []uint64) []uint64 {
	s.visit(from, ^uint64(0), func(sequence uint64) bool {
		if most == 0 {
			return false
		}
		most--
		dst = append(dst, sequence)
		return true
	})
	return dst
}

func (s *deferredSet) removeRange(r Range) {
	if s.n > 0 {
		s.visit(r.First, r.Last, func(uint64) bool { return true })
	}
}
