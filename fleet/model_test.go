// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockstep-mq/lockstep/test/tier"
)

// The model runs random operations of three pairs on one directory in etcd. Between any two requests of an operation,
// operations of other nodes run, the node crashes, or its request or response is lost. Replaced actives keep running.
// Pairs leave the fleet and join again. The directory is emptied and restored to older copies. Every second seed loses
// nothing in etcd; there, pairs are lost permanently and removed (Forget), and new pairs with their names join. Queues
// move between pairs.
//
// After each step, no two pairs of the fleet have a queue with the same name. In the end, the directory contains the
// queues of the pairs, and no others.
func TestModel(t *testing.T) {
	t.Parallel()
	client := start(t).client(t)
	var m *model
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d:\n%s", m.seed, strings.Join(m.trace[max(0, len(m.trace)-200):], "\n"))
		}
	})
	for seed := range tier.Count(4, 400) {
		m = newModel(t, client, uint64(seed))
		for range 300 {
			m.step()
		}
		m.settle()
		m.totals.log(t, seed)
	}
}

var errCrash = errors.New("node crashed")

// modelPair is a pair: the state that its log contains.
type modelPair struct {
	name    string
	id      string
	lost    bool // permanently
	fleetID string
	term    uint64
	highest uint64
	queues  map[string]uint64
	active  *modelNode
	// Moves in the log. imported and unfenced are the highest epochs of an import and of a removed fence.
	fenced, incoming, taken map[string]*modelMove
	imported, unfenced      uint64
}

// modelNode is a process that is active, or was replaced and does not know it.
type modelNode struct {
	*Directory
	pair     *modelPair
	term     uint64
	dead     bool
	busy     bool              // an operation is in progress
	view     map[string]uint64 // queues at the time of the replacement; nil: the node is active
	frozen   PairState         // state at that time
	creating map[string]bool
	changing bool     // a change of the membership is in progress
	pending  []func() // second steps of operations
}

func (n *modelNode) isActive() bool { return n.pair.active == n }

func (n *modelNode) state() PairState {
	if !n.isActive() {
		return n.frozen
	}
	return PairState{FleetID: n.pair.fleetID, MaxEpoch: n.pair.highest, Term: n.term}
}

// list returns the queues. They have no epoch if the pair is not a member.
func (n *modelNode) list() map[string]uint64 {
	queues := maps.Clone(n.view)
	if n.isActive() {
		queues = maps.Clone(n.pair.queues)
	}
	for name := range queues {
		if n.state().FleetID == "" {
			queues[name] = 0
		}
	}
	return queues
}

type model struct {
	t       *testing.T
	seed    uint64
	rand    *rand.Rand
	client  *clientv3.Client
	prefix  string
	pairs   []*modelPair
	nodes   []*modelNode // all nodes that may run
	moves   []*modelMove
	lost    []*modelPair // not removed yet
	depth   int
	copies  []map[string]string // copies of the directory
	trace   []string
	settled bool
	totals  totals
}

type totals map[string]int

func (c totals) log(t *testing.T, seed int) {
	t.Helper()
	t.Logf("seed %d: %v", seed, map[string]int(c))
}

func newModel(t *testing.T, client *clientv3.Client, seed uint64) *model {
	t.Helper()
	m := &model{
		t: t, seed: seed, rand: rand.New(rand.NewPCG(seed, 0)), client: client, prefix: fmt.Sprintf("/model%d/", seed),
		totals: totals{},
	}
	for i := range 3 { // pairs
		p := newModelPair(fmt.Sprint("p", i), fmt.Sprint("p", i))
		m.pairs = append(m.pairs, p)
		m.activate(p)
		m.join(p.active)
		require.NotEmpty(t, p.fleetID)
	}
	m.totals = totals{}
	return m
}

func newModelPair(name, id string) *modelPair {
	return &modelPair{
		name: name, id: id, queues: map[string]uint64{}, fenced: map[string]*modelMove{},
		incoming: map[string]*modelMove{}, taken: map[string]*modelMove{},
	}
}

