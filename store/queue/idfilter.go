// SPDX-License-Identifier: Apache-2.0

package queue

import "encoding/binary"

// idFilter is a Bloom filter of the message IDs of a generation. It avoids page reads for new IDs, but never
// influences a result: without a filter, each ID is looked up in the tree. A generation that was loaded from the
// tree, or imported from another pair, has no filter. The filter grows in parts of increasing capacity.
type idFilter struct {
	parts []idFilterPart
	n     int // IDs in the last part
}

type idFilterPart struct {
	bits     []uint64
	capacity int
}

const (
	filterBits   = 14      // per ID
	filterProbes = 7       // about 0.15 % false positives in a full part
	smallFilter  = 64      // capacity of the first part
	largeFilter  = 1 << 16 // capacities grow fourfold up to this capacity, then double
)

func (f *idFilter) add(h idHash) {
	if len(f.parts) == 0 || f.n == f.parts[len(f.parts)-1].capacity {
		f.grow()
	}
	f.n++
	part := &f.parts[len(f.parts)-1]
	part.probe(h, func(word *uint64, bit uint64) bool {
		*word |= bit
		return true
	})
}

func (f *idFilter) grow() {
	capacity := smallFilter
	if n := len(f.parts); n > 0 {
		capacity = 2 * f.parts[n-1].capacity
		if capacity < largeFilter {
			capacity *= 2
		}
	}
	f.parts = append(f.parts, idFilterPart{bits: make([]uint64, capacity*filterBits/64), capacity: capacity})
	f.n = 0
}

// mayHave reports whether the filter may contain an ID. A false result is always correct.
func (f *idFilter) mayHave(h idHash) bool {
	for i := range f.parts {
		if f.parts[i].probe(h, func(word *uint64, bit uint64) bool { return *word&bit != 0 }) {
			return true
		}
	}
	return false
}

// probe calls fn for the bits of an ID until fn returns false. It reports whether all calls returned true.
func (p *idFilterPart) probe(h idHash, fn func(word *uint64, bit uint64) bool) bool {
	at, step := binary.LittleEndian.Uint64(h[:]), binary.LittleEndian.Uint64(h[8:])|1
	n := uint64(len(p.bits)) * 64
	for range filterProbes {
		bit := at % n
		if !fn(&p.bits[bit/64], 1<<(bit%64)) {
			return false
		}
		at += step
	}
	return true
}
