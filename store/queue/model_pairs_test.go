// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/tier"
)

// pairsModel moves queues between two pairs, while clients use the queues. Operations of the moves are delayed,
// repeated and reordered. An operation is created from the states of the pairs at that time, as by a process that
// stops before its proposal is committed.
type pairsModel struct {
	t       *testing.T
	rng     *rand.Rand
	pairs   [2]*modelPair
	epoch   uint64
	now     int64
	moves   []*modelMove
	delayed []delayedOp
	taken   int
	removed int // fences
}

// modelPair is a pair of two nodes.
type modelPair struct {
	name  string
	nodes [2]*replica
}

type modelMove struct {
	from, to *modelPair
	epoch    uint64
	queues   []txn.ImportQueue
	fenced   [][]byte // contents of the queues when they were fenced; nil before
	complete map[uint64]bool
	done     bool
}

type delayedOp struct {
	pair  *modelPair
	build func(b *txn.Builder)
	after func(r txn.Result)
}

func (p *modelPair) state() *State { return p.nodes[0].state }

func newPairsModel(t *testing.T, seed uint64) *pairsModel {
	m := &pairsModel{t: t, rng: rand.New(rand.NewPCG(seed, 28)), now: 1000}
	for i := range m.pairs {
		p := &modelPair{name: fmt.Sprintf("pair-%d", i)}
		for j := range p.nodes {
			p.nodes[j] = newReplica(t, seed*10+uint64(2*i+j))
		}
		m.pairs[i] = p
		m.epoch++
		require.Equal(t, txn.OK, m.apply(p, func(b *txn.Builder) {
			b.Fleet(txn.FleetChange{Action: txn.FleetJoin, ID: fleetID, Pair: p.name, Epoch: m.epoch})
		}).Code)
	}
	return m
}

// apply commits a transaction in one pair.
func (m *pairsModel) apply(p *modelPair, build func(b *txn.Builder)) (r txn.Result) {
	m.t.Helper()
	m.now++
	var b txn.Builder
	b.Begin(nil, m.now, nil)
	build(&b)
	payload, err := b.Finish()
	require.NoError(m.t, err)
	for i, node := range p.nodes {
		node.log = append(node.log, payload)
		got := node.state.Apply(uint64(len(node.log)), payload)
		require.NoError(m.t, node.state.ReadError())
		if i > 0 {
			require.Equal(m.t, r, got)
			require.Equal(m.t, p.state().Digest(), node.state.Digest())
		}
		r = got
		node.step()
	}
	return r
}

// send commits a transaction of a move now, later, or both.
func (m *pairsModel) send(p *modelPair, build func(b *txn.Builder), after func(r txn.Result)) {
	op := delayedOp{pair: p, build: build, after: after}
	k := m.rng.IntN(6)
	if k < 5 {
		m.commit(op)
	}
	if k > 3 {
		m.delayed = append(m.delayed, op)
	}
}

func (m *pairsModel) commit(op delayedOp) {
	r := m.apply(op.pair, op.build)
	if op.after != nil && r.Code == txn.OK {
		op.after(r)
	}
}

func owned(s *State, name string) *Queue {
	q := s.QueueByName(name)
	if q == nil || q.fenced() {
		return nil
	}
	return q
}

// contents returns everything in a queue that a move transfers.
func (m *pairsModel) contents(p *modelPair, id uint64) []byte {
	m.t.Helper()
	r := p.nodes[0]
	q := r.state.Queue(id)
	var all []byte
	for _, pair := range exported(m.t, r.state, q, nil, r.pages.kv) {
		all = fmt.Appendf(all, "%x=%x\n", pair.Key, pair.Value)
	}
	for seq := q.NextAlive(1); seq < q.nextSeq; seq = q.NextAlive(seq + 1) {
		rec := r.read(q, seq)
		require.NotNil(m.t, rec, "message %d of queue %d", seq, id)
		all = fmt.Appendf(all, "%d %d %x\n", seq, q.Priority(seq), rec)
	}
	return all
}

