// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/tier"
)

// model is a simple implementation of the state machine, not optimized for speed or memory.
type model struct {
	rng    *rand.Rand
	queues map[uint64]*modelQueue
	nextID uint64
	done   map[string]txn.Result // by producer, epoch and sequence
	epochs map[string]uint32
	meta   map[string]string
	access modelAccess
	fleet  modelFleet
	// policies by pattern
	policies map[string]txn.QueuePolicy
	lsn      uint64 // of the current transaction

	prepared map[string]*modelPrepared
	outcomes map[string]*modelOutcome

	altered *modelQueue // altered again by the next transaction; may be nil

	now      int64
	schedule map[txn.Due]bool
	dueIDs   func() []txn.Due // entries of the schedule that remove message IDs
}

type modelQueue struct {
	id, next uint64
	name     string
	epoch    uint64
	own      txn.Config // set on the queue itself
	fields   txn.ConfigMask
	config   txn.Config // effective
	subs     map[uint32]*modelSub
	hidden   *modelSub // subscription of the retention; nil if none
	nextSub  uint32
	records  map[uint64][]byte
	forwards []txn.Forward
	pauses   map[uint32]txn.Pause // by subscription; 0: the queue
	delayed  map[uint64]bool
	ids      modelIDs
	exact    uint64 // first message with an individual size; 0 if sizes are not kept
}

type modelSub struct {
	id      uint32
	name    string
	options txn.SubscriptionOptions
	needs   map[uint64]uint32 // delivery count by message
	queueID uint64
}

func newModel(seed uint64) *model {
	return &model{
		rng: rand.New(rand.NewPCG(seed, 1)), queues: map[uint64]*modelQueue{}, nextID: 1,
		done: map[string]txn.Result{}, epochs: map[string]uint32{}, meta: map[string]string{},
		policies: map[string]txn.QueuePolicy{},
		prepared: map[string]*modelPrepared{}, outcomes: map[string]*modelOutcome{},
		schedule: map[txn.Due]bool{},
	}
}

func (q *modelQueue) alive() (n int) {
	for seq := range q.records {
		if q.needed(seq) {
			n++
		}
	}
	return n
}

func (m *model) pick() *modelQueue {
	ids := make([]uint64, 0, len(m.queues))
	for id := range m.queues {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return nil
	}
	slices.Sort(ids)
	return m.queues[ids[m.rng.IntN(len(ids))]]
}

func (m *model) pickSub(q *modelQueue) *modelSub {
	ids := make([]uint32, 0, len(q.subs))
	for id := range q.subs {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return nil
	}
	slices.Sort(ids)
	return q.subs[ids[m.rng.IntN(len(ids))]]
}

// next creates a transaction, applies it to the model and returns the expected result.
func (m *model) next(t *testing.T, lsn uint64) (payload []byte, want txn.Result) {
	t.Helper()
	m.lsn = lsn
	var b txn.Builder
	m.now = int64(lsn)
	producer, key := m.producer()
	b.Begin(nil, int64(lsn), producer)
	want = txn.Result{LSN: lsn, Op: -1}
	prior, retry := m.done[key]
	if retry {
		want, m = prior, newModel(0) // the content is ignored
		want.Duplicate = true
		b.Ack(1, 1, txn.Range{First: 1, Last: 1})
	} else {
		m.fill(&b, &want)
		m.applyPolicies()
	}
	payload, err := b.Finish()
	require.NoError(t, err)
	if !retry && key != "" {
		m.done[key] = want
	}
	return payload, want
}

func (m *model) producer() (p *txn.Producer, key string) {
	if m.rng.IntN(2) == 0 {
		return nil, ""
	}
	id := fmt.Sprintf("p%d", m.rng.IntN(5))
	if m.rng.IntN(60) == 0 {
		m.epochs[id]++
	}
	p = &txn.Producer{ID: []byte(id), Epoch: m.epochs[id], Sequence: 1 + m.rng.Uint64N(200)}
	return p, fmt.Sprintf("%s/%d/%d", id, p.Epoch, p.Sequence)
}

