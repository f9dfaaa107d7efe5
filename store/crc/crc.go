// SPDX-License-Identifier: Apache-2.0

// Package crc computes CRC32C checksums. It can derive the checksum of concatenated bytes from the checksums of the
// parts, and the checksum of a suffix.
package crc

import (
	"hash/crc32"
	"sync"
	"sync/atomic"
)

// polynomial is the Castagnoli polynomial, with x^0 in the highest bit.
const polynomial = crc32.Castagnoli

// MinReuseBytes is the minimum size in bytes at which combining checksums is faster than computing one.
const MinReuseBytes = 4 << 10

var table = crc32.MakeTable(crc32.Castagnoli) //nolint:gochecknoglobals // read only

// Of returns the checksum of b.
func Of(b []byte) uint32 { return Update(0, b) }

// Update returns the checksum sum, extended by the bytes b.
func Update(sum uint32, b []byte) uint32 {
	Summed(len(b))
	return crc32.Update(sum, table, b)
}

// Join returns the checksum of two concatenated parts from the checksums of the parts. The second part has n bytes,
// which must be less than 1<<32.
func Join(first, second uint32, n int) uint32 { return shift(first, n) ^ second }

// Suffix returns the checksum of the last n bytes, where n is less than 1<<32. whole is the checksum of all bytes, and
// first is the checksum of the bytes before the last n.
func Suffix(whole, first uint32, n int) uint32 { return shift(first, n) ^ whole }

// powers[k][d] is x to the power of 8 * d * 256^k, modulo the polynomial.
//
//nolint:gochecknoglobals // computed once
var powers = sync.OnceValue(func() *[4][256]uint32 {
	var p [4][256]uint32
	const one, byteOne = 1 << 31, 1 << (31 - 8) // x^0 and x^8
	step := uint32(byteOne)
	for k := range p {
		p[k][0] = one
		for d := 1; d < len(p[k]); d++ {
			p[k][d] = multiply(p[k][d-1], step)
		}
		step = multiply(p[k][len(p[k])-1], step)
	}
	return &p
})

// shift returns the product of a checksum and x^(8n), modulo the polynomial: the effect of n appended zero bytes. n
// must be less than 1<<32.
func shift(sum uint32, n int) uint32 {
	if sum == 0 {
		return 0
	}
	p := powers()
	for k := 0; n > 0 && k < len(p); k++ {
		if d := n & 0xff; d != 0 {
			sum = multiply(p[k][d], sum)
		}
		n >>= 8
	}
	return sum
}

func multiply(a, b uint32) (product uint32) {
	for ; a != 0; a <<= 1 { // from x^0 on
		product ^= b & -(a >> 31)
		b = b>>1 ^ polynomial&-(b&1)
	}
	return product
}

// minCounted is the minimum size in bytes of a counted piece. It excludes the data around the bodies of large messages.
const minCounted = 4 << 10

// Counts counts, for tests, the bytes of large messages that a node copies in memory and checksums between the client
// and the disk.
type Counts struct {
	Copied atomic.Uint64
	Summed atomic.Uint64
}

var counts *Counts //nolint:gochecknoglobals // set once, before anything is counted

// StartCounts starts counting. It is for tests, and must be called before anything is counted.
func StartCounts() *Counts {
	counts = &Counts{}
	return counts
}

// Copied counts n copied bytes, if n is at least minCounted.
func Copied(n int) {
	if n >= minCounted && counts != nil {
		counts.Copied.Add(uint64(n))
	}
}

// Summed counts n checksummed bytes, if n is at least minCounted.
func Summed(n int) {
	if n >= minCounted && counts != nil {
		counts.Summed.Add(uint64(n))
	}
}
