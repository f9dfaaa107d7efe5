// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// This file models prepared transactions and conditional acknowledgements.

// modelPrepared is an undecided prepared transaction.
type modelPrepared struct {
	number uint64
	ops    []modelOp
}

// modelOp is a publish if sub is 0, otherwise a take.
type modelOp struct {
	queue     uint64
	sub       uint32
	bodies    [][]byte
	ids       []string // message IDs, by body
	sequences []uint64
}

// modelOutcome is the decision on a prepared transaction.
type modelOutcome struct {
	committed bool
	by        txn.Decider
}

// held returns the number of messages that prepared transactions publish to a queue.
func (m *model) held(q *modelQueue) (n int) {
	for _, p := range m.prepared {
		for _, o := range p.ops {
			if o.queue == q.id {
				n += len(o.bodies)
			}
		}
	}
	return n
}

// isHeld reports whether a prepared transaction has an operation on a queue.
func (m *model) isHeld(q *modelQueue) bool {
	for _, p := range m.prepared {
		if slices.ContainsFunc(p.ops, func(o modelOp) bool { return o.queue == q.id }) {
			return true
		}
	}
	return false
}

// reserved returns the messages of a subscription that prepared transactions have taken.
func (m *model) reserved(queue uint64, sub uint32) map[uint64]bool {
	out := map[uint64]bool{}
	for _, p := range m.prepared {
		for _, o := range p.ops {
			for _, sequence := range o.sequences {
				if o.queue == queue && o.sub == sub {
					out[sequence] = true
				}
			}
		}
	}
	return out
}

// isReserved reports whether a subscription has reserved messages. If sub is 0, it checks all subscriptions.
func (m *model) isReserved(q *modelQueue, sub uint32) bool {
	for id := range q.subs {
		if (sub == 0 || sub == id) && len(m.reserved(q.id, id)) > 0 {
			return true
		}
	}
	return false
}

// take draws messages of a subscription, and returns the code of an OpTake of these messages.
func (m *model) take(q *modelQueue, s *modelSub) (sequences []uint64, code txn.Code) {
	reserved := m.reserved(q.id, s.id)
	free := slices.Sorted(maps.Keys(s.needs))
	if m.rng.IntN(4) > 0 { // messages that can be taken
		free = slices.DeleteFunc(free, func(sequence uint64) bool { return reserved[sequence] })
	}
	for len(free) > 0 && len(sequences) < 1+m.rng.IntN(6) {
		n := m.rng.IntN(min(len(free), 30))
		sequences = append(sequences, free[n])
		free = slices.Delete(free, n, n+1)
	}
	if len(sequences) == 0 || m.rng.IntN(10) == 0 {
		sequences = append(sequences, 1+m.rng.Uint64N(q.next+1)) // possibly acknowledged or not published
	}
	for _, sequence := range sequences { // the first message that cannot be taken determines the code
		_, needed := s.needs[sequence]
		switch {
		case sequence >= q.next:
			return sequences, txn.ErrBeyondEnd
		case !needed:
			return sequences, txn.ErrAlreadyAcknowledged
		case reserved[sequence]:
			return sequences, txn.ErrReserved
		}
	}
	return sequences, txn.OK
}

func single(sequences []uint64) []txn.Range {
	ranges := make([]txn.Range, len(sequences))
	for i, sequence := range sequences {
		ranges[i] = txn.Range{First: sequence, Last: sequence}
	}
	return ranges
}

// takeNow adds an OpTake to a transaction.
func (m *model) takeNow(b *txn.Builder, q *modelQueue, s *modelSub, want *txn.Result, i int) (txn.Code, func()) {
	sequences, code := m.take(q, s)
	b.Take(q.id, s.id, single(sequences)...)
	return code, func() {
		for _, sequence := range sequences {
			if _, ok := s.needs[sequence]; ok { // not changed by an earlier operation
				want.Ops[i].Changed++
				delete(s.needs, sequence)
			}
		}
	}
}

// twoPhase prepares or decides a transaction.
func (m *model) twoPhase(b *txn.Builder, want *txn.Result) {
	if m.rng.IntN(2) == 0 {
		m.prepare(b, want)
	} else {
		m.decide(b, want)
	}
}

func (m *model) prepare(b *txn.Builder, want *txn.Result) {
	xid := fmt.Sprintf("xid %d", len(m.prepared)+len(m.outcomes))
	if m.rng.IntN(10) == 0 {
		xid = fmt.Sprintf("xid %d", m.rng.IntN(1+len(m.outcomes)))
	}
	p := &modelPrepared{number: m.lsn}
	var inner txn.Builder
	inner.Begin(nil, int64(m.lsn), nil)
	code := txn.OK
	added, sum := map[uint64]uint64{}, uint64(0)
	for range 1 + m.rng.IntN(3) {
		one := m.prepareOne(&inner, p, added, &sum)
		if code == txn.OK {
			code = one
		}
	}
	payload, err := inner.Finish()
	if err != nil {
		panic(err)
	}
	b.Prepare(xid, payload)
	if m.prepared[xid] != nil || m.outcomes[xid] != nil {
		code = txn.ErrXIDInUse
	}
	if code != txn.OK {
		want.Code, want.Op = code, 0
		return
	}
	m.prepared[xid] = p
	want.Ops = []txn.OpResult{{ID: m.lsn, Changed: sum}}
}

