// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"maps"
	"slices"

	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// A queue with a retention has an additional, hidden subscription, txn.RetentionSub, the last one in Queue.subs.
// Clients cannot list, name or consume from this subscription. It needs the retained messages, so the messages remain
// live. The active raises the floor of the subscription with OpSeek. Operations that acknowledge a message for all
// subscriptions also acknowledge it for this one: a purge of the whole queue, the overflow policy drop-head, the
// expiry of a message, and a forward that moves it. The node discards corrupt messages with an OpAck for each
// subscription, including this one. The hidden subscription never needs such a message again. A new hidden
// subscription needs all live messages (setRetention).

func (q *Queue) retention() *Sub {
	if n := len(q.subs); n > 0 && q.subs[n-1].id == txn.RetentionSub {
		return q.subs[n-1]
	}
	return nil
}

// subOf returns the subscription of an operation, or nil. An OpAck may name the hidden subscription.
func (q *Queue) subOf(o *txn.Op) *Sub {
	if o.Code == txn.OpAck && o.Sub == txn.RetentionSub {
		return q.retention()
	}
	return q.Sub(o.Sub)
}

func (q *Queue) clients() []*Sub {
	if q.retention() != nil {
		return q.subs[:len(q.subs)-1]
	}
	return q.subs
}

// Retained returns the sequence from which on messages can be retained; lower sequences are no longer retained. If the
// queue has no retention, it returns NextSequence, and ok is false.
func (q *Queue) Retained() (floor uint64, ok bool) {
	if sub := q.retention(); sub != nil {
		return sub.acks.floor, true
	}
	return q.nextSeq, false
}

// setRetention creates or removes the hidden subscription according to the configuration. A new hidden subscription
// needs all live messages.
func (s *State) setRetention(q *Queue) {
	sub := q.retention()
	switch wanted := q.config.Retains(); {
	case wanted && sub == nil:
		sub = &Sub{q: q, id: txn.RetentionSub, dirty: true}
		sub.acks = s.deadFrom(q, q.lowestFloor())
		sub.start = sub.acks.floor
		q.subs = append(q.subs, sub)
	case !wanted && sub != nil:
		s.deleteSub(q, sub)
	}
}

// trim ends the retention of the messages below a sequence and returns their number. It ignores a proposal that was
// made for another retention configuration (INV-15).
func (s *State) trim(q *Queue, o *txn.Op) (changed uint64) {
	sub := q.retention()
	if sub == nil {
		return 0
	}
	now := q.Config()
	if now.With(*o.Config, txn.Retention) != now && !mutate.Off("INV-15-retention-is-not-looked-at-again") {
		return 0 // INV-15
	}
	if o.Sequence <= sub.acks.floor {
		return 0 // superseded by an earlier proposal
	}
	return s.ack(sub, sub.acks.floor, o.Sequence-1)
}

// Expiring returns the numbers of the queues with a retention or txn.OverflowDeadLetterHead, in ascending order,
// without fenced queues.
func (s *State) Expiring() []uint64 { return slices.Sorted(maps.Keys(s.expiring)) }

// RetainFrom returns the lowest live sequence, not below the floor of Retained, from which on the live messages are
// within the given limits on messages and bytes. 0 means no limit. If no message fits, it returns NextSequence.
func (q *Queue) RetainFrom(messages, bytes uint64) uint64 {
	floor, _ := q.Retained()
	leftMessages, leftBytes := q.messages, q.bytes // live messages and bytes from the current group on
	fits := func(n, size uint64) bool {
		return (messages == 0 || leftMessages-n <= messages) && (bytes == 0 || leftBytes-size <= bytes)
	}
	for i := range q.sizes.slots {
		c, chunk := q.sizes.slots[i].c, q.sizes.base+uint64(i)
		if c == nil {
			continue
		}
		if fits(0, 0) && floor <= chunk<<chunkBits {
			return max(floor, q.NextAlive(chunk<<chunkBits))
		}
		for w := range chunkWords {
			n, size := c.group(w).alive(), c.group(w).bytes()
			first := wordFirst(chunk, w)
			if n == 0 {
				continue
			}
			if first+64 > floor && (first < floor || fits(n, size)) {
				if seq, ok := q.retainIn(chunk, w, floor, fits); ok {
					return seq
				}
			}
			leftMessages, leftBytes = leftMessages-n, leftBytes-size
		}
	}
	return q.nextSeq
}

func (q *Queue) retainIn(chunk uint64, w int, floor uint64, fits func(n, size uint64) bool) (seq uint64, ok bool) {
	gone := q.sizes.chunk(chunk).part(w)
	for alive := published(chunk, w, q.nextSeq) &^ q.deadWord(chunk, w); alive != 0; alive &= alive - 1 {
		seq = wordFirst(chunk, w) + uint64(trailingZeros(alive))
		if seq >= floor && fits(gone.n, gone.bytes) {
			return seq, true
		}
		gone.add(trailingZeros(alive))
	}
	return 0, false
}