// checkpoint writes a checkpoint.
func (r *replica) checkpoint() {
	if r.batch != nil {
		r.finish()
	}
	r.want, r.schedule = allOf(r.state), r.scheduled()
	r.batch, r.everything = r.state.Collect(0, true), true
	r.finish()
}

// begin begins a move of some queues of one pair.
func (m *pairsModel) begin() {
	i := m.rng.IntN(2)
	mv := &modelMove{from: m.pairs[i], to: m.pairs[1-i], complete: map[uint64]bool{}}
	all := m.rng.IntN(2) == 0
	for q := range mv.from.state().Queues {
		if q.move == nil && (all || m.rng.IntN(2) == 0) {
			mv.queues = append(mv.queues, importQueueOf(q))
		}
	}
	if len(mv.queues) == 0 {
		return
	}
	slices.SortFunc(mv.queues, func(a, b txn.ImportQueue) int { return int(a.Source) - int(b.Source) })
	m.epoch++
	mv.epoch = m.epoch
	m.moves = append(m.moves, mv)
	m.send(mv.to, func(b *txn.Builder) { b.ImportBegin(mv.epoch, mv.from.name, mv.queues) }, nil)
}

// advance takes one random step of a move.
func (m *pairsModel) advance(mv *modelMove) {
	at, exists := mv.to.state().Move(mv.epoch)
	source, fenced := mv.from.state().Move(mv.epoch)
	fenced = fenced && source.State == MoveFenced
	switch k := m.rng.IntN(20); {
	case !exists && mv.to.state().Fleet().ImportEpoch < mv.epoch && k < 15:
		m.send(mv.to, func(b *txn.Builder) { b.ImportBegin(mv.epoch, mv.from.name, mv.queues) }, nil)
	case k == 0 && m.rng.IntN(4) == 0, !exists && mv.to.state().Fleet().ImportEpoch < mv.epoch:
		m.send(mv.to, cancelImport(mv.epoch), nil)
	case !exists && mv.to.state().Fleet().ImportEpoch >= mv.epoch:
		mv.done = true // the record was removed, or the import was refused
		m.send(mv.from, unfence(mv.epoch), nil)
	case at.State == MoveCanceled:
		if !fenced && mv.from.state().Fleet().UnfencedEpoch >= mv.epoch && k < 10 {
			m.send(mv.to, forgetMove(mv.epoch), nil)
			return
		}
		m.send(mv.from, unfence(mv.epoch), func(r txn.Result) { m.unfenced(mv, r) })
	case at.State == MoveTaken:
		if !fenced {
			m.send(mv.to, forgetMove(mv.epoch), nil)
			return
		}
		m.send(mv.from, dropMoved(mv.epoch), nil)
	case k < 9:
		m.copyMessages(mv, at)
	case k < 11 && !fenced:
		m.fence(mv)
	case fenced && k < 17:
		m.copyState(mv, at)
	case fenced:
		m.take(mv)
	}
}

func (m *pairsModel) copyMessages(mv *modelMove, at Move) {
	i := m.rng.IntN(len(at.Queues))
	to := at.Queues[i]
	q := mv.from.state().Queue(to.Source)
	if q == nil || q.NextAlive(to.Next) >= q.nextSeq {
		return
	}
	// The messages are read now: when the operation is applied, some may be acknowledged.
	type message struct {
		seq uint64
		rec []byte
	}
	var list []message
	for seq := q.NextAlive(to.Next); seq < q.nextSeq && len(list) < 200; seq = q.NextAlive(seq + 1) {
		list = append(list, message{seq, mv.from.nodes[0].read(q, seq)})
	}
	m.send(mv.to, func(b *txn.Builder) {
		b.BeginImport(to.ID, mv.epoch, to.Next)
		for _, msg := range list {
			b.Import(msg.seq, msg.rec)
		}
		b.EndImport()
	}, nil)
}

