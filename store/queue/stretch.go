// SPDX-License-Identifier: Apache-2.0

package queue

import "math/bits"

// Group is a number of sequences that follow each other, the first one a multiple of it: what DeadRange tells about
// messages that died in a large queue is in groups.
const Group = 64

// GroupsOfChunk is how many groups a chunk has.
const GroupsOfChunk = chunkWords

// Single tells whether the range is that of one chunk, which has messages alive, and gives the number of that chunk.
func (d *DeadRange) Single() (chunk uint64, ok bool) {
	return d.First >> chunkBits, d.died != 0
}

// DeadChunks iterates over the chunks of the range in which no message is alive. There is none if it is a single one.
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

// Prune leaves groups of a single chunk's range out in which no run can have lost its last message: those in which
// least sequences of a group, the fewest that a run spans which reaches into it, are more than there are dead ones next
// to each other. It tells whether any group is left; if not, the range must not be used any more.
func (d *DeadRange) Prune(least *[GroupsOfChunk]uint8) bool {
	for left := d.died; left != 0; left &= left - 1 {
		w := bits.TrailingZeros64(left)
		if n := least[w]; n == 0 || d.stretch(d.First>>chunkBits*chunkWords+uint64(w)) < int(n) {
			d.died &^= 1 << w
		}
	}
	return d.died != 0
}

// stretch is the greatest number of dead sequences next to each other of which one at least is in the group.
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
	n := 0 // of what lies wholly in the group
	for ; v != 0; v &= v << 1 {
		n++
	}
	return max(longest, n)
}
