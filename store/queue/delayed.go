// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"encoding/binary"
	"maps"
	"slices"
)

// delaySet is the set of a queue's live messages that are not yet deliverable, by chunk. nil is an empty set, which is
// the usual case.
type delaySet struct {
	chunks map[uint64]*delayChunk
	gone   []uint64 // stored chunks emptied since the last Collect
	n      uint64
}

// fewDelayed is the maximum length of the list in a chunk. A chunk that exceeds it has a bitmap from then on.
const fewDelayed = 64

type delayChunk struct {
	few    []uint16 // sorted offsets in the chunk; nil if the bitmap (all) is used
	all    *words
	n      int
	dirty  bool
	stored bool
}

func (c *delayChunk) word(w int) (v uint64) {
	if c.all != nil {
		return c.all[w]
	}
	i, _ := slices.BinarySearch(c.few, uint16(w)*64)
	for ; i < len(c.few) && int(c.few[i]>>6) == w; i++ {
		v |= 1 << (c.few[i] & 63)
	}
	return v
}

// set adds an offset, which must not be in the chunk.
func (c *delayChunk) set(offset uint16) {
	c.dirty = true
	c.n++
	if c.all == nil && len(c.few) < fewDelayed {
		i, _ := slices.BinarySearch(c.few, offset)
		c.few = slices.Insert(c.few, i, offset)
		return
	}
	if c.all == nil {
		c.all = new(words)
		for _, o := range c.few {
			c.all[o>>6] |= 1 << (o & 63)
		}
		c.few = nil
	}
	c.all[offset>>6] |= 1 << (offset & 63)
}

func (c *delayChunk) clear(w int, mask uint64) int {
	mask &= c.word(w)
	if mask == 0 {
		return 0
	}
	if c.all != nil {
		c.all[w] &^= mask
	} else {
		c.few = slices.DeleteFunc(c.few, func(o uint16) bool { return int(o>>6) == w && mask>>(o&63)&1 == 1 })
	}
	c.dirty = true
	c.n -= ones(mask)
	return ones(mask)
}

// appendValue appends the encoded chunk: a list of up to fewDelayed messages, or a bitmap for more.
func (c *delayChunk) appendValue(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(c.n))
	for w := range chunkWords {
		v := c.word(w)
		if c.n > fewDelayed {
			dst = binary.LittleEndian.AppendUint64(dst, v)
			continue
		}
		for ; v != 0; v &= v - 1 {
			dst = binary.AppendUvarint(dst, uint64(w*64+trailingZeros(v)))
		}
	}
	return dst
}

func (d *delaySet) has(seq uint64) bool {
	if d == nil {
		return false
	}
	c := d.chunks[seq>>chunkBits]
	return c != nil && c.word(int(seq&chunkMask)>>6)>>(seq&63)&1 == 1
}

func (d *delaySet) add(seq uint64) {
	if d.chunks == nil {
		d.chunks = make(map[uint64]*delayChunk)
	}
	c := d.chunks[seq>>chunkBits]
	if c == nil {
		c = new(delayChunk)
		d.chunks[seq>>chunkBits] = c
	}
	c.set(uint16(seq & chunkMask))
	d.n++
}

func (d *delaySet) remove(chunk uint64, w int, mask uint64) int {
	c := d.chunks[chunk]
	if c == nil {
		return 0
	}
	n := c.clear(w, mask)
	d.n -= uint64(n)
	if c.n == 0 {
		if c.stored {
			d.gone = append(d.gone, chunk)
		}
		delete(d.chunks, chunk)
	}
	return n
}

func (d *delaySet) nextFree(from uint64) uint64 {
	for {
		c := d.chunks[from>>chunkBits]
		switch {
		case c == nil:
			return from
		case c.n == ChunkSize:
			from = (from>>chunkBits + 1) << chunkBits
			continue
		}
		if free := ^c.word(int(from&chunkMask)>>6) >> (from & 63); free != 0 {
			return from + uint64(trailingZeros(free))
		}
		from = (from | 63) + 1
	}
}

