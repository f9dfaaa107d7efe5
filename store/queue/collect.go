// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// Batch is the set of changes that a checkpoint or a flush must write. Later changes of the state do not affect it.
type Batch struct {
	// LSN is the LSN of the last record included.
	LSN uint64
	// Everything reports whether the batch is a checkpoint.
	Everything bool
	// Puts are the keys to set after the Deletes are applied, in ascending order. A key in both was removed and created
	// again.
	Puts []KV
	// Deletes are the keys to remove, in no particular order. The tree may not contain all of them.
	Deletes  [][]byte
	Schedule ScheduleBatch
	// IDs are the message IDs to write, in order.
	IDs []IDBatch
	// DeleteRanges are the key ranges to remove after the Puts, Deletes and IDs are applied.
	DeleteRanges []KeyRange
	// DeletedQueues are the deleted queues. Their data must be removed: QueueKeys, and the entries and extents of the
	// message index.
	DeletedQueues []uint64
	// Tails are the messages to write, in order for each queue.
	Tails     []TailRun
	TailBytes int64
	// Dead contains the ranges with newly dead messages that may be in pages.
	Dead []DeadRange
}

// KV is a key and its value.
type KV struct{ Key, Value []byte }

// TailRun is a list of messages with consecutive sequences.
type TailRun struct {
	Queue uint64
	// First is the sequence of Records[0].
	First uint64
	// Records are the messages. nil is a dead message, which must not be written.
	Records [][]byte
	// sums contains the CRC32C of each record, or 0 if it is unknown. It is nil if all are unknown.
	sums []uint32
}

// Sum returns the CRC32C of Records[i] if it was computed when the message was applied; otherwise 0.
func (t *TailRun) Sum(i int) uint32 {
	if t.sums == nil {
		return 0
	}
	return t.sums[i]
}

// Last returns the sequence of the last record.
func (t *TailRun) Last() uint64 { return t.First + uint64(len(t.Records)) - 1 }

// Collect returns the changes to write to the page file. If everything is set, the batch is a checkpoint at Applied:
// it contains all keys changed since the last checkpoint, and all live messages that are not in pages. Otherwise it
// is a flush, which contains only messages, at most about maxTailBytes. They are from the queues that were flushed
// least recently.
//
// The messages stay in memory until Flushed is called for them. The caller must call Flushed before the next Collect.
// A batch can be written again after an error. If the caller discards a batch, the changes in it are lost and the
// owner must stop.
func (s *State) Collect(maxTailBytes int64, everything bool) *Batch {
	b := &Batch{LSN: s.applied, Everything: everything}
	if everything {
		maxTailBytes = math.MaxInt64
		b.Tails = make([]TailRun, 0, s.tailQueues)
	}
	for q := s.tailOldest; q != nil && b.TailBytes < maxTailBytes; q = q.tailNewer {
		b.TailBytes += q.tail.share(maxTailBytes-b.TailBytes, func(first uint64, records [][]byte, sums []uint32) {
			b.Tails = append(b.Tails, TailRun{Queue: q.id, First: first, Records: records, sums: sums})
		})
		q.collected = max(q.collected, q.tail.shared)
	}
	if !everything {
		return b
	}
	queues := s.takeDirty()
	for _, q := range queues {
		b.Dead = q.appendDead(b.Dead) // before the chunks are marked as stored
	}
	c := collector{batch: b}
	b.Puts = make([]KV, 0, 3*len(queues)+len(s.producers.dirty)+len(s.meta.dirty)+1)
	c.acks(queues)
	c.sizes(queues)
	c.counts(queues)
	c.forwards(queues)
	c.ids(s, queues)
	c.delayed(queues)
	s.meta.collect(&c, strings.Compare, metaKey)
	c.lanes(queues)
	c.put(append(c.key(), keyState), s.appendState)
	c.fleet(&s.fleet)
	c.producers(&s.producers)
	for _, q := range queues {
		c.put(queueKey(c.key(), keyQueue, q.id), q.appendValue)
		if q.removals != nil {
			b.Deletes = append(b.Deletes, q.removals.keys...)
		}
		q.removals, q.dirty = nil, false
	}
	c.site(&s.site)
	c.subs(queues)
	c.schedule(&s.schedule)
	c.pauses(queues)
	c.moves(&s.moves)
	c.prepared(&s.prepared)
	s.policies.collect(&c, strings.Compare, policyKey)
	c.access(&s.access)
	b.DeletedQueues = s.deleted
	s.deleted = nil
	return b
}

func (s *State) takeDirty() []*Queue {
	list := slices.DeleteFunc(s.dirty, func(q *Queue) bool { return q.deleted })
	slices.SortFunc(list, func(a, b *Queue) int { return cmp.Compare(a.id, b.id) })
	s.dirty = nil
	return list
}

// Flushed removes a queue's collected messages up to sequence upTo from memory. They must already be readable from
// pages.
func (s *State) Flushed(queue, upTo uint64) {
	q := s.Queue(queue)
	if q == nil || q.tail.n == 0 {
		return
	}
	upTo = min(upTo, q.collected-1)
	before := q.tail.bytes
	for q.tail.n > 0 && q.tail.first <= upTo {
		q.tail.pop()
	}
	q.tail.trim()
	s.tailBytes += q.tail.bytes - before
	s.unlinkTail(q)
	if q.tail.n > 0 {
		s.linkTail(q) // at the end of the list: its flush is the most recent
	}
}