func (m *model) fill(b *txn.Builder, want *txn.Result) {
	q := m.pick()
	switch k := m.rng.IntN(100); {
	case m.altered != nil:
		m.configure(b, want, m.altered)
	case q == nil, k < 3 && len(m.queues) < 8:
		m.createQueue(b, want)
	case k < 8:
		m.configure(b, want, q)
	case k < 11:
		m.changeAccess(b, want)
	case k < 12:
		m.changePolicy(b, want)
	case k < 14:
		m.changeFleet(b, want)
	case k < 20:
		m.twoPhase(b, want)
	default:
		m.transaction(b, want)
	}
}

func (m *model) createQueue(b *txn.Builder, want *txn.Result) {
	name := fmt.Sprintf("q%d", m.rng.IntN(10))
	subs := []string{"a", "b", "c"}[:m.rng.IntN(4)]
	var config txn.Config
	if m.rng.IntN(3) == 0 {
		config = m.someConfig(config)
	}
	if m.rng.IntN(3) == 0 {
		config.Priorities = 1
	}
	fields := config.Fields()
	if m.rng.IntN(3) == 0 {
		fields |= txn.ConfigMask(m.rng.Uint64()) & txn.DefaultFields
	}
	epoch := m.ownNew(b, name)
	b.CreateQueueWith(name, config, fields, subs...)
	if code := m.checkNew(name, epoch); code != txn.OK {
		want.Code, want.Op = code, 0
		return
	}
	if code := m.checkConfig(nil, name, config, fields, txn.AllFields); code != txn.OK {
		want.Code, want.Op = code, 0
		return
	}
	q := &modelQueue{
		own: config, fields: fields, id: m.nextID, name: name, next: 1, nextSub: 1, subs: map[uint32]*modelSub{},
		records: map[uint64][]byte{}, delayed: map[uint64]bool{}, pauses: map[uint32]txn.Pause{},
	}
	q.epoch, m.fleet.max = epoch, max(m.fleet.max, epoch)
	m.nextID++
	m.queues[q.id] = q
	m.applyPolicies()
	for _, s := range subs {
		q.createSub(s, txn.StartLatest, 0)
	}
	q.setRetention()
	q.keepSizes()
	want.Ops = []txn.OpResult{{ID: q.id}}
}

func (q *modelQueue) createSub(name string, start txn.Start, from uint64) *modelSub {
	s := &modelSub{id: q.nextSub, name: name, needs: map[uint64]uint32{}, queueID: q.id}
	q.nextSub++
	switch start {
	case txn.StartEarliest:
		q.needAlive(s, 1)
	case txn.StartSequence:
		q.needAlive(s, from)
	case txn.StartLatest:
	}
	q.subs[s.id] = s
	return s
}

// alters is the case of configure that alters the queue.
const alters = 6