func (m *pairsModel) fence(mv *modelMove) {
	var ids []uint64
	for _, q := range mv.queues {
		ids = append(ids, q.Source)
	}
	m.send(mv.from, func(b *txn.Builder) { b.Fence(mv.epoch, mv.to.name, ids) }, func(txn.Result) {
		mv.fenced = nil
		for _, id := range ids {
			mv.fenced = append(mv.fenced, m.contents(mv.from, id))
		}
	})
}

// unfenced verifies that the queues did not change while they were fenced.
func (m *pairsModel) unfenced(mv *modelMove, r txn.Result) {
	if r.Ops[0].Changed == 0 {
		return
	}
	m.removed++
	for i, q := range mv.queues {
		require.Equal(m.t, string(mv.fenced[i]), string(m.contents(mv.from, q.Source)), "a fenced queue was changed")
	}
}

// copyState sends the next parts of the state of a queue after its messages are imported.
func (m *pairsModel) copyState(mv *modelMove, at Move) {
	to := at.Queues[m.rng.IntN(len(at.Queues))]
	q := mv.from.state().Queue(to.Source)
	if to.Complete || to.After == nil && q.NextAlive(to.Next) < q.nextSeq {
		return
	}
	for mv.from.state().Queue(to.Source).UnwrittenIDs() > 0 && m.rng.IntN(3) > 0 {
		mv.from.nodes[0].checkpoint()
	}
	q = mv.from.state().Queue(to.Source)
	pairs := exported(m.t, mv.from.state(), q, to.After, mv.from.nodes[0].pages.kv)
	ops := stateOps(pairs, to.After, to.ID, mv.epoch, 1+m.rng.IntN(20))
	for _, op := range ops[:1+m.rng.IntN(len(ops))] {
		m.send(mv.to, op, nil)
	}
}

func (m *pairsModel) take(mv *modelMove) {
	m.send(mv.to, takeMoved(mv.epoch), func(txn.Result) {
		m.taken++
		for i := range mv.queues {
			q := mv.to.state().QueueByName(mv.queues[i].Name)
			require.NotNil(m.t, q)
			require.Equal(m.t, string(mv.fenced[i]), string(m.contents(mv.from, mv.queues[i].Source)), "the source was changed")
		}
	})
}

// checkComplete compares the contents of complete incoming queues with those of the fenced queues: when they become
// complete, and sometimes later.
func (m *pairsModel) checkComplete() {
	for _, mv := range m.moves {
		at, _ := mv.to.state().Move(mv.epoch)
		if at.State != MoveImporting || mv.done {
			continue
		}
		for i, q := range at.Queues {
			if q.Complete && (!mv.complete[q.ID] || m.rng.IntN(20) == 0) {
				mv.complete[q.ID] = true
				require.Equal(m.t, string(mv.fenced[i]), string(m.contents(mv.to, q.ID)), "the copy of queue %s differs", q.Name)
			}
		}
	}
}

var pairNames = []string{"a", "b", "c", "d"}

// checkOwners verifies that at most one pair owns each queue (INV-28).
func (m *pairsModel) checkOwners() {
	for _, name := range pairNames {
		owners := 0
		for _, p := range m.pairs {
			if owned(p.state(), name) != nil {
				owners++
			}
		}
		require.LessOrEqual(m.t, owners, 1, "two pairs own queue %s", name)
	}
}

// client changes a queue as clients and the active of its pair do.
func (m *pairsModel) client() {
	p := m.pairs[m.rng.IntN(2)]
	name := pairNames[m.rng.IntN(len(pairNames))]
	q := p.state().QueueByName(name)
	if q == nil {
		m.create(p, name)
		return
	}
	fenced := q.fenced()
	r := m.apply(p, m.clientOp(p, q))
	if fenced {
		require.Equal(m.t, txn.ErrMoved, r.Code, "a fenced queue was changed")
	}
	stored := storedSchedule(m.t, p.nodes[0].pages.kv)
	stored = slices.DeleteFunc(stored, func(e txn.Due) bool { return e.TimeMS >= m.now })
	list := p.state().Scheduled(txn.Due{}, txn.Due{TimeMS: m.now}, stored, 50, nil)
	if len(list) > 0 && m.rng.IntN(4) == 0 {
		m.apply(p, func(b *txn.Builder) { b.Due(list...) })
	}
}

