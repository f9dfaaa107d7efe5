// SPDX-License-Identifier: Apache-2.0

package queue

import "math/bits"

// sizeChunk counts the live messages of a chunk and their bytes, in groups of 64 sequences.
//
// The size of each message is not stored, to save memory: a group requires 8 bytes for up to 64 messages. When some
// messages of a group become dead, a proportional fraction of the group's bytes is subtracted. The byte count of a
// group is exact if all or none of its messages are live, or if they have the same size. It is the same on both
// nodes.
//
// In a queue that keeps sizes (Queue.keepsSizes), a group with messages of different sizes has the size of each
// message, so the count is exact. Only messages that were live when the queue began to keep sizes count with the
// average size of their group.
//
// Most queues are small, so memory is allocated only for the groups from the first used one to the last.
type sizeChunk struct {
	groups []sizeGroup
	exact  *exactGroups // nil if no group has individual sizes
	// died has a bit for each group with collected messages that became dead since the last Collect.
	died  uint64
	n     uint16 // live messages of the chunk
	first uint8  // number of groups[0]
}

// exactGroups contains the message sizes of each group of a chunk. The element of a group is nil if all its
// messages have the average size.
type exactGroups [chunkWords]*groupSizes

// groupSizes contains the sizes of the live messages of a group, and 0 for other sequences.
type groupSizes struct {
	low  [64]uint16
	high *[64]uint16 // upper bits; nil if all messages are smaller than 64 KiB
}

func (e *groupSizes) at(i int) uint64 {
	size := uint64(e.low[i])
	if e.high != nil {
		size |= uint64(e.high[i]) << 16
	}
	return size
}

func (e *groupSizes) set(i int, size uint64) {
	e.low[i] = uint16(size)
	if size>>16 != 0 && e.high == nil {
		e.high = new([64]uint16)
	}
	if e.high != nil {
		e.high[i] = uint16(size >> 16)
	}
}

func (e *groupSizes) alive() (mask uint64) {
	for i := range e.low {
		mask |= b2u(e.at(i) != 0) << i
	}
	return mask
}

func (e *groupSizes) sum() (bytes uint64) {
	for i := range e.low {
		bytes += e.at(i)
	}
	return bytes
}

func (e *groupSizes) take(mask uint64) (bytes uint64) {
	for ; mask != 0; mask &= mask - 1 {
		i := trailingZeros(mask)
		bytes += e.at(i)
		e.set(i, 0)
	}
	return bytes
}

type sizePools struct {
	chunks pool[sizeChunk]
	exact  pool[exactGroups]
	groups pool[groupSizes]
}

// sizesOf returns the sizes of a group's messages; nil if all have the average size.
func (c *sizeChunk) sizesOf(w int) *groupSizes {
	if c.exact == nil {
		return nil
	}
	return c.exact[w]
}

func (c *sizeChunk) setSizes(p *sizePools, w int, e *groupSizes) {
	if c.exact == nil {
		c.exact = p.exact.get()
	}
	c.exact[w] = e
}

type partSum struct {
	group    sizeGroup
	sizes    *groupSizes
	n, bytes uint64
}

func (c *sizeChunk) part(w int) partSum { return partSum{group: c.group(w), sizes: c.sizesOf(w)} }

// add adds message i of the group to the sum. The message must be live.
func (s *partSum) add(i int) {
	s.n++
	if s.sizes != nil {
		s.bytes += s.sizes.at(i)
		return
	}
	s.bytes = s.group.bytes() * s.n / s.group.alive()
}

// sizeGroup packs the number of live messages of a group and their bytes. 64 * MaxRecordBytes fits into the lower bits.
type sizeGroup uint64

const oneAlive sizeGroup = 1 << 56

func (g sizeGroup) alive() uint64 { return uint64(g / oneAlive) }
func (g sizeGroup) bytes() uint64 { return uint64(g % oneAlive) }

func (c *sizeChunk) group(w int) sizeGroup {
	if i := w - int(c.first); i >= 0 && i < len(c.groups) {
		return c.groups[i]
	}
	return 0
}

// at returns group w and creates missing groups. w must not precede the first used group: sequences only increase.
func (c *sizeChunk) at(w int) *sizeGroup {
	if len(c.groups) == 0 {
		c.first = uint8(w)
	}
	i := w - int(c.first)
	for len(c.groups) <= i {
		c.groups = append(c.groups, 0)
	}
	return &c.groups[i]
}