func (m *model) configure(b *txn.Builder, want *txn.Result, q *modelQueue) {
	var r txn.OpResult
	s := m.pickSub(q)
	k := m.rng.IntN(20)
	if m.altered != nil {
		k = alters
	}
	switch {
	case k < 3:
		b.DeleteQueue(q.id, false)
		if m.inUse(q) {
			want.Code, want.Op = txn.ErrQueueInUse, 0
			return
		}
		if m.isHeld(q) {
			want.Code, want.Op = txn.ErrPreparedInUse, 0
			return
		}
		r.Changed = uint64(q.alive())
		delete(m.queues, q.id)
	case k == 4 && m.rng.IntN(2) == 0:
		m.deleteTemporary(b, want, q)
		return
	case k < 5:
		b.DeleteQueue(q.id, true)
		if q.alive() > 0 {
			want.Code, want.Op = txn.ErrQueueNotEmpty, 0
			return
		}
		if m.inUse(q) {
			want.Code, want.Op = txn.ErrQueueInUse, 0
			return
		}
		if m.isHeld(q) {
			want.Code, want.Op = txn.ErrPreparedInUse, 0
			return
		}
		delete(m.queues, q.id)
	case k <= alters:
		config := m.someConfig(q.own)
		config.MaxMessages = uint64(m.rng.IntN(4)) * 4000
		mask := txn.ConfigMask(1 + m.rng.Uint64N(uint64(txn.AllFields)))
		again := m.altered == nil && (q.own.Retains() || m.rng.IntN(2) == 0)
		if m.altered != nil || again { // remove the retention and set it again, or the reverse
			mask = txn.Retention
			config.RetentionAge, config.RetentionBytes, config.RetentionMessages = 0, 0, 0
			if !q.own.Retains() {
				config.RetentionMessages = 1
			}
		}
		if m.altered = nil; again {
			m.altered = q
		}
		set := config.Fields() & mask
		if m.rng.IntN(2) == 0 {
			set |= txn.ConfigMask(m.rng.Uint64()) & mask
		}
		b.AlterQueueWith(q.id, config, mask, set)
		config = q.own.With(config, mask)
		if code := m.checkConfig(q, q.name, config, q.fields&^mask|set, mask); code != txn.OK {
			want.Code, want.Op = code, 0
			return
		}
		q.endWindow(m.now)
		q.own, q.fields = config, q.fields&^mask|set
	case k < 10 && s != nil:
		if m.isReserved(q, s.id) {
			b.DeleteSubscription(q.id, s.id)
			want.Code, want.Op = txn.ErrPreparedInUse, 0
			return
		}
		before := q.alive()
		delete(q.subs, s.id)
		delete(q.pauses, s.id)
		r.Changed = uint64(before - q.alive())
		b.DeleteSubscription(q.id, s.id)
	case k < 12 && s != nil && m.rng.IntN(3) == 0:
		if code := m.alterSub(b, q, s); code != txn.OK {
			want.Code, want.Op = code, 0
			return
		}
	case k == 12 && m.rng.IntN(2) == 0:
		if code := m.changePause(b, q, s); code != txn.OK {
			want.Code, want.Op = code, 0
			return
		}
	case k < 15 && m.isReserved(q, 0):
		b.Purge(q.id, 0)
		want.Code, want.Op = txn.ErrPreparedInUse, 0
		return
	case k < 14 && s != nil:
		r.Changed = uint64(len(s.needs))
		clear(s.needs)
		b.Purge(q.id, s.id)
	case k < 15 && m.rng.IntN(2) == 0:
		if code := m.setForwards(b, q); code != txn.OK {
			want.Code, want.Op = code, 0
			return
		}
	case k < 15:
		for _, s := range q.allSubs() {
			r.Changed = max(r.Changed, uint64(len(s.needs)))
			clear(s.needs)
		}
		b.Purge(q.id, 0)
	default:
		name, start := fmt.Sprintf("s%d", m.rng.IntN(6)), txn.Start(1+m.rng.IntN(3))
		filter := []string{"", "size > 3", "properties.region == \"eu\""}[m.rng.IntN(3)]
		from, options := 1+m.rng.Uint64N(q.next), m.somePolicy()
		options.Filter = filter
		if start == txn.StartSequence {
			b.CreateSubscriptionAt(q.id, name, from, options)
		} else {
			b.CreateSubscriptionWith(q.id, name, start, options)
		}
		for _, s := range q.subs {
			if s.name == name {
				want.Code, want.Op = txn.ErrSubscriptionExists, 0
				return
			}
		}
		if code := m.checkDeadLetter(q, options.Policy.DeadLetter); code != txn.OK {
			want.Code, want.Op = code, 0
			return
		}
		s := q.createSub(name, start, from)
		s.options, r.ID = options, uint64(s.id)
	}
	want.Ops = []txn.OpResult{r}
}

