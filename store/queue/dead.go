// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"math/bits"
	"slices"
)

// DeadRange is a range of sequences with messages that became dead after the previous checkpoint batch was collected.
type DeadRange struct {
	Queue uint64
	// First and Last are inclusive.
	First, Last uint64

	end uint64 // next sequence of the queue when the batch was collected
	// The messages that were dead at that time, in one of two forms: whole chunks, or groups in and around one chunk.
	chunks []*words // a nil element means that the whole chunk is dead
	groups []uint64
	base   uint64 // number of chunks[0] or groups[0]
	died   uint64 // with groups: bitmap of the chunk's groups with newly dead messages
}

// Parts yields the first and last sequence of each part of the range that the caller must check. Every extent with a
// newly dead message overlaps a part, unless Prune has removed the group.
func (d *DeadRange) Parts(yield func(first, last uint64) bool) {
	if d.died == 0 {
		yield(d.First, d.Last)
		return
	}
	// Seeking to another position costs as much as scanning a few groups.
	const join = 4
	chunk := d.First &^ chunkMask
	for left := d.died; left != 0; {
		from := bits.TrailingZeros64(left)
		to := from
		for left &^= 1 << from; left != 0 && bits.TrailingZeros64(left)-to <= join; left &= left - 1 {
			to = bits.TrailingZeros64(left)
		}
		first, last := chunk+uint64(from)*64, chunk+uint64(to)*64+63
		if !yield(max(first, d.First), min(last, d.Last)) {
			return
		}
	}
}

// AllDead reports whether all messages first to first+span-1 were dead when the batch was collected. For an extent
// that touches none of the Parts or spans more than MaxExtentSpan, it may return false even if all messages were dead.
func (d *DeadRange) AllDead(first, span uint64) bool {
	if span == 0 {
		return true
	}
	last := first + span - 1
	if last < first || last >= d.end {
		return false
	}
	if d.died == 0 && (first>>chunkBits < d.base || last>>chunkBits >= d.base+uint64(len(d.chunks))) ||
		d.died != 0 && (first>>6 < d.base || last>>6 >= d.base+uint64(len(d.groups))) {
		return false
	}
	for seq := first; seq <= last; {
		end := min(last, seq|63)
		if w := int(seq&chunkMask) >> 6; rangeMask(w, seq&chunkMask, end&chunkMask)&^d.word(seq) != 0 {
			return false
		}
		seq = end + 1
	}
	return true
}

func (d *DeadRange) word(seq uint64) uint64 {
	if d.died != 0 {
		return d.groups[seq>>6-d.base]
	}
	if c := d.chunks[seq>>chunkBits-d.base]; c != nil {
		return c[int(seq&chunkMask)>>6]
	}
	return ^uint64(0)
}

// normalize sorts ranges and merges ranges that are at most gap chunks apart.
func normalize(ranges []chunkRange, gap uint64) []chunkRange {
	slices.SortFunc(ranges, func(a, b chunkRange) int { return cmp.Compare(a.first, b.first) })
	out := ranges[:0]
	for _, r := range ranges {
		if n := len(out); n > 0 && r.first <= out[n-1].last+gap {
			out[n-1].last = max(out[n-1].last, r.last)
			continue
		}
		out = append(out, r)
	}
	return out
}

// appendDead appends the ranges with newly dead messages to dst, and clears sizeChunk.died. The caller must clear
// Queue.removals.
func (q *Queue) appendDead(dst []DeadRange) []DeadRange {
	if q.removals != nil {
		for _, r := range normalize(q.removals.died, 2) {
			dst = append(dst, q.deadChunks(r))
		}
	}
	for i := range q.sizes.slots {
		// A chunk with newly dead messages is dirty.
		if slot := &q.sizes.slots[i]; slot.dirty && slot.c != nil && slot.c.died != 0 {
			dst = append(dst, q.deadGroups(q.sizes.base+uint64(i), slot.c.died))
			slot.c.died = 0
		}
	}
	return dst
}

// deadChunks returns the DeadRange of the chunks r. It includes the bitmaps of the neighboring chunks, into which an
// extent can reach.
func (q *Queue) deadChunks(r chunkRange) DeadRange {
	from, to := r.first-min(r.first, 1), min(r.last+1, q.nextSeq>>chunkBits)
	d := DeadRange{
		Queue: q.id, First: max(r.first<<chunkBits, 1), Last: min((r.last+1)<<chunkBits, q.nextSeq) - 1,
		base: from, chunks: make([]*words, to-from+1), end: q.nextSeq,
	}
	for chunk := from; chunk <= to; chunk++ {
		if q.sizes.chunk(chunk) == nil {
			continue
		}
		dead := new(words)
		for w := range dead {
			dead[w] = q.deadWord(chunk, w)
		}
		d.chunks[chunk-from] = dead
	}
	return d
}

// deadGroups returns the DeadRange of the groups of one chunk with newly dead messages. It includes the groups around
// them into which a dead extent can reach: on each side, up to the first group with a live message, at most the
// groups of one chunk.
func (q *Queue) deadGroups(chunk, died uint64) DeadRange {
	word := func(group uint64) uint64 { return q.deadWord(group/chunkWords, int(group%chunkWords)) }
	from := chunk*chunkWords + uint64(bits.TrailingZeros64(died))
	to := chunk*chunkWords + 63 - uint64(bits.LeadingZeros64(died))
	for n := 0; n < chunkWords && from > 0 && word(from) == ^uint64(0) || n == 0 && from > 0; n++ {
		from--
	}
	end := (q.nextSeq - 1) / 64
	for n := 0; n < chunkWords && to < end && word(to) == ^uint64(0) || n == 0 && to < end; n++ {
		to++
	}
	d := DeadRange{
		Queue: q.id, First: max(chunk<<chunkBits, 1), Last: min((chunk+1)<<chunkBits, q.nextSeq) - 1,
		base: from, groups: make([]uint64, to-from+1), died: died, end: q.nextSeq,
	}
	for i := range d.groups {
		d.groups[i] = word(from + uint64(i))
	}
	return d
}

// Group is the number of sequences in a group. Each group starts at a multiple of Group.
const Group = 64

// GroupsOfChunk is the number of groups in a chunk.
const GroupsOfChunk = chunkWords

// Single reports whether the range covers a single chunk with live messages, and returns the number of the chunk.
func (d *DeadRange) Single() (chunk uint64, ok bool) {
	return d.First >> chunkBits, d.died != 0
}

// DeadChunks iterates over the chunks without live messages, in the range and directly before and after it. For a
// single-chunk range it yields none.
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

// Prune removes groups of a single-chunk range in which no extent can have lost its last live message. least is, for
// each group, the smallest span of the extents that overlap it, at most 255, or 0 without such extents. A group remains
// only if it overlaps at least that many consecutive dead sequences. If Prune returns false, no group is left and the
// range must not be used.
func (d *DeadRange) Prune(least *[GroupsOfChunk]uint8) bool {
	for left := d.died; left != 0; left &= left - 1 {
		w := bits.TrailingZeros64(left)
		if n := least[w]; n == 0 || d.stretch(d.First>>chunkBits*chunkWords+uint64(w)) < int(n) {
			d.died &^= 1 << w
		}
	}
	return d.died != 0
}

// stretch returns the length of the longest range of dead sequences that overlaps the group.
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
	n := 0 // number of consecutive dead sequences inside the group
	for ; v != 0; v &= v << 1 {
		n++
	}
	return max(longest, n)
}