// create creates a queue that no pair has, as after its name was assigned to the pair.
func (m *pairsModel) create(p *modelPair, name string) {
	for _, other := range m.pairs {
		if other.state().QueueByName(name) != nil {
			return
		}
	}
	c := txn.Config{Priorities: uint64(m.rng.IntN(2))}
	if m.rng.IntN(2) == 0 {
		c.DedupWindow = 400
	}
	m.epoch++
	m.apply(p, func(b *txn.Builder) {
		b.OwnQueue(name, m.epoch)
		b.CreateQueue(name, c, []string{"x", "y"}[:m.rng.IntN(3)]...)
	})
}

func (m *pairsModel) clientOp(p *modelPair, q *Queue) func(b *txn.Builder) {
	rng, id := m.rng, q.id
	sub := uint32(1 + rng.IntN(3))
	first := 1 + rng.Uint64N(q.nextSeq)
	ranges := txn.Range{First: first, Last: min(first+rng.Uint64N(300), max(q.nextSeq-1, first))}
	switch k := rng.IntN(40); {
	case k < 14:
		return m.publishOp(q)
	case k < 20:
		return func(b *txn.Builder) { b.Ack(id, sub, ranges) }
	case k < 24:
		return func(b *txn.Builder) { b.Release(id, sub, ranges) }
	case k < 25:
		return func(b *txn.Builder) { b.Purge(id, 0) }
	case k < 27:
		return func(b *txn.Builder) { b.Seek(id, sub, first) }
	case k < 29:
		return func(b *txn.Builder) { b.CreateSubscription(id, fmt.Sprint("s", rng.IntN(4)), txn.StartEarliest) }
	case k < 30:
		return func(b *txn.Builder) { b.DeleteSubscription(id, sub) }
	case k < 31:
		return func(b *txn.Builder) { b.Pause(id, uint32(rng.IntN(2)), txn.Pause{Deliver: true, Reason: "r"}) }
	case k < 32:
		return func(b *txn.Builder) { b.Resume(id, uint32(rng.IntN(2)), false, true) }
	case k < 35:
		return m.alterOp(p, q)
	case k < 36:
		return func(b *txn.Builder) { b.DeleteQueue(id, false) }
	case k < 37:
		return func(b *txn.Builder) { b.OwnQueue(q.name, m.epoch) }
	}
	other := p.state().QueueByName(pairNames[rng.IntN(len(pairNames))])
	var rules []txn.Forward
	if other != nil && rng.IntN(2) == 0 {
		rules = append(rules, txn.Forward{Target: other.id})
	}
	return func(b *txn.Builder) { b.SetForwards(id, rules) }
}

func (m *pairsModel) alterOp(p *modelPair, q *Queue) func(b *txn.Builder) {
	rng := m.rng
	other := p.state().QueueByName(pairNames[rng.IntN(len(pairNames))])
	c, mask := txn.Config{}, txn.FieldDeadLetter
	switch rng.IntN(4) {
	case 0:
		c.MaxBytes, c.ExactBytes, mask = uint64(rng.IntN(2)*100_000), 1, txn.FieldMaxBytes|txn.FieldExactBytes
	case 1:
		c.RetentionMessages, mask = uint64(rng.IntN(2)*300), txn.FieldRetentionMessages
	case 2:
		c.DedupWindow, mask = uint64(rng.IntN(2)*500), txn.FieldDedupWindow
	default:
		if other != nil && rng.IntN(2) == 0 {
			c.DeadLetter = other.id
		}
	}
	return func(b *txn.Builder) { b.AlterQueue(q.id, c, mask) }
}