// transaction creates a transaction of several operations. The first operation that fails rejects the whole
// transaction.
func (m *model) transaction(b *txn.Builder, want *txn.Result) {
	n := 1
	if m.rng.IntN(3) == 0 {
		n += m.rng.IntN(4)
	}
	var changes []func()
	added := map[uint64]uint64{}
	for i := range n {
		q := m.pick()
		want.Ops = append(want.Ops, txn.OpResult{})
		code, change := m.operation(b, q, added, want, i)
		if code != txn.OK && want.Code == txn.OK {
			want.Code, want.Op = code, i
		}
		changes = append(changes, change)
	}
	if want.Code != txn.OK {
		want.Ops = nil
		return
	}
	for _, change := range changes {
		change()
	}
}

func (m *model) operation(
	b *txn.Builder, q *modelQueue, added map[uint64]uint64, want *txn.Result, i int,
) (txn.Code, func()) {
	s := m.pickSub(q)
	k := m.rng.IntN(10)
	if m.rng.IntN(12) == 0 {
		return m.changeMeta(b, want, i)
	}
	if m.rng.IntN(10) == 0 {
		return txn.OK, m.due(b, want, i)
	}
	switch {
	case k == 9 && m.rng.IntN(10) == 0:
		b.Ack(m.nextID+5, 1, txn.Range{First: 1, Last: 1})
		return txn.ErrQueueNotFound, func() {}
	case k < 5 || s == nil:
		return m.publish(b, q, added, want, i)
	}
	if m.rng.IntN(50) == 0 {
		b.Ack(q.id, q.nextSub+3, txn.Range{First: 1, Last: 1})
		return txn.ErrSubscriptionNotFound, func() {}
	}
	if k == 7 && m.rng.IntN(2) == 0 {
		return m.move(b, q, s, added, want, i)
	}
	if m.rng.IntN(12) == 0 {
		return m.seek(b, q, s, want, i)
	}
	if k == 6 && m.rng.IntN(2) == 0 {
		return m.takeNow(b, q, s, want, i)
	}
	ranges, beyond := m.ranges(q, s)
	code := txn.OK
	if beyond {
		code = txn.ErrBeyondEnd
	}
	switch {
	case k == 8:
		b.Release(q.id, s.id, ranges...)
	case q.hidden != nil && m.rng.IntN(8) == 0: // corrupt messages are discarded
		s = q.hidden
		b.Ack(q.id, s.id, ranges...)
	default:
		b.Ack(q.id, s.id, ranges...)
	}
	return code, func() {
		for _, r := range ranges {
			for seq := r.First; seq <= r.Last; seq++ {
				if _, ok := s.needs[seq]; ok {
					want.Ops[i].Changed++
					if s.needs[seq]++; k != 8 {
						delete(s.needs, seq)
					}
				}
			}
		}
	}
}

func (m *model) changeMeta(b *txn.Builder, want *txn.Result, i int) (txn.Code, func()) {
	key, value := fmt.Sprintf("k%d", m.rng.IntN(8)), fmt.Sprint(m.rng.IntN(1000))
	switch m.rng.IntN(4) {
	case 0:
		return m.swapMeta(b, value, want, i)
	case 1:
		if m.rng.IntN(3) == 0 {
			key = swapKey
		}
		b.DeleteMeta(key)
		return txn.OK, func() {
			if _, ok := m.meta[key]; ok {
				want.Ops[i].Changed = 1
			}
			delete(m.meta, key)
		}
	default:
		b.PutMeta(key, []byte(value))
		return txn.OK, func() { m.meta[key], want.Ops[i].Changed = value, 1 }
	}
}

// swapKey is the key of the entry with a version.
const swapKey = "versioned"

