// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"math"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// OverflowQueue is in the result of TakeTouched if the active must move messages of a queue that exceeds its limits. No
// queue has this number.
const OverflowQueue = math.MaxUint64

// A queue with txn.OverflowDeadLetterHead accepts publishes until it exceeds its limits by this slack and a tenth of
// the limits, or until it exceeds its limits and the dead-letter queue is full. Further publishes are rejected until
// the active has moved messages.
const (
	overflowSlackMessages = 1000
	overflowSlackBytes    = 1 << 20
)

// checkRoom verifies that a queue can accept the given messages and bytes, in addition to those of earlier calls for
// the same transaction. Regardless of the overflow policy, all publishes of one transaction to a queue must fit into
// the empty queue.
func (s *State) checkRoom(q *Queue, messages, bytes int) txn.Code {
	if len(q.subs) == 0 || !q.config.Limited() {
		return txn.OK // no message is kept, or there is no limit
	}
	if int(q.pending) >= len(s.pending) || s.pending[q.pending].q != q {
		q.pending = uint32(len(s.pending))
		s.pending = append(s.pending, pending{q: q})
	}
	p := &s.pending[q.pending]
	p.messages += uint64(messages)
	p.bytes += uint64(bytes)
	held := s.held(q)
	switch {
	case q.within(p.messages+held.messages, p.bytes+held.bytes, 0, 0):
		return txn.OK
	case q.config.Overflow == txn.OverflowReject || !q.fits(p.messages, p.bytes):
		return txn.ErrQueueFull
	case q.config.Overflow == txn.OverflowDeadLetterHead && (q.atSlack() || s.isFull(q.config.DeadLetter)):
		return txn.ErrQueueFull
	}
	return txn.OK
}

// fits reports whether the messages fit into the empty queue.
func (q *Queue) fits(messages, bytes uint64) bool {
	c := q.config
	return (c.MaxMessages == 0 || messages <= c.MaxMessages) && (c.MaxBytes == 0 || bytes <= c.MaxBytes)
}

// within reports whether the queue would be within its limits, raised by the slack, with the additional messages
// and bytes.
func (q *Queue) within(messages, bytes, slackMessages, slackBytes uint64) bool {
	c := q.config
	return (c.MaxMessages == 0 || q.messages+messages <= add(c.MaxMessages, slackMessages)) &&
		(c.MaxBytes == 0 || q.bytes+bytes <= add(c.MaxBytes, slackBytes))
}

// atSlack reports whether a queue with txn.OverflowDeadLetterHead has used its slack.
func (q *Queue) atSlack() bool {
	c := q.config
	return !q.within(1, 1, c.MaxMessages/10+overflowSlackMessages, c.MaxBytes/10+overflowSlackBytes)
}

// add returns a + b, saturated at math.MaxUint64.
func add(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

func (s *State) isFull(id uint64) bool {
	q := s.queues.get(id)
	switch {
	case q == nil:
		return true
	case len(q.subs) == 0:
		return false
	case q.config.Overflow == txn.OverflowReject:
		return !q.within(1, 1, 0, 0)
	case q.config.Overflow == txn.OverflowDeadLetterHead:
		return q.atSlack()
	}
	return false
}

// Overflowing returns the sequence below which the live messages must be moved to bring a queue with
// txn.OverflowDeadLetterHead within its limits. It returns 0 if the queue is within its limits or has another policy.
func (q *Queue) Overflowing() (end uint64) {
	if q.config.Overflow != txn.OverflowDeadLetterHead || q.within(0, 0, 0, 0) {
		return 0
	}
	messages, bytes := q.messages, q.bytes
	for i := range q.sizes.slots {
		c, chunk := q.sizes.slots[i].c, q.sizes.base+uint64(i)
		for w := range chunkWords {
			if c == nil || c.group(w).alive() == 0 {
				continue
			}
			part := c.part(w)
			for alive := published(chunk, w, q.nextSeq) &^ q.deadWord(chunk, w); alive != 0; alive &= alive - 1 {
				if q.fits(messages-part.n, bytes-part.bytes) {
					return wordFirst(chunk, w) + uint64(trailingZeros(alive))
				}
				part.add(trailingZeros(alive))
			}
			messages, bytes = messages-part.n, bytes-part.bytes
		}
	}
	return q.nextSeq
}

// makeRoom drops the oldest messages of a queue with txn.OverflowDropHead until the new messages fit.
func (s *State) makeRoom(q *Queue, messages, bytes int) {
	if q.config.Overflow != txn.OverflowDropHead || q.within(uint64(messages), uint64(bytes), 0, 0) {
		return
	}
	dropped := uint64(0)
	for seq := q.NextAlive(1); seq < q.nextSeq; seq = q.NextAlive(seq + 1) {
		if q.within(uint64(messages), uint64(bytes), 0, 0) {
			break
		}
		for _, sub := range q.subs {
			s.ack(sub, seq, seq)
		}
		dropped++
	}
	s.overflowed += dropped
	q.digest = mix(q.digest, dropped)
}

// Room is the free space of a queue for the publishes of one transaction.
type Room struct {
	messages, bytes uint64
	largest         uint64 // a larger message never fits
}

// Room returns the free space of q for one transaction. If the overflow policy currently removes messages to free
// space for new ones, the result is the full capacity of q.
func (s *State) Room(q *Queue) Room {
	c := q.config
	if len(q.subs) == 0 || !c.Limited() {
		return Room{math.MaxUint64, math.MaxUint64, math.MaxUint64}
	}
	maxBytes := cmp.Or(c.MaxBytes, math.MaxUint64)
	all := Room{cmp.Or(c.MaxMessages, math.MaxUint64), maxBytes, maxBytes}
	if c.Overflow == txn.OverflowDropHead ||
		c.Overflow == txn.OverflowDeadLetterHead && !q.atSlack() && !s.isFull(c.DeadLetter) {
		return all
	}
	held := s.held(q)
	all.messages -= min(all.messages, add(q.messages, held.messages))
	all.bytes -= min(all.bytes, add(q.bytes, held.bytes))
	return all
}

// Add reports whether one more message of size bytes fits. If so, it reserves the space.
func (r *Room) Add(size int) bool {
	if r.messages == 0 || r.bytes < uint64(size) {
		return false
	}
	if r.messages != math.MaxUint64 {
		r.messages--
	}
	if r.largest != math.MaxUint64 {
		r.bytes -= uint64(size)
	}
	return true
}

// Never reports whether a message of this size is too large even for the empty queue.
func (r *Room) Never(size int) bool { return uint64(size) > r.largest }