// activate starts a node and makes it the active of its pair.
func (m *model) activate(p *modelPair) {
	if old := p.active; old != nil && !old.dead {
		old.view, old.frozen = maps.Clone(p.queues), old.state()
	}
	p.term++
	n := &modelNode{pair: p, term: p.term, creating: map[string]bool{}}
	p.active = n
	m.nodes = append(m.nodes, n)
	c := clientv3.NewCtxClient(context.Background())
	c.Lease, c.KV = m.client.Lease, &modelKV{KV: m.client.KV, m: m, n: n}
	d, err := New(Options{
		Client: c, Prefix: m.prefix, Pair: p.name, PairID: p.id, RequestTimeout: time.Minute, State: n.state,
		LoadTTL: time.Hour,
		Moving:  func(queue string) bool { return p.fenced[queue] != nil || p.taken[queue] != nil },
	})
	require.NoError(m.t, err)
	n.Directory = d
}

// join registers the pair and, if it is not a member, commits the membership in a later step.
func (m *model) join(n *modelNode) {
	p := n.pair
	n.changing = true
	done := func() { n.changing = false }
	id, report, err := n.Join(m.t.Context(), Member{}, m.queues(n))
	m.log("join of %s/%d: %+v %v", p.name, n.term, report, err)
	var conflict *ConflictError
	if errors.As(err, &conflict) && n.isActive() && p.fleetID == "" { // the operator deletes the queues
		for _, c := range conflict.Conflicts {
			delete(p.queues, c.Queue)
		}
	}
	if err != nil || n.dead {
		done()
		return
	}
	m.later(n, func() {
		defer done()
		if !n.isActive() || p.fleetID != "" { // the log rejects the record
			return
		}
		m.log("%s is a member of %s", p.name, id)
		m.totals["join"]++
		p.fleetID = id
		for queue := range p.queues {
			require.NotZero(m.t, report.Epochs[queue])
			p.queues[queue] = report.Epochs[queue]
			p.highest = max(p.highest, report.Epochs[queue])
		}
		require.NoError(m.t, m.putLoad(p))
	})
}

// later runs the second step of an operation immediately, or in a later step of the node.
func (m *model) later(n *modelNode, f func()) {
	if m.depth == 0 || m.rand.IntN(2) == 0 {
		f()
		return
	}
	n.pending = append(n.pending, f)
}

// leave ends the registration of a pair, and commits the end of the membership in a later step.
func (m *model) leave(n *modelNode) {
	p := n.pair
	n.changing = true
	done := func() { n.changing = false }
	err := n.Leave(m.t.Context(), m.queues(n))
	m.log("leave of %s/%d: %v", p.name, n.term, err)
	if err != nil || n.dead {
		done()
		return
	}
	m.later(n, func() {
		defer done()
		if !n.isActive() || p.fleetID == "" || p.hasMoves(m) { // the log rejects the record
			return
		}
		m.log("%s is not a member", p.name)
		m.totals["leave"]++
		if len(p.queues) > 0 {
			m.totals["leave with queues"]++
		}
		p.fleetID = ""
	})
}

// putLoad publishes a load, without a lease.
func (m *model) putLoad(p *modelPair) error {
	_, err := m.client.Put(m.t.Context(), p.active.key(dirLoad, p.name), encode(Load{FreeBytes: 1}))
	return err
}

// queues lists the queues of a node for Rebuild, Join and Leave. A replaced node cannot prove that it is active.
func (m *model) queues(n *modelNode) Queues {
	return func(context.Context) (iter.Seq2[string, uint64], error) {
		if !n.isActive() || len(n.creating) > 0 {
			return nil, errCrash
		}
		return maps.All(n.list()), nil
	}
}

// modelKV runs other operations before and after each transaction.
type modelKV struct {
	clientv3.KV
	m *model
	n *modelNode
}

func (kv *modelKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if err := kv.m.interrupt(kv.n); err != nil {
		return nil, err
	}
	return kv.KV.Get(ctx, key, opts...)
}

func (kv *modelKV) Txn(ctx context.Context) clientv3.Txn {
	return &hookTxn{kv.KV.Txn(context.WithoutCancel(ctx)), kv.commit}
}