func (d *delaySet) all(yield func(chunk uint64, c *delayChunk) bool) {
	if d == nil {
		return
	}
	for chunk, c := range d.chunks {
		if !yield(chunk, c) {
			return
		}
	}
}

// Delayed reports whether a message is still delayed. No subscription can receive such a message.
func (q *Queue) Delayed(seq uint64) bool { return q.delayed.has(seq) }

// DelayedMessages returns the number of live messages that are not yet deliverable.
func (q *Queue) DelayedMessages() uint64 {
	if d := q.delayed; d != nil {
		return d.n
	}
	return 0
}

func (s *State) delay(q *Queue, seq uint64) {
	x := q.own()
	if x.delayed == nil {
		x.delayed = new(delaySet)
	}
	x.delayed.add(seq)
	s.delayed++
}

func (s *State) undelay(q *Queue, chunk uint64, w int, mask uint64) int {
	n := q.delayed.remove(chunk, w, mask)
	s.delayed -= uint64(n)
	return n
}

// Delayed returns the number of live messages in all queues that are not yet deliverable.
func (s *State) Delayed() uint64 { return s.delayed }

func (c *collector) delayed(queues []*Queue) {
	for _, q := range queues {
		d := q.delayed
		if d == nil {
			continue
		}
		for _, chunk := range d.gone {
			if d.chunks[chunk] == nil { // not created again
				c.batch.Deletes = append(c.batch.Deletes, delayKey(nil, q.id, chunk))
			}
		}
		d.gone = nil
		for _, chunk := range slices.Sorted(maps.Keys(d.chunks)) {
			if dc := d.chunks[chunk]; dc.dirty {
				c.put(delayKey(c.key(), q.id, chunk), dc.appendValue)
				dc.dirty, dc.stored = false, true
			}
		}
		if d.n == 0 {
			q.own().delayed = nil
		}
	}
}

func (l *Loader) delays(k, v *cursor) {
	q := l.getQueue(k)
	chunk := k.be64()
	c := v.delayChunk()
	if v.err != nil {
		return
	}
	if q.delayed == nil {
		q.own().delayed = &delaySet{chunks: make(map[uint64]*delayChunk)}
	}
	c.stored = true
	q.delayed.chunks[chunk] = c
	q.delayed.n += uint64(c.n)
	l.s.delayed += uint64(c.n)
}

func (c *cursor) delayChunk() *delayChunk {
	n := c.uvarint(ChunkSize)
	d := &delayChunk{n: int(n)}
	if n == 0 {
		c.fail("chunk without delayed messages")
		return d
	}
	found, last := 0, -1
	if n > fewDelayed {
		d.all = new(words)
		for w := range d.all {
			d.all[w] = c.u64()
			found += ones(d.all[w])
		}
	} else {
		for range n {
			offset := int(c.uvarint(chunkMask))
			if c.err != nil || offset <= last {
				break
			}
			d.few = append(d.few, uint16(offset))
			last, found = offset, found+1
		}
	}
	if c.err == nil && found != int(n) {
		c.fail("delayed messages out of order, or wrong count")
	}
	return d
}

func (q *Queue) checkDelayed(bad func(string, ...any)) {
	n := uint64(0)
	for chunk, c := range q.delayed.all {
		in := 0
		for w := range chunkWords {
			v := c.word(w)
			in += ones(v)
			if v&^published(chunk, w, q.nextSeq) != 0 || v&q.deadWord(chunk, w) != 0 {
				bad("messages from %d on are delayed, but not live", wordFirst(chunk, w))
			}
		}
		if in != c.n || in == 0 {
			bad("chunk %d has %d delayed messages, counted %d", chunk, in, c.n)
		}
		n += uint64(in)
	}
	if n != q.DelayedMessages() {
		bad("%d messages are delayed, counted %d", n, q.DelayedMessages())
	}
}
