// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// PriorityLevels is the number of priorities. A lane consists of the queue's messages of one priority.
const PriorityLevels = txn.MaxPriority + 1

// priorityIndex is an index of messages by priority (txn.Config.Priorities): for each chunk with live messages, a
// bitmap of each lane that occurs in the chunk. Bits of dead messages are undefined.
//
// A chunk with one lane requires about 100 bytes. A chunk with several lanes requires 512 bytes more per lane, at most
// 1.25 bytes per sequence.
type priorityIndex struct {
	chunks map[uint64]*priorityChunk
	// byPriority contains, for each lane, the sorted list of its chunks. A lookup takes O(log n).
	byPriority [PriorityLevels][]uint64
	dirty      []uint64 // chunks changed or dropped since the last Collect
	gone       []uint64 // stored chunks dropped since the last Collect
}

type priorityChunk struct {
	mask   uint16                 // bitmap of the lanes that occur
	of     [PriorityLevels]*words // bitmap of each lane; nil if the lane does not occur or is the only one
	dirty  bool
	stored bool
}

func newPriorityIndex() *priorityIndex {
	return &priorityIndex{chunks: make(map[uint64]*priorityChunk)}
}

// only reports whether at most one lane occurs in the chunk.
func (c *priorityChunk) only() bool { return c.mask&(c.mask-1) == 0 }

func (z *priorityIndex) add(seq uint64, lane uint8) {
	chunk := seq >> chunkBits
	c := z.chunks[chunk]
	if c == nil {
		c = new(priorityChunk)
		z.chunks[chunk] = c
	}
	if c.mask == 1<<lane {
		return
	}
	if c.mask != 0 && c.only() {
		before := new(words) // all previous messages are in the single lane
		for w := range before {
			before[w] = published(chunk, w, seq)
		}
		c.of[bits.TrailingZeros16(c.mask)] = before
	}
	if c.mask>>lane&1 == 0 {
		if c.mask != 0 {
			c.of[lane] = new(words)
		}
		c.mask |= 1 << lane
		z.byPriority[lane] = append(z.byPriority[lane], chunk)
	}
	if at := c.of[lane]; at != nil {
		at[int(seq&chunkMask)>>6] |= 1 << (seq & 63)
	}
	if !c.dirty {
		c.dirty = true
		z.dirty = append(z.dirty, chunk)
	}
}

func (z *priorityIndex) drop(chunk uint64) {
	c := z.chunks[chunk]
	if c == nil {
		return
	}
	for mask := c.mask; mask != 0; mask &= mask - 1 {
		list := &z.byPriority[bits.TrailingZeros16(mask)]
		if i, ok := slices.BinarySearch(*list, chunk); ok {
			*list = slices.Delete(*list, i, i+1)
		}
	}
	if c.stored {
		z.gone = append(z.gone, chunk)
	}
	delete(z.chunks, chunk)
}

// word returns the bits of a lane in word w of the chunk. If the lane is the only one, all bits are set.
func (c *priorityChunk) word(lane uint8, w int) uint64 {
	switch {
	case c.mask>>lane&1 == 0:
		return 0
	case c.of[lane] == nil:
		return ^uint64(0)
	}
	return c.of[lane][w]
}

// Prioritized reports whether the queue delivers messages of higher priority first.
func (q *Queue) Prioritized() bool { return q.lanes != nil }

// Priority returns the priority of a live message. For other sequences, it may return any priority. In a queue without
// priorities, it returns txn.DefaultPriority.
func (q *Queue) Priority(seq uint64) uint8 {
	if q.lanes == nil {
		return txn.DefaultPriority
	}
	if c := q.lanes.chunks[seq>>chunkBits]; c != nil {
		for mask := c.mask; mask != 0; mask &= mask - 1 {
			lane := uint8(bits.TrailingZeros16(mask))
			if c.word(lane, int(seq&chunkMask)>>6)>>(seq&63)&1 == 1 {
				return lane
			}
		}
	}
	return txn.DefaultPriority
}

// NextUnackedIn is NextUnacked for the messages of one priority. It takes O(log n), plus the time to search the chunks
// in which the priority occurs, up to the chunk of the result. The queue must be Prioritized.
func (s *Sub) NextUnackedIn(lane uint8, from uint64) uint64 {
	z, next := s.q.lanes, s.q.nextSeq
	from = max(from, s.acks.floor)
	list := z.byPriority[lane]
	i, _ := slices.BinarySearch(list, from>>chunkBits)
	for _, chunk := range list[i:] {
		if chunk < from>>chunkBits {
			continue // all sequences are acknowledged
		}
		c := z.chunks[chunk]
		first, end := max(from, chunk<<chunkBits), min((chunk+1)<<chunkBits, next)
		if c.only() {
			if from = s.NextUnacked(first); from < end {
				return from
			}
			continue
		}
		for seq := first; seq < end; seq = (seq | 63) + 1 {
			w := int(seq&chunkMask) >> 6
			if free := s.wanted(chunk, w) & c.word(lane, w) >> (seq & 63) << (seq & 63); free != 0 {
				return wordFirst(chunk, w) + uint64(bits.TrailingZeros64(free))
			}
		}
	}
	return next
}