// hookTxn is a transaction that a test commits.
type hookTxn struct {
	clientv3.Txn
	commit func(clientv3.Txn) (*clientv3.TxnResponse, error)
}

func (t *hookTxn) If(c ...clientv3.Cmp) clientv3.Txn {
	t.Txn = t.Txn.If(c...)
	return t
}

func (t *hookTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Then(ops...)
	return t
}

func (t *hookTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Else(ops...)
	return t
}

func (t *hookTxn) Commit() (*clientv3.TxnResponse, error) { return t.commit(t.Txn) }

var errLostMessage = errors.New("request or response lost")

func (kv *modelKV) commit(txn clientv3.Txn) (*clientv3.TxnResponse, error) {
	m, n := kv.m, kv.n
	if err := m.interrupt(n); err != nil {
		return nil, err
	}
	if m.chance(40) {
		return nil, errLostMessage
	}
	if m.chance(60) { // the request is delayed: the outcome is unknown, and it takes effect later
		n.pending = append(n.pending, func() { _, _ = txn.Commit() })
		return nil, errLostMessage
	}
	resp, err := txn.Commit()
	if m.chance(40) {
		return nil, errLostMessage
	}
	if err := m.interrupt(n); err != nil {
		return nil, err
	}
	return resp, err
}

func (m *model) chance(n int) bool { return !m.settled && m.depth > 0 && m.rand.IntN(n) == 0 }

// interrupt runs operations of other nodes.
func (m *model) interrupt(n *modelNode) error {
	if n.dead {
		return errCrash
	}
	if m.depth < 3 && m.chance(6) {
		for range 1 + m.rand.IntN(2) {
			m.step()
		}
	}
	if m.chance(80) {
		m.crash(n)
	}
	if n.dead {
		return errCrash
	}
	return nil
}

func (m *model) log(format string, args ...any) {
	m.trace = append(m.trace, fmt.Sprintf("%*s", m.depth, "")+fmt.Sprintf(format, args...))
}

func (m *model) crash(n *modelNode) {
	m.log("crash of %s/%d", n.pair.name, n.term)
	n.dead = true
	for _, f := range n.pending[:min(len(n.pending), 1)] { // requests that were sent
		f()
	}
	n.pending = nil
	m.nodes = slices.DeleteFunc(m.nodes, func(o *modelNode) bool { return o == n })
	if n.isActive() && !n.pair.lost {
		m.activate(n.pair)
	}
}

// step runs an operation of a random node.
func (m *model) step() {
	n := m.pairs[m.rand.IntN(len(m.pairs))].active
	if m.rand.IntN(4) == 0 {
		n = m.nodes[m.rand.IntN(len(m.nodes))]
	}
	if n.busy {
		return
	}
	m.depth++
	n.busy = true
	defer func() {
		m.depth--
		n.busy = false
		m.check()
	}()
	queue := []string{"q0", "q1", "{g}0"}[m.rand.IntN(3)]
	if m.rand.IntN(2) == 0 {
		m.moveStep(n, queue)
		return
	}
	switch k := m.rand.IntN(1000); {
	case k < 350:
		m.create(n, queue)
	case k < 550:
		for name := range n.pair.queues {
			queue = max(queue, name)
		}
		m.remove(n, queue)
	case k < 650 && len(n.pending) > 0:
		i := m.rand.IntN(len(n.pending))
		f := n.pending[i]
		n.pending = slices.Delete(n.pending, i, i+1)
		f()
	case k < 800:
		m.reconcile(n)
	case k < 820:
		m.crash(n)
	case k < 850:
		m.log("new active of %s", n.pair.name)
		m.activate(n.pair)
	case k < 870:
		m.setLoads()
	case k < 885 && !n.changing && !n.pair.hasMoves(m):
		m.leave(n)
	case k < 900 && !n.changing && (n.state().FleetID == "" || m.rand.IntN(4) == 0):
		m.join(n)
	case m.seed%2 == 0 && k < 910: // etcd loses nothing
		m.lose()
	case m.seed%2 == 0:
		m.forget(n)
	case k < 920:
		m.copies = append(m.copies, m.read())
	case k < 923:
		m.wipe()
	case k < 930:
		m.restore()
	case !n.changing:
		m.rebuild(n)
	}
}

