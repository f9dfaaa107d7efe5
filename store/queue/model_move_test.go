// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"maps"
	"slices"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// This file models dead-letter queues and moved messages.

// someConfig draws a dead-letter configuration. The dead-letter queue may be missing, or create a cycle.
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
	c.MaxBytes, c.ExactBytes = m.rng.Uint64N(2)<<40, m.rng.Uint64N(2)
	c.DedupWindow, c.DedupMax = m.rng.Uint64N(3)*40, m.rng.Uint64N(3)*6
	return m.someLog(c)
}

// checkConfig returns txn.OK, or the code with which q rejects the given fields of c. q is nil for a new queue.
func (m *model) checkConfig(q *modelQueue, name string, c txn.Config, fields, changed txn.ConfigMask) txn.Code {
	if c.Overflow == txn.OverflowDeadLetterHead && changed&(txn.FieldOverflow|txn.FieldDeadLetter) != 0 {
		id := uint64(0)
		if q != nil {
			id = q.id
		}
		if m.effective(id, name, c, fields).DeadLetter == 0 {
			return txn.ErrNoDeadLetter
		}
	}
	if q != nil && q.own.Priorities != c.Priorities {
		return txn.ErrPrioritiesFixed
	}
	return m.checkDeadLetter(q, c.DeadLetter)
}

// checkDeadLetter returns txn.OK, or the code for a dead-letter queue of q that is missing or creates a cycle.
func (m *model) checkDeadLetter(q *modelQueue, id uint64) txn.Code {
	if id == 0 {
		return txn.OK
	}
	target := m.queues[id]
	if target == nil {
		return txn.ErrQueueNotFound
	}
	if target == q || m.checkDeadLetter(q, target.own.DeadLetter) != txn.OK {
		return txn.ErrDeadLetterCycle
	}
	for _, s := range target.subs {
		if m.checkDeadLetter(q, s.options.Policy.DeadLetter) != txn.OK {
			return txn.ErrDeadLetterCycle
		}
	}
	return txn.OK
}

// somePolicy draws the overrides of a subscription.
func (m *model) somePolicy() (o txn.SubscriptionOptions) {
	o.Own = txn.ConfigMask(m.rng.Uint64()) & txn.PolicyFields
	if m.rng.IntN(2) == 0 {
		o.Own &= txn.FieldMaxDeliveries | txn.FieldDeadLetter
	}
	o.Policy = txn.Config{RedeliveryDelay: m.rng.Uint64N(5), RedeliveryMultiplier: m.rng.Uint64N(300)}
	o.Policy = txn.Config{}.With(m.someConfig(o.Policy), o.Own)
	return o
}

func (m *model) alterSub(b *txn.Builder, q *modelQueue, s *modelSub) txn.Code {
	c := txn.SubscriptionChange{Filter: m.rng.IntN(2) == 0, Options: m.somePolicy()}
	c.Fields = c.Options.Own | txn.ConfigMask(m.rng.Uint64())&txn.PolicyFields
	if c.Filter {
		c.Options.Filter = []string{"", "size > 4"}[m.rng.IntN(2)]
	}
	if !c.Filter && c.Fields == 0 {
		c.Fields = txn.FieldRedeliveryDelay
	}
	b.AlterSubscription(q.id, s.id, c)
	code := m.checkDeadLetter(q, c.Options.Policy.DeadLetter)
	if code != txn.OK {
		return code
	}
	if c.Filter {
		s.options.Filter = c.Options.Filter
	}
	s.options.Own = s.options.Own&^c.Fields | c.Options.Own
	for i := range 64 { // each field separately
		field := txn.ConfigMask(1) << i
		switch {
		case c.Options.Own&field != 0:
			s.options.Policy = s.options.Policy.With(c.Options.Policy, field)
		case c.Fields&field != 0:
			s.options.Policy = s.options.Policy.With(txn.Config{}, field)
		}
	}
	return txn.OK
}

// deleteTemporary deletes a queue that may be temporary, possibly with an outdated grace period.
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

// inUse reports whether q is a dead-letter queue of another queue or of a policy, or a forwarding target of another
// queue.
func (m *model) inUse(q *modelQueue) bool {
	for _, p := range m.policies {
		if p.Defaults.DeadLetter == q.id {
			return true
		}
	}
	return m.forwardedTo(q.id) || slices.ContainsFunc(slices.Collect(maps.Values(m.queues)), func(o *modelQueue) bool {
		return o.config.DeadLetter == q.id ||
			slices.ContainsFunc(slices.Collect(maps.Values(o.subs)), func(s *modelSub) bool {
				return s.options.Policy.DeadLetter == q.id
			})
	})
}

// move moves some acknowledged and unacknowledged messages of a subscription to another queue, or discards them.
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

// add appends a message.
func (m *model) add(q *modelQueue, rec []byte) {
	m.recordTimes(q, q.next, rec)
	q.records[q.next] = rec
	for _, s := range q.allSubs() {
		s.needs[q.next] = 0
	}
	q.next++
}
