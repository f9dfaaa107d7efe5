// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"maps"
	"math"
	"slices"
)

// countSet contains the delivery counts of released, unacknowledged messages, by chunk. nil is an empty set, which is
// the usual case.
type countSet struct {
	chunks map[uint64]*countChunk
	gone   []uint64 // stored chunks emptied since the last Collect
}

type countChunk struct {
	entries []countEntry // sorted by offset
	dirty   bool
	stored  bool
}

type countEntry struct {
	offset uint16
	count  uint32
}

func (c *countChunk) find(offset uint16) (int, bool) {
	return slices.BinarySearchFunc(c.entries, offset,
		func(e countEntry, o uint16) int { return int(e.offset) - int(o) })
}

func (cs *countSet) get(seq uint64) uint32 {
	if cs == nil {
		return 0
	}
	c := cs.chunks[seq>>chunkBits]
	if c == nil {
		return 0
	}
	if i, ok := c.find(uint16(seq & chunkMask)); ok {
		return c.entries[i].count
	}
	return 0
}

func (cs *countSet) chunk(chunk uint64) *countChunk {
	c := cs.chunks[chunk]
	if c == nil {
		if cs.chunks == nil {
			cs.chunks = make(map[uint64]*countChunk)
		}
		c = &countChunk{}
		cs.chunks[chunk] = c
	}
	return c
}

// increment increments the delivery count of a message, up to math.MaxUint32.
func (cs *countSet) increment(seq uint64) {
	c := cs.chunk(seq >> chunkBits)
	c.dirty = true
	offset := uint16(seq & chunkMask)
	i, ok := c.find(offset)
	if !ok {
		c.entries = slices.Insert(c.entries, i, countEntry{offset: offset})
	}
	if c.entries[i].count < math.MaxUint32 {
		c.entries[i].count++
	}
}

func (cs *countSet) remove(chunk, lo, hi uint64) {
	if cs == nil {
		return
	}
	c := cs.chunks[chunk]
	if c == nil {
		return
	}
	i, _ := c.find(uint16(lo))
	j, _ := c.find(uint16(hi + 1))
	if i == j {
		return
	}
	c.entries = slices.Delete(c.entries, i, j)
	c.dirty = true
	if len(c.entries) > 0 {
		return
	}
	if c.stored {
		cs.gone = append(cs.gone, chunk)
	}
	delete(cs.chunks, chunk)
}

func (cs *countSet) all(yield func(chunk uint64, c *countChunk) bool) {
	if cs == nil {
		return
	}
	for chunk, c := range cs.chunks {
		if !yield(chunk, c) {
			return
		}
	}
}

func (cs *countSet) sorted() []uint64 {
	if cs == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(cs.chunks))
}