// setLoads makes all new queues prefer one pair.
func (m *model) setLoads() {
	preferred := m.rand.IntN(len(m.pairs))
	for i, p := range m.pairs {
		if m.isReplaced(p.name) {
			continue
		}
		l := Load{FreeBytes: 1}
		if i == preferred {
			l.FreeBytes = 1 << 40
		}
		_, err := m.client.Put(m.t.Context(), p.active.key(dirLoad, p.name), encode(l))
		require.NoError(m.t, err)
	}
}

// create assigns a name and, if this pair is the owner, commits the queue in a later step.
func (m *model) create(n *modelNode, queue string) {
	if _, exists := n.list()[queue]; exists || n.creating[queue] {
		return
	}
	n.creating[queue] = true
	done := func() { delete(n.creating, queue) }
	fleetID := n.state().FleetID
	o, err := n.Assign(m.t.Context(), queue, "")
	m.log("assign %s by %s/%d: %v %d %v", queue, n.pair.name, n.term, o.Pair, o.Epoch, err)
	if err != nil || o.Pair != n.pair.name || n.dead {
		done()
		return
	}
	commit := func() {
		defer done()
		_, exists := n.pair.queues[queue]
		refused := exists || n.pair.incoming[queue] != nil
		if refused || !n.isActive() || n.pair.fleetID != fleetID { // the log rejects the record
			return
		}
		m.log("create %s at %s, epoch %d", queue, n.pair.name, o.Epoch)
		m.totals["create"]++
		n.pair.queues[queue] = o.Epoch
		n.pair.highest = max(n.pair.highest, o.Epoch)
	}
	m.later(n, commit)
}

// remove commits the deletion of a queue, and releases the name in a later step.
func (m *model) remove(n *modelNode, queue string) {
	epoch, exists := n.pair.queues[queue]
	if !exists || !n.isActive() || n.pair.fenced[queue] != nil {
		return
	}
	m.log("delete %s at %s, epoch %d", queue, n.pair.name, epoch)
	delete(n.pair.queues, queue)
	release := func() {
		err := n.Release(m.t.Context(), queue, epoch)
		m.log("release %s by %s/%d, epoch %d: %v", queue, n.pair.name, n.term, epoch, err)
	}
	m.later(n, release)
}

func (m *model) reconcile(n *modelNode) {
	list := func(context.Context) (iter.Seq2[string, uint64], error) {
		listed := n.list()
		if err := m.interrupt(n); err != nil {
			return nil, err
		}
		return maps.All(listed), nil
	}
	inProgress := func(queue string) bool { return n.creating[queue] }
	report, err := n.Reconcile(m.t.Context(), list, inProgress)
	m.log("reconcile by %s/%d: %+v %v", n.pair.name, n.term, report, err)
	m.totals["removed"] += report.Removed
	if err == nil {
		require.Empty(m.t, report.Epochs)
	}
}

func (m *model) rebuild(n *modelNode) {
	report, err := n.Rebuild(m.t.Context(), Member{}, m.members(), m.queues(n))
	m.log("rebuild by %s/%d: %+v %v", n.pair.name, n.term, report, err)
	if err == nil {
		m.totals["rebuild"]++
		m.setLoads()
	}
}

// members returns the pairs that are, or may become, members of the fleet.
func (m *model) members() (names []string) {
	for _, p := range m.pairs {
		if p.fleetID != "" || p.active.changing {
			names = append(names, p.name)
		}
	}
	return names
}

// read returns all keys except loads, which are attached to leases.
func (m *model) read() map[string]string {
	resp, err := m.client.Get(m.t.Context(), m.prefix, clientv3.WithPrefix())
	require.NoError(m.t, err)
	all := map[string]string{}
	for _, kv := range resp.Kvs {
		all[string(kv.Key)] = string(kv.Value)
	}
	return all
}

func (m *model) wipe() {
	m.log("directory lost")
	m.totals["lost"]++
	_, err := m.client.Delete(m.t.Context(), m.prefix, clientv3.WithPrefix())
	require.NoError(m.t, err)
}

