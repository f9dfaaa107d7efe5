// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"math"
	"slices"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// checkSeek verifies an OpSeek. sub is nil for the hidden subscription.
func checkSeek(q *Queue, sub *Sub, o *txn.Op) txn.Code {
	switch {
	case o.Sequence > q.nextSeq:
		return txn.ErrBeyondEnd
	case sub != nil && sub.reserved != nil:
		return txn.ErrPreparedInUse
	}
	return txn.OK
}

func (s *State) seek(q *Queue, o *txn.Op, r *txn.OpResult) {
	q.digest = mix(q.digest, o.Sequence)
	if o.Sub == txn.RetentionSub {
		r.Changed = s.trim(q, o)
		r.FirstSequence, _ = q.Retained()
		return
	}
	sub := q.Sub(o.Sub)
	s.touch(q)
	// Mark messages as dead before the live ones are determined.
	s.ack(sub, sub.acks.floor, o.Sequence-1)
	sub.counts.clear()
	sub.acks.replace(&s.ackPool, s.deadFrom(q, o.Sequence))
	sub.start = min(sub.start, sub.acks.floor)
	sub.dirty = true
	q.slow = 0
	r.FirstSequence, r.Changed = sub.NextUnacked(1), sub.Backlog()
}

// deadFrom returns the acknowledgements of a subscription that needs exactly the live messages from seq on.
func (s *State) deadFrom(q *Queue, seq uint64) ackSet {
	a := ackSet{floor: seq}
	for chunk := seq >> chunkBits; chunk<<chunkBits < q.nextSeq; chunk++ {
		sizes := q.sizes.chunk(chunk)
		if sizes != nil && sizes.n == ChunkSize {
			continue // all messages are live
		}
		var c ackChunk
		for w := range c.words {
			v := q.deadWord(chunk, w) & published(chunk, w, q.nextSeq)
			if first := wordFirst(chunk, w); first < seq {
				v &^= belowMask(seq - first)
			}
			c.words[w] = v
			c.n += ones(v)
		}
		if c.n == 0 {
			continue
		}
		slot := a.ensure(chunk, a.floor>>chunkBits)
		slot.dirty = true
		a.above += uint64(c.n)
		if c.n == ChunkSize {
			slot.full = true
			continue
		}
		slot.c = s.ackPool.get()
		*slot.c = c
	}
	a.advance(&s.ackPool, a.floor)
	return a
}

// replace replaces the content of a with the content of by. a continues to record which chunks are in the tree.
func (a *ackSet) replace(p *pool[ackChunk], by ackSet) {
	stored := a.gone
	for i := range a.slots {
		if a.slots[i].stored {
			stored = append(stored, a.base+uint64(i))
		}
		p.put(a.slots[i].c)
	}
	slices.Sort(stored)
	by.gone = nil
	for _, chunk := range stored {
		if chunk < by.floor>>chunkBits {
			by.gone = append(by.gone, chunk)
			continue
		}
		slot := by.ensure(chunk, by.floor>>chunkBits)
		slot.stored, slot.dirty = true, true
	}
	*a = by
}

func (cs *countSet) clear() {
	for _, chunk := range cs.sorted() {
		cs.remove(chunk, 0, math.MaxUint16-1)
	}
}
