// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"slices"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// This file models forwards.

// setForwards replaces the rules of a queue with random rules, which may be invalid.
func (m *model) setForwards(b *txn.Builder, q *modelQueue) txn.Code {
	var rules []txn.Forward
	for range m.rng.IntN(3) {
		target := m.pick().id
		if m.rng.IntN(20) == 0 {
			target = m.nextID + 9
		}
		rules = append(rules, txn.Forward{
			Target: target, Move: m.rng.IntN(2) == 0, Filter: []string{"", "size > 3"}[m.rng.IntN(2)],
		})
	}
	b.SetForwards(q.id, rules)
	if len(rules) > 0 && m.forwardedTo(q.id) {
		return txn.ErrForwardChain
	}
	for i, r := range rules {
		target := m.queues[r.Target]
		switch {
		case target == nil:
			return txn.ErrQueueNotFound
		case target == q || len(target.forwards) > 0:
			return txn.ErrForwardChain
		case slices.ContainsFunc(rules[:i], func(o txn.Forward) bool { return o.Target == r.Target }):
			return txn.ErrForwardTwice
		}
	}
	q.forwards = rules
	return txn.OK
}

// forwardedTo reports whether some queue forwards to this one.
func (m *model) forwardedTo(id uint64) bool {
	for _, q := range m.queues {
		if slices.ContainsFunc(q.forwards, func(r txn.Forward) bool { return r.Target == id }) {
			return true
		}
	}
	return false
}

// forward forwards the published messages by the rules of their queue, as the active does. Sometimes the target is
// already deleted, and the forward has no effect.
func (m *model) forward(b *txn.Builder, q *modelQueue, records [][]byte, added map[uint64]uint64) (
	txn.Code, func(first uint64, duplicates txn.Duplicates),
) {
	code := txn.OK
	var changes []func(first uint64, duplicates txn.Duplicates)
	for _, r := range q.forwards {
		var indexes []int
		for i := range records {
			if r.Filter != "" && m.rng.IntN(2) == 0 {
				indexes = append(indexes, i)
			}
		}
		if r.Filter != "" && len(indexes) == 0 {
			continue
		}
		target := r.Target
		if m.rng.IntN(30) == 0 {
			target = m.nextID + 9
		}
		b.Forward(q.id, target, r.Move, indexes)
		if len(indexes) == 0 {
			for i := range records {
				indexes = append(indexes, i)
			}
		}
		to := m.queues[target]
		if to == nil {
			continue
		}
		if full := m.publishRoom(to, added, len(indexes)); code == txn.OK {
			code = full
		}
		changes = append(changes, func(first uint64, duplicates txn.Duplicates) {
			for _, i := range indexes {
				sequence, stored := duplicates.SequenceOf(first, i)
				if !stored {
					continue
				}
				if _, ok := m.duplicate(to, records[i]); !ok {
					to.makeRoom(1)
					m.add(to, records[i])
				}
				for _, s := range q.allSubs() {
					if r.Move {
						delete(s.needs, sequence)
					}
				}
			}
		})
	}
	return code, func(first uint64, duplicates txn.Duplicates) {
		for _, change := range changes {
			change(first, duplicates)
		}
	}
}
