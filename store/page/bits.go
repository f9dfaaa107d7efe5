// SPDX-License-Identifier: Apache-2.0

package page

import "math/bits"

// Functions for ranges of bits in slices of words; bit i is bit i%64 of word i/64.

// nextBit returns the first set bit in [from, to), and nextClear the first clear bit. If no bit is found, they
// return the upper bound.
func nextBit(words []uint64, from, to uint64) uint64 {
	for i := from; i < to; i = (i | 63) + 1 {
		if w := words[i/64] >> (i % 64); w != 0 {
			return min(i+uint64(bits.TrailingZeros64(w)), to)
		}
	}
	return to
}

func nextClear(words []uint64, from, to uint64) uint64 {
	for i := from; i < to; i = (i | 63) + 1 {
		if w := ^words[i/64] >> (i % 64); w != 0 {
			return min(i+uint64(bits.TrailingZeros64(w)), to)
		}
	}
	return to
}

// clearTail returns the number of clear bits directly before bit end, which must be a multiple of 64.
func clearTail(words []uint64, end uint64) uint64 {
	var n uint64
	for w := end / 64; w > 0; w-- {
		if words[w-1] != 0 {
			return n + uint64(bits.LeadingZeros64(words[w-1]))
		}
		n += 64
	}
	return n
}

// eachWord calls fn for each word that contains bits of [from, from+n); mask selects these bits.
func eachWord(from, n uint64, fn func(word int, mask uint64)) {
	for end := from + n; from < end; {
		bit := from % 64
		count := min(64-bit, end-from)
		fn(int(from/64), ^uint64(0)>>(64-count)<<bit)
		from += count
	}
}

func setBits(words []uint64, from, n uint64) {
	eachWord(from, n, func(w int, mask uint64) { words[w] |= mask })
}

func clearBits(words []uint64, from, n uint64) {
	eachWord(from, n, func(w int, mask uint64) { words[w] &^= mask })
}

func allSet(words []uint64, from, n uint64) bool { return nextClear(words, from, from+n) == from+n }

func noneSet(words []uint64, from, n uint64) bool { return nextBit(words, from, from+n) == from+n }

func countBits(words []uint64) uint64 {
	n := 0
	for _, w := range words {
		n += bits.OnesCount64(w)
	}
	return uint64(n)
}

func countRange(words []uint64, from, n uint64) uint64 {
	count := 0
	eachWord(from, n, func(w int, mask uint64) { count += bits.OnesCount64(words[w] & mask) })
	return uint64(count)
}