func (m *model) swapMeta(b *txn.Builder, value string, want *txn.Result, i int) (txn.Code, func()) {
	version := uint64(0)
	if entry, ok := m.meta[swapKey]; ok {
		version = binary.BigEndian.Uint64([]byte(entry))
	}
	if m.rng.IntN(4) == 0 {
		b.SwapMeta(swapKey, version+1, []byte(value))
		return txn.ErrMetaChanged, func() {}
	}
	b.SwapMeta(swapKey, version, []byte(value))
	return txn.OK, func() {
		sequence := uint64(0)
		if i > 0 {
			sequence = want.Ops[i-1].FirstSequence
		}
		entry := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, m.lsn), sequence)
		m.meta[swapKey], want.Ops[i].Changed = string(entry)+value, 1
	}
}

func (m *model) publish(
	b *txn.Builder, q *modelQueue, added map[uint64]uint64, want *txn.Result, i int,
) (txn.Code, func()) {
	n := 1 + m.rng.IntN(5)
	if m.rng.IntN(10) == 0 {
		n = 1 + m.rng.IntN(3000)
	}
	b.BeginPublish(q.id)
	var records [][]byte
	timed := m.rng.IntN(4) == 0
	for range n {
		var a txn.Attributes
		if timed {
			a = *m.someTimes()
		}
		a.Priority, a.MessageID = m.somePriority(q), m.someID()
		rec, err := txn.AppendMessage(nil, int64(i), &a, nil, make([]byte, m.rng.IntN(60)))
		if err != nil {
			panic(err)
		}
		b.Record(rec)
		records = append(records, rec)
	}
	b.EndPublish()
	code := m.publishRoom(q, added, n)
	forwarded, forward := m.forward(b, q, records, added)
	if code == txn.OK {
		code = forwarded
	}
	return code, func() {
		first := q.next
		var duplicates txn.Duplicates
		want.Ops[i], duplicates = m.publishAll(q, records)
		forward(first, duplicates)
	}
}

// ranges selects messages to acknowledge. Like a consumer, it often selects the first unacknowledged messages.
func (m *model) ranges(q *modelQueue, s *modelSub) (ranges []txn.Range, beyond bool) {
	for range 1 + m.rng.IntN(4) {
		first := uint64(1)
		if q.next > 1 {
			first += m.rng.Uint64N(q.next - 1)
		}
		if m.rng.IntN(2) == 0 {
			for seq := range s.needs {
				first = min(first, seq)
			}
		}
		span := m.rng.Uint64N(4)
		if m.rng.IntN(5) == 0 {
			span = m.rng.Uint64N(6000)
		}
		last := min(first+span, max(q.next-1, first))
		if m.rng.IntN(200) == 0 {
			last = q.next + 1
		}
		beyond = beyond || last >= q.next
		ranges = append(ranges, txn.Range{First: first, Last: last})
	}
	return ranges, beyond
}

// check compares a replica with the model.
func (m *model) check(t *testing.T, r *replica) {
	t.Helper()
	require.Empty(t, r.state.Check())
	require.Equal(t, len(m.queues), r.state.QueueCount())
	meta := map[string]string{}
	for _, e := range r.state.MetaPrefix("") {
		meta[e.Key] = string(e.Value)
	}
	require.Equal(t, m.meta, meta)
	m.access.check(t, r.state)
	m.checkPolicies(t, r.state)
	m.checkFleet(t, r.state)
	m.checkPrepared(t, r.state)
	m.checkSchedule(t, r)
	for id, want := range m.queues {
		q := r.state.Queue(id)
		require.NotNil(t, q)
		require.Same(t, q, r.state.QueueByName(want.name))
		require.Equal(t, want.next, q.NextSequence())
		require.Equal(t, want.config, q.Config())
		own, fields := q.Own()
		require.Equal(t, want.own, own)
		require.Equal(t, want.fields, fields)
		require.Equal(t, uint64(want.alive()), q.Messages())
		require.Equal(t, len(want.subs), q.SubCount())
		require.True(t, slices.Equal(want.forwards, q.Forwards()), "the forwards of queue %d", id)
		want.checkPauses(t, q)
		want.checkIDs(t, q)
		alive := q.NextAlive(1)
		for seq := uint64(1); seq < want.next; seq++ {
			needed := want.needed(seq)
			if needed {
				got := r.read(q, seq)
				if alive != seq || !bytes.Equal(want.records[seq], got) { // an assertion per message would be slow
					require.FailNow(t, "wrong message", "queue %d message %d: found %d, % x instead of % x", id, seq, alive, got,
						want.records[seq])
				}
				alive = q.NextAlive(seq + 1)
			}
			if q.Dead(seq) == needed {
				require.Failf(t, "dead", "queue %d message %d: needed %v", id, seq, needed)
			}
		}
		require.Equal(t, want.next, alive)
		want.checkDelayed(t, q)
		want.checkBytes(t, q)
		for _, ws := range want.subs {
			ws.check(t, q.SubByName(ws.name), want.next)
			want.checkPriorities(t, ws, q.SubByName(ws.name))
		}
		if floor, ok := q.Retained(); want.hidden != nil || ok {
			require.True(t, ok)
			want.hidden.check(t, q.retention(), want.next)
			require.Equal(t, want.hidden.first(want.next), floor)
		}
	}
}