// sizeSlot is the slot of a chunk. c is nil if the chunk has no live messages.
type sizeSlot struct {
	c      *sizeChunk
	dirty  bool
	stored bool
}

type sizeSet struct{ chunkSlots[sizeSlot] }

func (z *sizeSet) chunk(chunk uint64) *sizeChunk {
	if s := z.slot(chunk); s != nil {
		return s.c
	}
	return nil
}

func (z *sizeSet) add(p *sizePools, seq, size uint64) {
	s := z.ensure(seq>>chunkBits, seq>>chunkBits)
	if s.c == nil {
		s.c = p.chunks.get()
	}
	s.dirty = true
	*s.c.at(int(seq & chunkMask >> 6)) += oneAlive + sizeGroup(size)
	s.c.n++
}

// keepsSizes reports whether the queue stores the sizes of its messages (see sizeChunk).
func (q *Queue) keepsSizes() bool {
	return q.config.ExactBytes != 0 && q.config.MaxBytes|q.config.RetentionBytes != 0
}

// keepSize stores the size of the next message if the messages of its group differ in size. It must be called
// before the message is added to the group.
func (s *State) keepSize(q *Queue, size uint64) {
	chunk, w := q.nextSeq>>chunkBits, int(q.nextSeq&chunkMask)>>6
	c := q.sizes.chunk(chunk)
	if c == nil {
		return
	}
	e := c.sizesOf(w)
	if e == nil {
		g := c.group(w)
		if g.alive() == 0 || g.bytes() == size*g.alive() {
			return
		}
		e = s.sizePool.groups.get()
		share, rest := g.bytes()/g.alive(), g.bytes()%g.alive()
		for alive := published(chunk, w, q.nextSeq) &^ q.deadWord(chunk, w); alive != 0; alive &= alive - 1 {
			e.set(trailingZeros(alive), share+rest)
			rest = 0
		}
		c.setSizes(&s.sizePool, w, e)
	}
	e.set(int(q.nextSeq&63), size)
}

// dropSizes removes the individual sizes of all messages. The groups keep the sums.
func (z *sizeSet) dropSizes(p *sizePools) {
	for i := range z.slots {
		slot := &z.slots[i]
		if slot.c == nil || slot.c.exact == nil {
			continue
		}
		for _, e := range slot.c.exact {
			p.groups.put(e)
		}
		p.exact.put(slot.c.exact)
		slot.c.exact, slot.dirty = nil, true
	}
}

// remove removes live messages of a group and returns their bytes. If empty is true, the chunk has no live messages
// left and was dropped; the caller must then call trim.
func (z *sizeSet) remove(p *sizePools, chunk uint64, w int, mask uint64) (bytes uint64, empty bool) {
	s, n := z.slot(chunk), ones(mask)
	g := s.c.at(w)
	if e := s.c.sizesOf(w); e != nil {
		bytes = e.take(mask)
		if uint64(n) == g.alive() {
			s.c.exact[w] = nil
			p.groups.put(e)
		}
	} else {
		// The product is below 2^64, since a group has at most 64 messages of at most MaxRecordBytes.
		bytes = g.bytes() * uint64(n) / g.alive()
	}
	*g -= sizeGroup(n)*oneAlive + sizeGroup(bytes)
	s.c.n -= uint16(n)
	s.dirty = true
	if s.c.n > 0 {
		return bytes, false
	}
	c, groups := s.c, s.c.groups[:0]
	p.exact.put(c.exact)
	p.chunks.put(c)
	c.groups = groups
	s.c = nil
	return bytes, true
}

// trim drops the slots before the first chunk with live messages, and calls gone for each stored chunk among them.
func (z *sizeSet) trim(gone func(chunk uint64)) {
	k := 0
	for k < len(z.slots) && z.slots[k].c == nil {
		if z.slots[k].stored {
			gone(z.base + uint64(k))
		}
		k++
	}
	z.drop(k)
}

// published returns a mask of the bits of word w that represent sequences in [1, next).
func published(chunk uint64, w int, next uint64) uint64 {
	first := wordFirst(chunk, w)
	if first >= next {
		return 0
	}
	mask := ^uint64(0)
	if next-first < 64 {
		mask = 1<<(next-first) - 1
	}
	if first == 0 {
		mask &^= 1
	}
	return mask
}

func ones(v uint64) int { return bits.OnesCount64(v) }
