// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"math/bits"
	"sort"
)

const (
	asideBits = 12
	// maxAsideChunks bounds what is set aside of a subscription: pieces of 4096 sequences of which one is, 512 bytes
	// each.
	maxAsideChunks = 1 << 14
)

// asideSet is a set of sequences: a bitmap for each piece of 4096 that has some.
type asideSet struct {
	chunks []*asideChunk // by number
	n      int
}

type asideChunk struct {
	number uint64
	n      int
	words  [1 << asideBits / 64]uint64
}

func (s *asideSet) len() int { return s.n }

// at is the place of the first chunk from number on.
func (s *asideSet) at(number uint64) int {
	if n := len(s.chunks); n > 0 && s.chunks[n-1].number < number {
		return n // the usual case: messages come in order
	}
	return sort.Search(len(s.chunks), func(i int) bool { return s.chunks[i].number >= number })
}

func (s *asideSet) add(sequence uint64) {
	number := sequence >> asideBits
	at := s.at(number)
	if at == len(s.chunks) || s.chunks[at].number != number {
		s.chunks = append(s.chunks, nil)
		copy(s.chunks[at+1:], s.chunks[at:])
		s.chunks[at] = &asideChunk{number: number}
	}
	c := s.chunks[at]
	word, bit := &c.words[sequence>>6&(1<<asideBits/64-1)], uint64(1)<<(sequence&63)
	if *word&bit == 0 {
		*word |= bit
		c.n++
		s.n++
	}
}

// visit takes out the members from first to last, the lowest first, for as long as take is true.
func (s *asideSet) visit(first, last uint64, take func(sequence uint64) bool) {
	going := true
	from := s.at(first >> asideBits)
	to := from
	for ; going && to < len(s.chunks) && s.chunks[to].number <= last>>asideBits; to++ {
		c := s.chunks[to]
		for w := range c.words {
			for v := c.words[w]; going && v != 0; v &= v - 1 {
				sequence := c.number<<asideBits + uint64(w)*64 + uint64(bits.TrailingZeros64(v))
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

// take takes out the first members from a sequence on and appends them to dst, at most `most`.
func (s *asideSet) take(from uint64, most int, dst []uint64) []uint64 {
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

func (s *asideSet) removeRange(r Range) {
	if s.n > 0 {
		s.visit(r.First, r.Last, func(uint64) bool { return true })
	}
}
