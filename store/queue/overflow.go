// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"math"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// OverflowQueue is the number that TakeTouched gives when a queue holds more than it is to hold. No queue ever has it.
const OverflowQueue = math.MaxUint64

// overflowSlackMessages and overflowSlackBytes are what a queue with txn.OverflowDeadLetterHead may hold beyond its
// limits, beside a tenth of them, until the active has moved the excess: more is refused.
const (
	overflowSlackMessages = 1000
	overflowSlackBytes    = 1 << 20
)

// checkRoom tells whether a queue may hold so many more messages. What a transaction publishes to it must be within the
// limits by itself, whatever happens to a queue that is full.
func (s *State) checkRoom(q *Queue, messages, bytes int) txn.Code {
	if len(q.subs) == 0 || !q.config.Limited() {
		return txn.OK // nothing will be kept, or there is no limit
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

// fits tells whether so many messages are within the limits if the queue holds nothing else.
func (q *Queue) fits(messages, bytes uint64) bool {
	c := q.config
	return (c.MaxMessages == 0 || messages <= c.MaxMessages) && (c.MaxBytes == 0 || bytes <= c.MaxBytes)
}

// within tells whether the queue may hold so many more messages, if its limits are higher by a slack.
func (q *Queue) within(messages, bytes, slackMessages, slackBytes uint64) bool {
	c := q.config
	return (c.MaxMessages == 0 || q.messages+messages <= add(c.MaxMessages, slackMessages)) &&
		(c.MaxBytes == 0 || q.bytes+bytes <= add(c.MaxBytes, slackBytes))
}

// atSlack tells whether a queue with txn.OverflowDeadLetterHead holds all that it may until the active has moved some.
func (q *Queue) atSlack() bool {
	c := q.config
	return !q.within(1, 1, c.MaxMessages/10+overflowSlackMessages, c.MaxBytes/10+overflowSlackBytes)
}

// add is a + b, or the greatest number.
func add(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

// isFull tells whether a queue would refuse any message.
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

// Overflowing tells how many of the oldest messages have to leave a queue with txn.OverflowDeadLetterHead so that it is
// within its limits: the messages from the first one alive up to, and not including, the sequence end; 0 if none.
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

// makeRoom drops the oldest messages of a queue that does so when it is full, until so many more are within its limits:
// it acknowledges them for all subscriptions.
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

// Room is what one transaction may publish to a queue at present.
type Room struct {
	messages, bytes uint64
	largest         uint64 // a message of more bytes never fits
}

// Room returns what one transaction may publish to q, as checkRoom decides. A queue that drops its oldest messages has
// room for all that fits into it when it is empty.
func (s *State) Room(q *Queue) Room {
	c := q.config
	if len(q.subs) == 0 || !c.Limited() {
		return Room{math.MaxUint64, math.MaxUint64, math.MaxUint64}
	}
	all := Room{orUnlimited(c.MaxMessages), orUnlimited(c.MaxBytes), orUnlimited(c.MaxBytes)}
	if c.Overflow == txn.OverflowDropHead ||
		c.Overflow == txn.OverflowDeadLetterHead && !q.atSlack() && !s.isFull(c.DeadLetter) {
		return all
	}
	held := s.held(q)
	all.messages -= min(all.messages, add(q.messages, held.messages))
	all.bytes -= min(all.bytes, add(q.bytes, held.bytes))
	return all
}

func orUnlimited(limit uint64) uint64 {
	if limit == 0 {
		return math.MaxUint64
	}
	return limit
}

// Add reports whether there is room for one more message, and takes that room.
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

// Never reports whether a message of this size does not fit into the queue when it is empty.
func (r *Room) Never(size int) bool { return uint64(size) > r.largest }