func (ws *modelSub) check(t *testing.T, s *Sub, next uint64) {
	t.Helper()
	require.NotNil(t, s)
	require.Equal(t, ws.id, s.ID())
	require.Equal(t, ws.options, s.Options())
	require.Equal(t, uint64(len(ws.needs)), s.Backlog())
	n := 0
	for seq := s.NextUnacked(1); seq < next; seq = s.NextUnacked(seq + 1) {
		count, ok := ws.needs[seq]
		if !ok || s.Acked(seq) || count != s.DeliveryCount(seq) {
			require.Failf(t, "unacknowledged", "message %d: needed %v, acked %v, count %d", seq, ok, s.Acked(seq),
				count)
		}
		n++
	}
	require.Len(t, ws.needs, n)
}

func TestModel(t *testing.T) {
	const steps = 500
	first, seeds := modelSeeds(t, tier.Count(5, 8))
	for seed := first; seed < first+seeds; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runModel(t, seed, steps) })
	}
}

// modelSeeds returns the first seed of a model test and the number of seeds.
func modelSeeds(t *testing.T, n int) (first, seeds uint64) {
	t.Helper()
	seeds = uint64(n)
	if testing.Short() {
		seeds = 2
	}
	if env := os.Getenv("LOCKSTEP_SEEDS"); env != "" { // first:number, or number
		if a, b, ok := strings.Cut(env, ":"); ok {
			first, env = parse(t, a), b
		}
		seeds = parse(t, env)
	}
	return first, seeds
}

func parse(t *testing.T, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 64)
	require.NoError(t, err)
	return n
}

// runModel applies the same history to the model and to two replicas with random flushes, checkpoints and restarts.
func runModel(t *testing.T, seed uint64, steps int) {
	m := newModel(seed)
	nodes := []*replica{newReplica(t, seed), newReplica(t, seed+1000)}
	m.dueIDs = nodes[0].dueIDs
	for lsn := uint64(1); lsn <= uint64(steps); lsn++ {
		payload, want := m.next(t, lsn)
		for _, r := range nodes {
			r.log = append(r.log, payload)
			got := r.state.Apply(lsn, payload)
			require.Equal(t, want.Err(), got.Err(), "record %d", lsn)
			require.Equal(t, want, got, "record %d", lsn)
			require.NoError(t, r.state.ReadError())
			r.step()
		}
		require.Equal(t, nodes[0].state.Digest(), nodes[1].state.Digest())
		if lsn%50 == 0 {
			same(t, allOf(nodes[0].state), allOf(nodes[1].state), "the nodes are equal")
			require.Equal(t, nodes[0].messageIDs(), nodes[1].messageIDs())
			for _, r := range nodes {
				m.check(t, r)
			}
		}
	}
	for _, r := range nodes {
		r.restart()
		m.check(t, r)
		require.NotZero(t, r.stableLSN)
	}
}
