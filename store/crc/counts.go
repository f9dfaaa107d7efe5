// SPDX-License-Identifier: Apache-2.0

package crc

import "sync/atomic"

// minCounted is the minimum size in bytes of a counted piece. It excludes the data around the bodies of large messages.
const minCounted = 4 << 10

// Counts are, for a test, the bytes of large messages that a node copies in memory and checksums between the client and
// the disk. In production the overhead is one nil check per piece of at least minCounted bytes.
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

// Copied counts n copied bytes.
func Copied(n int) {
	if n >= minCounted && counts != nil {
		counts.Copied.Add(uint64(n))
	}
}

// Summed counts n checksummed bytes.
func Summed(n int) {
	if n >= minCounted && counts != nil {
		counts.Summed.Add(uint64(n))
	}
}