// collector encodes keys and values into large buffers and marks the collected entries as stored.
type collector struct {
	batch *Batch
	free  []byte // unused rest of the current buffer
}

const pieceBytes = 64 << 10

func (c *collector) key() []byte {
	if cap(c.free) < 1024 {
		c.free = make([]byte, 0, pieceBytes)
	}
	return c.free[:0]
}

func (c *collector) put(key []byte, value func(dst []byte) []byte) {
	n := len(key)
	both := value(key)
	c.batch.Puts = append(c.batch.Puts, KV{Key: both[:n:n], Value: both[n:len(both):len(both)]})
	c.free = both[len(both):]
}

func (c *collector) acks(queues []*Queue) {
	for _, q := range queues {
		for _, sub := range q.storedSubs() {
			if sub.dirty {
				c.subAcks(q.id, sub)
			}
		}
	}
}

func (c *collector) subAcks(queue uint64, sub *Sub) {
	a := &sub.acks
	for _, chunk := range a.gone {
		c.batch.Deletes = append(c.batch.Deletes, chunkKey(nil, keyAcks, queue, sub.id, chunk))
	}
	a.gone = nil
	for i := range a.slots {
		slot := &a.slots[i]
		if !slot.dirty {
			continue
		}
		chunk := a.base + uint64(i)
		switch {
		case slot.full || slot.c != nil:
			c.put(chunkKey(c.key(), keyAcks, queue, sub.id, chunk), slot.appendValue)
			slot.stored = true
		case slot.stored:
			c.batch.Deletes = append(c.batch.Deletes, chunkKey(nil, keyAcks, queue, sub.id, chunk))
			slot.stored = false
		}
		slot.dirty = false
	}
}

func (c *collector) sizes(queues []*Queue) {
	for _, q := range queues {
		z := &q.sizes
		if q.removals != nil {
			for _, chunk := range q.removals.sizes {
				if z.chunk(chunk) == nil { // not created again
					c.batch.Deletes = append(c.batch.Deletes, sizesKey(nil, q.id, chunk))
				}
			}
		}
		for i := range z.slots {
			slot := &z.slots[i]
			if !slot.dirty {
				continue
			}
			chunk := z.base + uint64(i)
			switch {
			case slot.c != nil:
				c.put(sizesKey(c.key(), q.id, chunk), slot.c.appendValue)
				slot.stored = true
			case slot.stored:
				c.batch.Deletes = append(c.batch.Deletes, sizesKey(nil, q.id, chunk))
				slot.stored = false
			}
			slot.dirty = false
		}
	}
}

func (c *collector) counts(queues []*Queue) {
	for _, q := range queues {
		for _, sub := range q.storedSubs() {
			cs := sub.counts
			if !sub.dirty || cs == nil {
				continue
			}
			for _, chunk := range cs.gone {
				if cs.chunks[chunk] == nil { // not created again
					c.batch.Deletes = append(c.batch.Deletes, chunkKey(nil, keyCounts, q.id, sub.id, chunk))
				}
			}
			cs.gone = nil
			for _, chunk := range cs.sorted() {
				if cc := cs.chunks[chunk]; cc.dirty {
					c.put(chunkKey(c.key(), keyCounts, q.id, sub.id, chunk), cc.appendValue)
					cc.dirty, cc.stored = false, true
				}
			}
			if len(cs.chunks) == 0 {
				sub.counts = nil
			}
		}
	}
}

func (c *collector) producers(ps *producers) {
	for _, id := range ps.gone {
		if ps.byID[id] == nil { // not created again
			c.batch.Deletes = append(c.batch.Deletes, producerKey(nil, id))
		}
	}
	ps.gone = nil
	slices.SortFunc(ps.dirty, func(a, b *producer) int { return strings.Compare(a.id, b.id) })
	for _, p := range ps.dirty {
		p.isDirty = false
		if !p.dropped {
			c.put(producerKey(c.key(), p.id), p.appendValue)
			p.stored = true
		}
	}
	ps.dirty = nil
}

func (c *collector) subs(queues []*Queue) {
	for _, q := range queues {
		for _, sub := range q.storedSubs() {
			if sub.dirty {
				c.put(subKey(c.key(), keySub, q.id, sub.id), sub.appendValue)
				sub.dirty, sub.stored = false, true
			}
		}
	}
}

func (q *Queue) dropKeys(sub *Sub) {
	l := q.ownRemovals()
	for _, chunk := range sub.acks.gone {
		l.keys = append(l.keys, chunkKey(nil, keyAcks, q.id, sub.id, chunk))
	}
	for i := range sub.acks.slots {
		if sub.acks.slots[i].stored {
			chunk := sub.acks.base + uint64(i)
			l.keys = append(l.keys, chunkKey(nil, keyAcks, q.id, sub.id, chunk))
		}
	}
	if sub.counts != nil {
		for _, chunk := range sub.counts.gone { // includes chunks created again, since the tree still has their old keys
			l.keys = append(l.keys, chunkKey(nil, keyCounts, q.id, sub.id, chunk))
		}
	}
	for _, chunk := range sub.counts.sorted() {
		if sub.counts.chunks[chunk].stored {
			l.keys = append(l.keys, chunkKey(nil, keyCounts, q.id, sub.id, chunk))
		}
	}
	if sub.stored {
		l.keys = append(l.keys, subKey(nil, keySub, q.id, sub.id))
	}
}
