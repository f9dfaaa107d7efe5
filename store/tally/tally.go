// SPDX-License-Identifier: Apache-2.0

// Package tally counts, for a test, how many bytes of large messages a node copies in memory and checksums on their way
// from the client to the disk. In a product nothing counts: what is left of it is a look at a pointer that is nil, once
// for each piece of Least bytes or more.
package tally

import "sync/atomic"

// Least is the size, in bytes, from which on a piece counts: what is around the bodies of large messages does not.
const Least = 4 << 10

// Counts are bytes.
type Counts struct {
	// Copied from one place in memory to another.
	Copied atomic.Uint64
	// Summed are those that a checksum was computed of.
	Summed atomic.Uint64
}

var counts *Counts //nolint:gochecknoglobals // set once, before anything is counted

// Start begins to count. It is for a test, and must be called before anything is done that could be counted.
func Start() *Counts {
	counts = &Counts{}
	return counts
}

// Copied counts n bytes that are copied.
func Copied(n int) {
	if n >= Least && counts != nil {
		counts.Copied.Add(uint64(n))
	}
}

// Summed counts n bytes that a checksum is computed of.
func Summed(n int) {
	if n >= Least && counts != nil {
		counts.Summed.Add(uint64(n))
	}
}