func (m *pairsModel) publishOp(q *Queue) func(b *txn.Builder) {
	n := 1 + m.rng.IntN(60)
	if m.rng.IntN(12) == 0 {
		n = 5000
	}
	var records [][]byte
	for range n {
		priority := uint8(m.rng.IntN(10))
		a := &txn.Attributes{}
		if q.lanes != nil {
			a.Priority = &priority
		}
		if m.rng.IntN(4) == 0 {
			a.DeliverAtMS = m.now + m.rng.Int64N(200)
		}
		if m.rng.IntN(8) == 0 {
			a.ExpiresAtMS = m.now + m.rng.Int64N(400)
		}
		if m.rng.IntN(2) == 0 {
			a.MessageID = fmt.Sprint(m.rng.IntN(300))
		}
		rec, err := txn.AppendMessage(nil, m.now, a, nil, bytes.Repeat([]byte{7}, m.rng.IntN(20)))
		require.NoError(m.t, err)
		records = append(records, rec)
	}
	return func(b *txn.Builder) {
		b.BeginPublish(q.id)
		for _, rec := range records {
			b.Record(rec)
		}
		b.EndPublish()
	}
}

// finish applies all delayed operations, and ends all moves.
func (m *pairsModel) finish() {
	for len(m.delayed) > 0 {
		m.late()
	}
	for _, mv := range m.moves {
		at, exists := mv.to.state().Move(mv.epoch)
		if exists && at.State == MoveImporting {
			m.commit(delayedOp{pair: mv.to, build: cancelImport(mv.epoch)})
			at, _ = mv.to.state().Move(mv.epoch)
		}
		if exists && at.State == MoveTaken {
			m.commit(delayedOp{pair: mv.from, build: dropMoved(mv.epoch)})
		} else if source, ok := mv.from.state().Move(mv.epoch); ok {
			require.True(m.t, exists && at.State == MoveCanceled, "move %d: fenced, but not canceled: %+v", mv.epoch, source)
			m.commit(delayedOp{pair: mv.from, build: unfence(mv.epoch)})
		}
		if exists {
			m.commit(delayedOp{pair: mv.to, build: forgetMove(mv.epoch)})
		}
	}
	for _, p := range m.pairs {
		require.Empty(m.t, p.state().Moves())
		for _, node := range p.nodes {
			node.restart()
			require.Empty(m.t, node.state.Check())
		}
		same(m.t, allOf(p.nodes[0].state), allOf(p.nodes[1].state), "the nodes are equal")
	}
	m.checkOwners()
}

// late commits a delayed operation.
func (m *pairsModel) late() {
	i := m.rng.IntN(len(m.delayed))
	op := m.delayed[i]
	if m.rng.IntN(4) > 0 {
		m.delayed = slices.Delete(m.delayed, i, i+1)
	}
	m.commit(op)
}

// TestPairsModel moves queues between pairs under random operations, delays and restarts (INV-28).
func TestPairsModel(t *testing.T) {
	taken, removed := 0, 0
	first, seeds := modelSeeds(t, tier.Count(3, 60))
	for seed := first; seed < first+seeds; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := newPairsModel(t, seed)
			for range 1000 {
				open := slices.DeleteFunc(slices.Clone(m.moves), func(mv *modelMove) bool { return mv.done })
				switch k := m.rng.IntN(20); {
				case k == 0 && len(open) < 3:
					m.begin()
				case k < 12 && len(open) > 0:
					m.advance(open[m.rng.IntN(len(open))])
				case k == 12 && len(m.delayed) > 0:
					m.late()
				default:
					m.client()
				}
				m.checkOwners()
				m.checkComplete()
			}
			m.finish()
			taken, removed = taken+m.taken, removed+m.removed
		})
	}
	require.NotZero(t, taken, "no move was completed")
	require.NotZero(t, removed, "no fence was removed")
}
