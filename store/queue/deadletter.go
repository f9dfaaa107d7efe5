// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"hash/crc32"

	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/txn"
)

func (s *State) setConfig(q *Queue, c *settings) {
	if q.config != nil {
		addReferences(s.deadLettersTo, q.config.DeadLetter, -1)
	}
	q.config = c
	addReferences(s.deadLettersTo, c.DeadLetter, 1)
	s.index(q)
}

// index adds the queue to the lists of queues for which the active creates proposals, or removes it. A fenced queue is
// not in the lists.
func (s *State) index(q *Queue) {
	c, served := q.config, q.move == nil
	putIf(served && c.TTL != 0, s.ttls, q.id, int64(c.TTL))
	putIf(served && (c.Retains() || c.Overflow == txn.OverflowDeadLetterHead), s.expiring, q.id, struct{}{})
	putIf(served && c.TemporaryGrace != 0, s.temporary, q.id, q)
}

// putIf sets the value of key if wanted is true, and deletes key otherwise.
func putIf[V any](wanted bool, m map[uint64]V, key uint64, value V) {
	if wanted {
		m[key] = value
	} else {
		delete(m, key)
	}
}

// addReferences adds n to the number of references to target, unless target is txn.NoQueue.
func addReferences(counts map[uint64]int, target uint64, n int) {
	if target == txn.NoQueue {
		return
	}
	if counts[target] += n; counts[target] == 0 {
		delete(counts, target)
	}
}

// checkConfig verifies that c may be the configuration set on q itself. fields is the mask of the fields that are set,
// and changed the mask of those that the transaction sets. q is nil for a new queue.
func (s *State) checkConfig(q *Queue, name string, c *txn.Config, fields, changed txn.ConfigMask) txn.Code {
	if c.Overflow == txn.OverflowDeadLetterHead && changed&(txn.FieldOverflow|txn.FieldDeadLetter) != 0 &&
		s.settingsOf(q, name, c, fields).DeadLetter == txn.NoQueue {
		return txn.ErrNoDeadLetter
	}
	if q != nil && q.config.Priorities != c.Priorities {
		return txn.ErrPrioritiesFixed
	}
	return s.checkDeadLetter(q, c.DeadLetter)
}

// checkDeadLetter verifies that q, or one of its subscriptions, may use target as dead-letter queue. The target must
// exist, and must not be fenced unless q is fenced. No chain of dead-letter queues from target may lead to q. q is nil
// for a new queue.
func (s *State) checkDeadLetter(q *Queue, target uint64) txn.Code {
	if target == txn.NoQueue {
		return txn.OK
	}
	if (q == nil || !q.fenced()) && s.queues.get(target).checkServed() != txn.OK {
		return txn.ErrMoved
	}
	seen := map[uint64]bool{target: true}
	for list := []uint64{target}; len(list) > 0; {
		at := s.queues.get(list[len(list)-1])
		list = list[:len(list)-1]
		switch at {
		case nil:
			return txn.ErrQueueNotFound
		case q:
			return txn.ErrDeadLetterCycle
		}
		for id := range at.ownDeadLetters { // a dead-letter queue set by a policy never creates a cycle
			if !seen[id] {
				seen[id] = true
				list = append(list, id)
			}
		}
	}
	return txn.OK
}

// deadLetters iterates over the dead-letter queues of the queue and of its subscriptions.
func (q *Queue) deadLetters(yield func(id uint64) bool) {
	q.deadLettersFrom(q.config.DeadLetter, yield)
}

// ownDeadLetters is like deadLetters, but excludes the dead-letter queue set by a policy.
func (q *Queue) ownDeadLetters(yield func(id uint64) bool) {
	q.deadLettersFrom(q.config.ownConfig().DeadLetter, yield)
}

func (q *Queue) deadLettersFrom(own uint64, yield func(id uint64) bool) {
	if own != txn.NoQueue && !yield(own) {
		return
	}
	for _, p := range q.policies {
		if id := p.values.DeadLetter; id != txn.NoQueue && !yield(id) {
			return
		}
	}
}

func (s *State) alterSub(q *Queue, o *txn.Op) {
	sub, c := q.Sub(o.Sub), o.SubscriptionChange()
	s.touch(q) // dispatchers must re-evaluate the queue
	q.digest = mix(q.digest, uint64(crc32.Checksum(o.Raw, s.crc)))
	addReferences(s.deadLettersTo, sub.deadLetter(), -1)
	sub.setOptions(sub.Name(), c.Apply(sub.Options()))
	addReferences(s.deadLettersTo, sub.deadLetter(), 1)
	s.deadLettersChanged(q)
	sub.dirty = true
	if c.Filter {
		s.filters++
	}
}

// Filters returns a counter that changes when a subscription's filter is altered.
func (s *State) Filters() uint64 { return s.filters }

// checkMove verifies an OpMove. All its messages, including those already acknowledged, count toward the limits of the
// target.
func (s *State) checkMove(o *txn.Op, sub *Sub) txn.Code {
	bytes, err := o.CheckMoves()
	if err != nil {
		return codeOf(err)
	}
	for sequence := range o.Moves {
		if sequence >= sub.q.nextSeq {
			return txn.ErrBeyondEnd
		}
	}
	if o.Target == txn.NoQueue {
		return txn.OK
	}
	target := s.queues.get(o.Target)
	switch target {
	case nil:
		return txn.ErrQueueNotFound
	case sub.q:
		return txn.ErrDeadLetterCycle
	}
	if code := target.checkServed(); code != txn.OK {
		return code
	}
	return s.checkRoom(target, o.Count, bytes)
}

// move applies an OpMove. It acknowledges the messages that are neither acknowledged nor reserved, and publishes
// them to the target, if any.
func (s *State) move(q *Queue, o *txn.Op, r *txn.OpResult) {
	sub, target := q.Sub(o.Sub), s.queues.get(o.Target)
	if target != nil {
		r.FirstSequence = target.nextSeq
		s.mark(target)
		target.digest = mix(mix(target.digest, uint64(o.Code)), target.nextSeq)
	}
	for sequence, rec := range o.Moves {
		if sub.acks.has(sequence) && !mutate.Off("INV-14-a-message-is-moved-twice") {
			continue // INV-14
		}
		if sub.reserved.has(sequence) {
			continue // a prepared transaction will acknowledge it
		}
		s.ack(sub, sequence, sequence)
		r.Changed++
		if target != nil {
			target.digest = mix(target.digest, uint64(crc32.Checksum(rec, s.crc)))
			s.append(target, rec, 0)
		}
	}
	if r.Changed > 0 {
		s.touch(q)
	}
	if target == nil && r.Changed > 0 {
		q.own().dropped += r.Changed
	}
	if target != nil && r.Changed > 0 {
		s.touch(target)
	}
	q.digest = mix(q.digest, uint64(crc32.Checksum(o.Raw, s.crc)))
}

// append publishes one message to q. sum is the CRC32C of its record, or 0 if unknown.
func (s *State) append(q *Queue, rec []byte, sum uint32) {
	if len(q.subs) == 0 {
		q.nextSeq++
		return
	}
	s.makeRoom(q, 1, len(rec))
	if q.tail.n == 0 {
		q.tail.first = q.nextSeq
		s.linkTail(q)
	}
	s.push(q, rec, sum)
}
