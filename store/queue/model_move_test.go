// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"maps"
	"slices"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// This file is the model of dead-letter queues and of messages that are moved.

// someConfig draws what a queue does with messages that no consumer can deal with. Its queue may not be there, or lead
// back.
func (m *model) someConfig(c txn.Config) txn.Config {
	c.TTL = uint64(m.rng.IntN(3) * m.rng.IntN(100))
	c.MaxDeliveries, c.DeadLetter, c.TemporaryGrace = m.rng.Uint64N(3), 0, m.rng.Uint64N(3)
	if q := m.pick(); q != nil && m.rng.IntN(2) == 0 {
		c.DeadLetter = q.id
	}
	if m.rng.IntN(20) == 0 {
		c.DeadLetter = m.nextID + 7
	}
	if m.rng.IntN(8) == 0 {
		c.Priorities ^= 1
	}
	return m.someLog(c)
}

// checkConfig is why q may not have c; q is nil for a queue to be made.
func (m *model) checkConfig(q *modelQueue, c txn.Config) txn.Code {
	if c.Overflow == txn.OverflowDeadLetterHead && c.DeadLetter == 0 {
		return txn.ErrNoDeadLetter
	}
	if q != nil && q.config.Priorities != c.Priorities {
		return txn.ErrPrioritiesFixed
	}
	for id := c.DeadLetter; id != 0; {
		target := m.queues[id]
		if target == nil {
			return txn.ErrQueueNotFound
		}
		if target == q {
			return txn.ErrDeadLetterCycle
		}
		id = target.config.DeadLetter
	}
	return txn.OK
}

// deleteTemporary deletes a queue that may be temporary, or not as it was.
func (m *model) deleteTemporary(b *txn.Builder, want *txn.Result, q *modelQueue) {
	grace := 1 + m.rng.Uint64N(2)
	b.DeleteTemporary(q.id, grace)
	if m.inUse(q) {
		want.Code, want.Op = txn.ErrQueueInUse, 0
		return
	}
	if m.isHeld(q) {
		want.Code, want.Op = txn.ErrPreparedInUse, 0
		return
	}
	want.Ops = []txn.OpResult{{}}
	if q.config.TemporaryGrace == grace {
		want.Ops[0].Changed = uint64(q.alive())
		delete(m.queues, q.id)
	}
}

// inUse tells whether q is the dead-letter queue of another one, or is forwarded to.
func (m *model) inUse(q *modelQueue) bool {
	return m.forwardedTo(q.id) || slices.ContainsFunc(slices.Collect(maps.Values(m.queues)), func(o *modelQueue) bool {
		return o.config.DeadLetter == q.id
	})
}

// move moves some messages of a subscription, acknowledged ones among them, to another queue or nowhere.
func (m *model) move(
	b *txn.Builder, q *modelQueue, s *modelSub, added map[uint64]uint64, want *txn.Result, i int,
) (txn.Code, func()) {
	code := txn.OK
	var target *modelQueue
	id := uint64(txn.NoQueue)
	if m.rng.IntN(3) > 0 {
		target = m.pick()
		id = target.id
	}
	if m.rng.IntN(40) == 0 {
		id, target, code = m.nextID+9, nil, txn.ErrQueueNotFound
	}
	if target == q {
		code = txn.ErrDeadLetterCycle
	}
	var sequences []uint64
	for sequence := uint64(1); sequence < q.next && len(sequences) < 20; sequence += 1 + m.rng.Uint64N(1+q.next/16) {
		sequences = append(sequences, sequence)
	}
	if len(sequences) == 0 || m.rng.IntN(60) == 0 {
		sequences, code = append(sequences, q.next), txn.ErrBeyondEnd
	}
	b.BeginMove(q.id, s.id, id)
	records := make([][]byte, len(sequences))
	for n, sequence := range sequences {
		if id != txn.NoQueue {
			a := m.someTimes()
			a.DeadLetter = &txn.DeadLetter{
				Queue: q.name, Subscription: s.name, Sequence: sequence, Reason: txn.DeadRejected,
			}
			a.Priority = m.somePriority(target)
			rec, err := txn.AppendMessage(nil, int64(sequence), a, nil, make([]byte, m.rng.IntN(60)))
			if err != nil {
				panic(err)
			}
			records[n] = rec
		}
		b.Move(sequence, records[n])
	}
	b.EndMove()
	if code == txn.OK && target != nil {
		code = m.room(target, added, len(sequences))
	}
	return code, func() {
		r := &want.Ops[i]
		if target != nil {
			r.FirstSequence = target.next
		}
		for n, sequence := range sequences {
			if _, needed := s.needs[sequence]; !needed || m.reserved(q.id, s.id)[sequence] {
				continue
			}
			delete(s.needs, sequence)
			r.Changed++
			if target != nil {
				target.makeRoom(1)
				m.add(target, records[n])
			}
		}
	}
}

// add puts a message at the end.
func (m *model) add(q *modelQueue, rec []byte) {
	m.note(q, q.next, rec)
	q.records[q.next] = rec
	for _, s := range q.everyone() {
		s.needs[q.next] = 0
	}
	q.next++
}
