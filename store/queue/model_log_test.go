// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"maps"
	"slices"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// This file models retention, seeks and overflow.

// someLog draws a retention and an overflow policy.
func (m *model) someLog(c txn.Config) txn.Config {
	c.RetentionAge, c.RetentionBytes, c.RetentionMessages = 0, 0, 0
	switch m.rng.IntN(6) {
	case 0:
		c.RetentionAge = 1 + m.rng.Uint64N(2)
	case 1:
		c.RetentionBytes = 1 + m.rng.Uint64N(2)
	case 2:
		c.RetentionMessages = 1
	}
	c.Overflow = m.rng.Uint64N(3)
	return c
}

// allSubs returns all subscriptions, including the hidden one.
func (q *modelQueue) allSubs() []*modelSub {
	subs := slices.Collect(maps.Values(q.subs))
	if q.hidden != nil {
		subs = append(subs, q.hidden)
	}
	return subs
}

func (q *modelQueue) needed(seq uint64) bool {
	if q.hidden != nil {
		if _, ok := q.hidden.needs[seq]; ok {
			return true
		}
	}
	for _, s := range q.subs {
		if _, ok := s.needs[seq]; ok {
			return true
		}
	}
	return false
}

// needAlive sets the needs of the new subscription s to the live messages at or after from.
func (q *modelQueue) needAlive(s *modelSub, from uint64) {
	for _, other := range q.allSubs() {
		for seq := range other.needs {
			if seq >= from {
				s.needs[seq] = 0
			}
		}
	}
}

func (q *modelQueue) setRetention() {
	switch {
	case !q.config.Retains():
		q.hidden = nil
	case q.hidden == nil:
		hidden := &modelSub{id: txn.RetentionSub, needs: map[uint64]uint32{}, queueID: q.id}
		q.needAlive(hidden, 1)
		q.hidden = hidden
	}
}

// first returns the first message that s needs, or next.
func (s *modelSub) first(next uint64) uint64 {
	for seq := range s.needs {
		next = min(next, seq)
	}
	return next
}

// ackBelow acknowledges the messages of s below sequence and returns their number.
func (s *modelSub) ackBelow(sequence uint64) (changed uint64) {
	for seq := range s.needs {
		if seq < sequence {
			delete(s.needs, seq)
			changed++
		}
	}
	return changed
}

// seek moves a subscription or trims the retention, sometimes with an outdated retention.
func (m *model) seek(b *txn.Builder, q *modelQueue, s *modelSub, want *txn.Result, i int) (txn.Code, func()) {
	sequence, code := 1+m.rng.Uint64N(q.next), txn.OK
	if m.rng.IntN(4) == 0 {
		sequence = max(1, q.next-min(q.next, m.rng.Uint64N(40)))
	}
	if m.rng.IntN(30) == 0 {
		sequence, code = q.next+1, txn.ErrBeyondEnd
	}
	if m.rng.IntN(2) == 0 {
		b.Seek(q.id, s.id, sequence)
		if code == txn.OK && m.isReserved(q, s.id) {
			code = txn.ErrPreparedInUse
		}
		return code, func() {
			s.ackBelow(sequence)
			q.needAlive(s, sequence)
			for seq := range s.needs {
				s.needs[seq] = 0
			}
			want.Ops[i] = txn.OpResult{FirstSequence: s.first(q.next), Changed: uint64(len(s.needs))}
		}
	}
	decided := q.config
	if m.rng.IntN(4) == 0 {
		decided.RetentionMessages += 7
	}
	b.Trim(q.id, sequence, &decided)
	return code, func() {
		want.Ops[i] = txn.OpResult{FirstSequence: q.next}
		if q.hidden == nil {
			return
		}
		if decided.With(q.config, txn.Retention) == decided {
			want.Ops[i].Changed = q.hidden.ackBelow(sequence)
		}
		want.Ops[i].FirstSequence = q.hidden.first(q.next)
	}
}

// publishRoom is room for a publish of a client, which a paused queue rejects.
func (m *model) publishRoom(q *modelQueue, added map[uint64]uint64, n int) txn.Code {
	if q.pauses[0].Publish {
		return txn.ErrQueuePaused
	}
	return m.room(q, added, n)
}

// room returns txn.OK, or the code with which a queue rejects n more messages. added counts the additions of the
// transaction itself.
func (m *model) room(q *modelQueue, added map[uint64]uint64, n int) txn.Code {
	if len(q.allSubs()) == 0 {
		return txn.OK
	}
	added[q.id] += uint64(n)
	limit, alive := q.config.MaxMessages, uint64(q.alive())
	switch {
	case limit == 0 || alive+added[q.id]+uint64(m.held(q)) <= limit:
		return txn.OK
	case q.config.Overflow == txn.OverflowReject || added[q.id] > limit:
		return txn.ErrQueueFull
	case q.config.Overflow == txn.OverflowDeadLetterHead && (q.atSlack() || m.queues[q.config.DeadLetter].isFull()):
		return txn.ErrQueueFull
	}
	return txn.OK
}

func (q *modelQueue) atSlack() bool {
	limit := q.config.MaxMessages
	return limit > 0 && uint64(q.alive()) >= limit+limit/10+1000
}

func (q *modelQueue) isFull() bool {
	switch limit := q.config.MaxMessages; {
	case len(q.allSubs()) == 0 || limit == 0:
		return false
	case q.config.Overflow == txn.OverflowReject:
		return uint64(q.alive()) >= limit
	case q.config.Overflow == txn.OverflowDeadLetterHead:
		return q.atSlack()
	}
	return false
}

// makeRoom drops the oldest messages of a drop-head queue until n more fit.
func (q *modelQueue) makeRoom(n int) {
	limit := int(q.config.MaxMessages)
	if limit == 0 || q.config.Overflow != txn.OverflowDropHead || len(q.allSubs()) == 0 {
		return
	}
	excess := q.alive() + n - limit
	for seq := uint64(1); seq < q.next && excess > 0; seq++ {
		if !q.needed(seq) {
			continue
		}
		for _, s := range q.allSubs() {
			delete(s.needs, seq)
		}
		excess--
	}
}
