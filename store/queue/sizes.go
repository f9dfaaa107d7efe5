// SPDX-License-Identifier: Apache-2.0

package queue

import "math/bits"

// sizeChunk counts the messages of a chunk that are alive, and their bytes, in groups of 64 sequences.
//
// The bytes of each single message are not in memory, because memory is a budget and not a function of what is stored.
// When some messages of a group die, they take their share of the group's bytes with them, as if all of the group were
// of one size. The count of bytes is exact when a group is all alive or all dead, or its messages are of one size, and
// it is the same on both nodes.
//
// Most queues are small: there is memory only for the groups from the first one that was used to the last one.
type sizeChunk struct {
	groups []sizeGroup
	// died has a bit for each group in which messages died since the last Collect that were handed out.
	died  uint64
	n     uint16 // messages alive in the chunk
	first uint8  // number of groups[0]
}

// sizeGroup is the count of a group's messages that are alive, and their bytes, in one number: 64 messages of at most
// MaxRecordBytes leave the upper bits of the bytes free.
type sizeGroup uint64

const oneAlive sizeGroup = 1 << 56

func (g sizeGroup) alive() uint64 { return uint64(g / oneAlive) }
func (g sizeGroup) bytes() uint64 { return uint64(g % oneAlive) }

// group gives the counts of a group.
func (c *sizeChunk) group(w int) sizeGroup {
	if i := w - int(c.first); i >= 0 && i < len(c.groups) {
		return c.groups[i]
	}
	return 0
}

// at gives a group, which is not before the first one that was used: sequences only rise.
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

// sizeSlot without a chunk: nothing in it is alive.
type sizeSlot struct {
	c      *sizeChunk
	dirty  bool
	stored bool
}

type sizeSet struct {
	base  uint64
	slots []sizeSlot
}

func (z *sizeSet) slot(chunk uint64) *sizeSlot {
	if i := chunk - z.base; chunk >= z.base && i < uint64(len(z.slots)) {
		return &z.slots[i]
	}
	return nil
}

func (z *sizeSet) chunk(chunk uint64) *sizeChunk {
	if s := z.slot(chunk); s != nil {
		return s.c
	}
	return nil
}

// ensure gives the slot of a chunk, which is not below the first one.
func (z *sizeSet) ensure(chunk uint64) *sizeSlot {
	if len(z.slots) == 0 {
		z.base = chunk
	}
	for uint64(len(z.slots)) <= chunk-z.base {
		z.slots = append(z.slots, sizeSlot{})
	}
	return &z.slots[chunk-z.base]
}

// add counts a message that was published.
func (z *sizeSet) add(p *pool[sizeChunk], seq, size uint64) {
	s := z.ensure(seq >> chunkBits)
	if s.c == nil {
		s.c = p.get()
	}
	s.dirty = true
	*s.c.at(int(seq & chunkMask >> 6)) += oneAlive + sizeGroup(size)
	s.c.n++
}

// remove takes away n messages of a group and gives their share of its bytes. empty tells that they were the last ones
// of the chunk, which is dropped; then trim is to be called.
func (z *sizeSet) remove(p *pool[sizeChunk], chunk uint64, w, n int) (share uint64, empty bool) {
	s := z.slot(chunk)
	g := s.c.at(w)
	// At most 64 messages of at most MaxRecordBytes: the product stays far below 2^64.
	share = g.bytes() * uint64(n) / g.alive()
	*g -= sizeGroup(n)*oneAlive + sizeGroup(share)
	s.c.n -= uint16(n)
	s.dirty = true
	if s.c.n > 0 {
		return share, false
	}
	c, groups := s.c, s.c.groups[:0]
	p.put(c)
	c.groups = groups
	s.c = nil
	return share, true
}

// trim forgets the slots before the first chunk that has something alive, and calls gone for those that are stored.
func (z *sizeSet) trim(gone func(chunk uint64)) {
	k := 0
	for k < len(z.slots) && z.slots[k].c == nil {
		if z.slots[k].stored {
			gone(z.base + uint64(k))
		}
		k++
	}
	if k == 0 {
		return
	}
	z.base += uint64(k)
	n := copy(z.slots, z.slots[k:])
	clear(z.slots[n:])
	z.slots = z.slots[:n]
	if n == 0 && cap(z.slots) > maxPooled {
		z.slots = nil
	}
}

// published gives the bits of word w whose sequences are in [1, next).
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