// restore restores an older copy. As documented, it must be detected before the next assignment: here, the actives
// read the directory again.
func (m *model) restore() {
	if len(m.copies) == 0 {
		return
	}
	m.log("directory restored")
	m.totals["restored"]++
	_, err := m.client.Delete(m.t.Context(), m.prefix, clientv3.WithPrefix())
	require.NoError(m.t, err)
	for key, value := range m.copies[m.rand.IntN(len(m.copies))] {
		_, err := m.client.Put(m.t.Context(), key, value)
		require.NoError(m.t, err)
	}
	m.settled = true // no faults
	for _, p := range m.pairs {
		k := p.active.known()
		h, _, err := p.active.readHead(m.t.Context())
		require.NoError(m.t, err)
		if err := p.active.check(m.t.Context(), h, k); err != nil {
			m.log("%s detects: %v", p.name, err)
		}
	}
	m.settled = false
}

// check verifies that no two pairs have a queue with the same name.
func (m *model) check() {
	owners := map[string]string{}
	for _, p := range m.pairs {
		for queue := range p.queues {
			if p.fleetID == "" || p.fenced[queue] != nil {
				continue
			}
			queue = p.fleetID + " " + queue
			if other, found := owners[queue]; found && !m.t.Failed() {
				require.FailNow(m.t, "two owners", "%s: %s and %s", queue, other, p.name)
			}
			owners[queue] = p.name
		}
	}
}

// settle ends all operations, and verifies that the directory contains exactly the queues of the pairs.
func (m *model) settle() {
	m.settled = true
	for _, n := range slices.Clone(m.nodes) {
		for len(n.pending) > 0 {
			f := n.pending[0]
			n.pending = n.pending[1:]
			f()
		}
	}
	m.check()
	m.settleMoves()
	m.forgetAll()
	m.joinAll()
	m.endMoves()
	want, got := map[string]string{}, map[string]string{}
	for _, p := range m.pairs {
		report, err := p.active.Reconcile(m.t.Context(), m.queues(p.active), nil)
		require.NoError(m.t, err)
		require.Equal(m.t, Report{Epochs: map[string]uint64{}}, report)
		for queue := range p.queues {
			want[queue] = p.name
		}
	}
	all, _, err := m.pairs[0].active.entries(m.t.Context())
	require.NoError(m.t, err)
	for queue, e := range all {
		got[queue] = e.Pair
	}
	require.Equal(m.t, want, got)
	p := m.pairs[0]
	require.NoError(m.t, p.active.PutLoad(m.t.Context(), Load{}))
	_, err = p.active.Assign(m.t.Context(), "last", "")
	require.NoError(m.t, err)
}

// joinAll performs the work of an operator until all pairs are members of one fleet.
func (m *model) joinAll() {
	for _, p := range m.pairs {
		if p.fleetID == "" { // its registration may be that of a restored directory
			require.NoError(m.t, p.active.Leave(m.t.Context(), m.queues(p.active)))
		}
	}
	h, _, err := m.pairs[0].active.readHead(m.t.Context())
	require.NoError(m.t, err)
	if !slices.ContainsFunc(m.pairs, func(p *modelPair) bool { return p.fleetID == h.fleet.ID }) {
		m.wipe() // a copy of a fleet without members
	}
	for range 6 {
		for _, p := range m.pairs {
			_, err := p.active.Rebuild(m.t.Context(), Member{}, m.members(), m.queues(p.active))
			switch {
			case p.fleetID == "":
				require.ErrorIs(m.t, err, ErrNotMember)
			case errors.Is(err, ErrLost): // another fleet was created; it may be an older one with this pair
				p.fleetID = ""
				require.NoError(m.t, p.active.Leave(m.t.Context(), m.queues(p.active)))
			default:
				require.NoError(m.t, err)
			}
		}
		for _, p := range m.pairs {
			m.join(p.active) // also registers a member that has left the directory
		}
	}
	for _, p := range m.pairs {
		require.Equal(m.t, m.pairs[0].fleetID, p.fleetID)
		require.NoError(m.t, p.active.SetState(m.t.Context(), p.name, StateOpen))
	}
}
