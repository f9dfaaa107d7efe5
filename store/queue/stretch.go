// SPDX-License-Identifier: Apache-2.0

package queue

import "math/bits"

// Group is the number of sequences of a group, which starts at a multiple of it.
const Group = 64

// GroupsOfChunk is the number of groups of a chunk.
const GroupsOfChunk = chunkWords

// Single reports whether the range covers a single chunk with live messages, and returns its number.
func (d *DeadRange) Single() (chunk uint64, ok bool) {
	return d.First >> chunkBits, d.died != 0
}

// DeadChunks iterates over the chunks of the range without live messages. A single-chunk range has none.
func (d *DeadRange) DeadChunks(yield func(chunk uint64) bool) {
	if d.died != 0 {
		return
	}
	for i, c := range d.chunks {
		if c == nil && !yield(d.base+uint64(i)) {
			return
		}
	}
}

// Prune removes groups of a single-chunk range in which no extent can have lost its last message. least is, per group,
// the smallest span of the extents that reach into it; 0 if none does. A group stays only if it has at least that many
// consecutive dead sequences. If Prune returns false, no group is left and the range must not be used.
func (d *DeadRange) Prune(least *[GroupsOfChunk]uint8) bool {
	for left := d.died; left != 0; left &= left - 1 {
		w := bits.TrailingZeros64(left)
		if n := least[w]; n == 0 || d.stretch(d.First>>chunkBits*chunkWords+uint64(w)) < int(n) {
			d.died &^= 1 << w
		}
	}
	return d.died != 0
}

// stretch returns the maximum number of consecutive dead sequences of which at least one is in the group.
func (d *DeadRange) stretch(group uint64) int {
	i := int(group - d.base)
	v := d.groups[i]
	before, behind := 0, 0
	for j := i - 1; j >= 0; j-- {
		n := bits.LeadingZeros64(^d.groups[j])
		if before += n; n < Group {
			break
		}
	}
	for j := i + 1; j < len(d.groups); j++ {
		n := bits.TrailingZeros64(^d.groups[j])
		if behind += n; n < Group {
			break
		}
	}
	if v == ^uint64(0) {
		return before + Group + behind
	}
	longest := 0
	if v&1 != 0 {
		longest = before + bits.TrailingZeros64(^v)
	}
	if v>>(Group-1) != 0 {
		longest = max(longest, bits.LeadingZeros64(^v)+behind)
	}
	n := 0 // longest sequence inside the group
	for ; v != 0; v &= v << 1 {
		n++
	}
	return max(longest, n)
}
