package queue

import "math/bits"

// sizeChunk counts the messages of a chunk that are alive, and their bytes, in groups of 64 sequences.
//
// The bytes of each single message are not in memory, because memory is a budget and not a function of what is stored.
// When some messages of a group die, they take their share of the group's bytes with them, as if all of the group were of
// one size. The count of bytes is exact when a group is all alive or all dead, or its messages are of one size, and it is
// the same on both nodes.
//
// Most queues are small: there is memory only for the groups from the first one that was used to the last one.
type sizeChunk struct {
	first int // group of the first element of bytes and alive
	bytes []uint64
	alive []uint8
	n     int // messages alive in the chunk
}

// group gives the count of a group's messages that are alive, and their bytes.
func (c *sizeChunk) group(w int) (alive uint8, bytes uint64) {
	if i := w - c.first; i >= 0 && i < len(c.alive) {
		return c.alive[i], c.bytes[i]
	}
	return 0, 0
}

// at gives the place of a group, which is not before the first one that was used: sequences only rise.
func (c *sizeChunk) at(w int) int {
	if len(c.alive) == 0 {
		c.first = w
	}
	i := w - c.first
	for len(c.alive) <= i {
		c.alive, c.bytes = append(c.alive, 0), append(c.bytes, 0)
	}
	return i
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
	gone  []uint64 // stored chunks that were dropped since the last Collect
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
	i := s.c.at(int(seq & chunkMask >> 6)) //nolint:gosec // less than chunkWords
	s.c.bytes[i] += size
	s.c.alive[i]++
	s.c.n++
}

// remove takes away n messages of a group and gives their share of its bytes.
func (z *sizeSet) remove(p *pool[sizeChunk], chunk uint64, w, n int) uint64 {
	s := z.slot(chunk)
	i := w - s.c.first
	alive, b := uint64(s.c.alive[i]), s.c.bytes[i]
	// At most 64 messages of at most MaxRecordBytes: the product stays far below 2^64.
	share := b * uint64(n) / alive
	s.c.alive[i] -= uint8(n)
	s.c.bytes[i] -= share
	s.c.n -= n
	s.dirty = true
	if s.c.n == 0 {
		c := s.c
		keptBytes, keptAlive := c.bytes[:0], c.alive[:0]
		p.put(c)
		c.bytes, c.alive = keptBytes, keptAlive
		s.c = nil
		z.trim()
	}
	return share
}

// trim forgets the slots before the first chunk that has something alive.
func (z *sizeSet) trim() {
	k := 0
	for k < len(z.slots) && z.slots[k].c == nil {
		if z.slots[k].stored {
			z.gone = append(z.gone, z.base+uint64(k))
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