func (m *model) prepareOne(inner *txn.Builder, p *modelPrepared, added map[uint64]uint64, sum *uint64) txn.Code {
	q := m.pick()
	s := m.pickSub(q)
	if s == nil || m.rng.IntN(2) == 0 {
		o := modelOp{queue: q.id}
		inner.BeginPublish(q.id)
		for range 1 + m.rng.IntN(4) {
			body := make([]byte, m.rng.IntN(60))
			if m.rng.IntN(40) == 0 {
				body = make([]byte, preparedPart+m.rng.IntN(preparedPart))
			}
			o.bodies = append(o.bodies, body)
			id := m.someID()
			o.ids = append(o.ids, id)
			inner.MessageWith(0, &txn.Attributes{MessageID: id}, nil, body)
		}
		inner.EndPublish()
		p.ops = append(p.ops, o)
		*sum += uint64(len(o.bodies))
		return m.publishRoom(q, added, len(o.bodies))
	}
	sequences, code := m.take(q, s)
	mine := map[uint64]bool{}
	for _, o := range p.ops {
		for _, sequence := range o.sequences {
			mine[sequence] = mine[sequence] || o.queue == q.id && o.sub == s.id
		}
	}
	for _, sequence := range sequences {
		if !mine[sequence] {
			*sum++
		}
		mine[sequence] = true
	}
	if m.rng.IntN(2) == 0 {
		inner.Take(q.id, s.id, single(sequences)...)
	} else {
		inner.Ack(q.id, s.id, single(sequences)...)
	}
	p.ops = append(p.ops, modelOp{queue: q.id, sub: s.id, sequences: sequences})
	return code
}

func (m *model) decide(b *txn.Builder, want *txn.Result) {
	xid, number := "nothing", uint64(0)
	if names := slices.Sorted(maps.Keys(m.prepared)); len(names) > 0 && m.rng.IntN(3) > 0 {
		xid = names[m.rng.IntN(len(names))]
		number = m.prepared[xid].number
	} else if len(m.outcomes) > 0 {
		names := slices.Sorted(maps.Keys(m.outcomes))
		xid = names[m.rng.IntN(len(names))]
	}
	switch m.rng.IntN(6) {
	case 0:
		number++
	case 1, 2, 3:
		number = 0
	}
	commit, by := m.rng.IntN(2) == 0, txn.Decider(m.rng.IntN(3))
	if commit {
		b.CommitPrepared(xid, by, number)
	} else {
		b.RollbackPrepared(xid, by, number)
	}
	p, out := m.prepared[xid], m.outcomes[xid]
	want.Ops = []txn.OpResult{{}}
	switch {
	case p != nil && (number == 0 || number == p.number):
		delete(m.prepared, xid)
		out = &modelOutcome{commit, by}
		m.outcomes[xid] = out
		want.Ops[0].Changed = m.finish(p, commit)
	case out == nil:
		want.Code = txn.ErrXIDNotFound
	case commit == out.committed:
	case commit:
		want.Code = txn.ErrRolledBack
		if out.by.Heuristic() {
			want.Code = txn.ErrHeuristicRollback
		}
	default:
		want.Code = txn.ErrCommitted
		if out.by.Heuristic() {
			want.Code = txn.ErrHeuristicCommit
		}
	}
	if want.Code != txn.OK {
		want.Op, want.Ops = 0, nil
		return
	}
	want.Ops[0].ID = uint64(out.by) << 1
	if out.committed {
		want.Ops[0].ID |= 1
	}
}

// finish applies a decision.
func (m *model) finish(p *modelPrepared, commit bool) (changed uint64) {
	held := map[string]bool{}
	for _, o := range p.ops {
		q := m.queues[o.queue]
		for _, sequence := range o.sequences {
			if !commit {
				held[fmt.Sprint(o.queue, o.sub, sequence)] = true
			} else if _, ok := q.subs[o.sub].needs[sequence]; ok {
				delete(q.subs[o.sub].needs, sequence)
				changed++
			}
		}
		if !commit || o.sub != 0 {
			continue
		}
		records := make([][]byte, len(o.bodies))
		for i, body := range o.bodies {
			rec, err := txn.AppendMessage(nil, int64(m.lsn), &txn.Attributes{MessageID: o.ids[i]}, nil, body)
			if err != nil {
				panic(err)
			}
			records[i] = rec
		}
		r, _ := m.publishAll(q, records)
		changed += r.Changed
	}
	return changed + uint64(len(held))
}

// checkPrepared compares the undecided transactions and their reservations.
func (m *model) checkPrepared(t *testing.T, s *State) {
	t.Helper()
	names := []string{}
	last := uint64(0)
	for _, p := range s.AllPrepared() {
		require.Greater(t, p.Number(), last)
		last = p.Number()
		names = append(names, p.XID())
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(m.prepared)), names)
	for xid, want := range m.outcomes {
		out := s.Outcome(xid)
		require.NotNil(t, out, xid)
		require.Equal(t, *want, modelOutcome{out.Committed, out.By})
	}
	for _, q := range m.queues {
		require.Equal(t, uint64(m.held(q)), s.held(s.Queue(q.id)).messages)
		for id, ws := range q.subs {
			reserved := m.reserved(q.id, id)
			sub := s.Queue(q.id).Sub(id)
			wanted := []uint64{}
			for _, seq := range slices.Sorted(maps.Keys(ws.needs)) {
				if reserved[seq] != sub.Reserved(seq) {
					require.FailNow(t, "wrong reservation", "queue %d message %d: reserved %t", q.id, seq, sub.Reserved(seq))
				}
				if !reserved[seq] && !q.delayed[seq] {
					wanted = append(wanted, seq)
				}
			}
			got := []uint64{}
			for seq := sub.NextDeliverable(1); seq < q.next; seq = sub.NextDeliverable(seq + 1) {
				got = append(got, seq)
			}
			require.Equal(t, wanted, got, "deliverable")
		}
	}
}