// NextDeliverableIn is NextDeliverable for the messages of one priority.
func (s *Sub) NextDeliverableIn(lane uint8, from uint64) uint64 {
	return s.deliverable(from, func(from uint64) uint64 { return s.NextUnackedIn(lane, from) })
}

// wanted returns a bitmap of the messages in word w of a chunk that the subscription has not acknowledged.
func (s *Sub) wanted(chunk uint64, w int) uint64 {
	return ^s.acks.word(chunk, w) & published(chunk, w, s.q.nextSeq)
}

// appendValue appends the encoded lanes of the chunk and, if there are several, their bitmaps.
func (c *priorityChunk) appendValue(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint16(dst, c.mask)
	for _, at := range c.of {
		if at == nil {
			continue
		}
		for _, w := range at {
			dst = binary.LittleEndian.AppendUint64(dst, w)
		}
	}
	return dst
}

func prioritiesKey(dst []byte, q, chunk uint64) []byte {
	return binary.BigEndian.AppendUint64(queueKey(dst, keyPriorities, q), chunk)
}

func (c *collector) lanes(queues []*Queue) {
	for _, q := range queues {
		z := q.lanes
		if z == nil {
			continue
		}
		for _, chunk := range z.gone {
			if z.chunks[chunk] == nil { // not created again
				c.batch.Deletes = append(c.batch.Deletes, prioritiesKey(nil, q.id, chunk))
			}
		}
		slices.Sort(z.dirty)
		for _, chunk := range z.dirty {
			if lc := z.chunks[chunk]; lc != nil && lc.dirty {
				c.put(prioritiesKey(c.key(), q.id, chunk), lc.appendValue)
				lc.dirty, lc.stored = false, true
			}
		}
		z.gone, z.dirty = nil, nil
	}
}

func (l *Loader) lanes(k, v *cursor) {
	q := l.getQueue(k)
	chunk := k.be64()
	if q.lanes == nil {
		q.own().lanes = newPriorityIndex()
	}
	c := &priorityChunk{stored: true, mask: uint16(v.u8())}
	c.mask |= uint16(v.u8()) << 8
	if v.err == nil && (c.mask == 0 || c.mask >= 1<<PriorityLevels || q.lanes.chunks[chunk] != nil) {
		v.fail("invalid priorities")
	}
	for mask := c.mask; v.err == nil && mask != 0; mask &= mask - 1 {
		lane := bits.TrailingZeros16(mask)
		q.lanes.byPriority[lane] = append(q.lanes.byPriority[lane], chunk)
		if c.only() {
			break
		}
		at := new(words)
		for w := range at {
			at[w] = v.u64()
		}
		c.of[lane] = at
	}
	q.lanes.chunks[chunk] = c
}

// finishPriorities completes the index of a loaded queue. It returns false if a queue without priorities has an index.
func (q *Queue) finishPriorities() bool {
	if q.config.Priorities == 0 {
		return q.lanes == nil
	}
	if q.lanes == nil {
		q.own().lanes = newPriorityIndex()
	}
	for _, list := range q.lanes.byPriority {
		slices.Sort(list)
	}
	return true
}

func (z *priorityIndex) check(q *Queue, bad func(string, ...any)) {
	for i := range q.sizes.slots {
		if chunk := q.sizes.base + uint64(i); (q.sizes.slots[i].c == nil) != (z.chunks[chunk] == nil) {
			bad("chunk %d has messages: %v, priorities: %v", chunk, q.sizes.slots[i].c != nil, z.chunks[chunk] != nil)
		}
	}
	listed := 0
	for lane, list := range z.byPriority {
		listed += len(list)
		for i, chunk := range list {
			if c := z.chunks[chunk]; c == nil || c.mask>>lane&1 == 0 || i > 0 && list[i-1] >= chunk {
				bad("chunk %d is listed for priority %d, which it does not have, or out of order", chunk, lane)
			}
		}
	}
	for chunk, c := range z.chunks {
		listed -= bits.OnesCount16(c.mask)
		if q.sizes.chunk(chunk) == nil {
			bad("chunk %d has priorities, but no messages", chunk)
		}
		for w := range chunkWords {
			all, twice := uint64(0), uint64(0)
			for lane := range uint8(PriorityLevels) {
				v := c.word(lane, w)
				twice |= all & v
				all |= v
			}
			if alive := published(chunk, w, q.nextSeq) &^ q.deadWord(chunk, w); alive&^all|twice != 0 {
				bad("a message from %d on has no priority, or more than one", wordFirst(chunk, w))
			}
		}
	}
	if listed != 0 {
		bad("lists of the priorities have %d chunks too many", listed)
	}
}
