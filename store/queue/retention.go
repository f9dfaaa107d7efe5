// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"maps"
	"slices"

	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// A queue with a retention has one subscription more, txn.RetentionSub, the last one in Queue.subs: no client can see
// it, name it or consume from it. It needs what is retained, so that a message dies, as ever, when no subscription
// needs it any more. The active proposes with OpSeek to raise its floor; nothing else but a purge of the whole queue
// and the overflow drop-head acknowledges for it. What it does not need any more never comes back to it.

// retention gives the hidden subscription; nil if there is none.
func (q *Queue) retention() *Sub {
	if n := len(q.subs); n > 0 && q.subs[n-1].id == txn.RetentionSub {
		return q.subs[n-1]
	}
	return nil
}

// clients are the subscriptions that clients have made.
func (q *Queue) clients() []*Sub {
	if q.retention() != nil {
		return q.subs[:len(q.subs)-1]
	}
	return q.subs
}

// Retained tells where the messages begin that are kept because of a retention; ok is false if there is none.
func (q *Queue) Retained() (floor uint64, ok bool) {
	if sub := q.retention(); sub != nil {
		return sub.acks.floor, true
	}
	return q.nextSeq, false
}

// setRetention makes or removes the hidden subscription as the configuration wants. A new one begins with what is
// alive.
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

// trim ends the retention of what is below a sequence, and gives how many messages that were. A proposal that was made
// for another retention changes nothing: it says what that one would have kept (INV-15).
func (s *State) trim(q *Queue, o *txn.Op) (changed uint64) {
	sub := q.retention()
	if sub == nil {
		return 0
	}
	if q.config.With(o.Config, txn.Retention) != *q.config && !mutate.Off("INV-15-retention-is-not-looked-at-again") {
		return 0 // INV-15
	}
	if o.Sequence <= sub.acks.floor {
		return 0 // an earlier one was quicker
	}
	return s.ack(sub, sub.acks.floor, o.Sequence-1)
}

// listSwept notes whether the active has something to do with a queue now and then.
func (s *State) listSwept(q *Queue, wanted bool) {
	if !wanted {
		delete(s.swept, q.id)
		return
	}
	if s.swept == nil {
		s.swept = make(map[uint64]struct{})
	}
	s.swept[q.id] = struct{}{}
}

// Swept gives the numbers of the queues that have a retention or txn.OverflowDeadLetterHead, rising.
func (s *State) Swept() []uint64 { return slices.Sorted(maps.Keys(s.swept)) }

// RetainFrom gives the sequence that the messages have to be kept from so that at most so many messages, of so many
// bytes, are kept because of the retention; 0 means no limit. It is Retained's floor when they are within the limits.
// What it costs is what has to go, and what is older than all that is retained.
func (q *Queue) RetainFrom(messages, bytes uint64) uint64 {
	floor, _ := q.Retained()
	leftMessages, leftBytes := q.messages, q.bytes // alive from the current group on
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

// retainIn looks for RetainFrom's answer in a group: the first message of it that can be kept.
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
