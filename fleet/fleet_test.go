// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd/embedded"
	"github.com/lockstep-mq/lockstep/test/coordtest"
)

// server is an embedded etcd that can be restarted on the same port, with other data.
type server struct {
	dir  string
	etcd *embedded.Server
}

func start(t *testing.T) *server {
	t.Helper()
	s := &server{dir: t.TempDir()}
	s.etcd = coordtest.StartEtcd(t, s.dir, "")
	t.Cleanup(func() { require.NoError(t, s.etcd.Close()) })
	return s
}

// restart stops etcd, calls between, and starts it again.
func (s *server) restart(t *testing.T, between func()) {
	t.Helper()
	address := s.etcd.Address()
	require.NoError(t, s.etcd.Close())
	between()
	s.etcd = coordtest.StartEtcd(t, s.dir, address)
}

func (s *server) client(t *testing.T) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: s.etcd.Endpoints(), Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// pair is a pair with a Directory.
type pair struct {
	*Directory
	name string

	mu     sync.Mutex
	state  PairState
	queues map[string]uint64
}

func newPair(t *testing.T, client *clientv3.Client, name string) *pair {
	t.Helper()
	p := &pair{name: name, state: PairState{Term: 1}, queues: map[string]uint64{}}
	p.Directory = p.open(t, client)
	return p
}

func (p *pair) open(t *testing.T, client *clientv3.Client) *Directory {
	t.Helper()
	d, err := New(Options{
		Client: client, Prefix: "/test", Pair: p.name, PairID: "id-" + p.name, RequestTimeout: time.Minute,
		LoadTTL: time.Hour,
		State: func() PairState {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.state
		},
	})
	require.NoError(t, err)
	return d
}

func (p *pair) list(context.Context) (iter.Seq2[string, uint64], error) {
	return maps.All(maps.Clone(p.queues)), nil
}

func (p *pair) member() Member {
	return Member{Addresses: []string{p.name + "1:7400", p.name + "2:7400"}}
}

func (p *pair) set(f func(*PairState)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.state)
}

// join joins the fleet, and publishes a load.
func (p *pair) join(t *testing.T) Report {
	t.Helper()
	id, report, err := p.Join(t.Context(), p.member(), p.list)
	require.NoError(t, err)
	p.set(func(s *PairState) { s.FleetID = id })
	for name, epoch := range report.Epochs {
		p.create(name, epoch)
	}
	require.NoError(t, p.PutLoad(t.Context(), Load{FreeBytes: 1 << 30}))
	return report
}

// create commits a queue.
func (p *pair) create(name string, epoch uint64) {
	p.queues[name] = epoch
	p.set(func(s *PairState) { s.MaxEpoch = max(s.MaxEpoch, epoch) })
}

// run starts Run, and waits until the copy is loaded. The returned function ends Run.
func (p *pair) run(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
	t.Cleanup(stop)
	p.await(t, func(s Status) bool { return s.Current })
	return stop
}

func (p *pair) await(t *testing.T, fulfilled func(Status) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	require.NoError(t, p.Await(ctx, fulfilled), "status: %+v", p.Status())
}

func (p *pair) awaitOwner(t *testing.T, queue string, fulfilled func(Owner, bool) bool) {
	t.Helper()
	p.await(t, func(Status) bool {
		o, found, _ := p.Owner(queue)
		return fulfilled(o, found)
	})
}

func pairs(t *testing.T, client *clientv3.Client, names ...string) []*pair {
	t.Helper()
	var out []*pair
	for _, name := range names {
		p := newPair(t, client, name)
		p.join(t)
		out = append(out, p)
	}
	return out
}

func TestAssignAndRelease(t *testing.T) {
	t.Parallel()
	p := pairs(t, start(t).client(t), "a", "b")
	a, b := p[0], p[1]
	require.Equal(t, a.state.FleetID, b.state.FleetID)
	require.NoError(t, a.PutRule(t.Context(), Rule{Pattern: "a/*", Pair: "a"}))

	first, err := b.Assign(t.Context(), "a/1", "")
	require.NoError(t, err)
	require.Equal(t, Owner{Pair: "a", Addresses: a.member().Addresses, Epoch: 1}, first)
	again, err := b.Assign(t.Context(), "a/1", "")
	require.NoError(t, err)
	require.Equal(t, first, again, "an existing entry was changed")
	claimed, err := a.Assign(t.Context(), "a/1", "")
	require.NoError(t, err)
	first.Epoch = 2
	require.Equal(t, first, claimed, "the owner claims the entry with a new epoch")

	a.run(t)
	o, found, err := a.Owner("a/1")
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, Owner{Pair: "a", Addresses: a.member().Addresses, Epoch: 2}, o)
	require.Equal(t, []Placement{{Queue: "a/1", Pair: "a", Epoch: 2}}, a.Queues("", 10))
	require.Empty(t, a.Queues("a/1", 10))
	require.Equal(t, []Rule{{Pattern: "a/*", Pair: "a"}}, a.Rules())

	require.NoError(t, a.Release(t.Context(), "a/1", 1), "an old epoch")
	require.NoError(t, b.Release(t.Context(), "a/1", 2), "another pair")
	a.awaitOwner(t, "a/1", func(_ Owner, found bool) bool { return found })
	require.NoError(t, a.Release(t.Context(), "a/1", 2))
	a.awaitOwner(t, "a/1", func(_ Owner, found bool) bool { return !found })
	require.NoError(t, a.DeleteRule(t.Context(), "a/*"))
	a.await(t, func(Status) bool { return len(a.Rules()) == 0 })
}

// In some states of this node or of the directory, nothing is assigned.
func TestAssignRefused(t *testing.T) {
	t.Parallel()
	client := start(t).client(t)
	a := newPair(t, client, "a")
	_, _, err := a.Owner("q")
	require.ErrorIs(t, err, ErrUnavailable)
	_, err = a.Assign(t.Context(), "q", "")
	require.ErrorIs(t, err, ErrNotMember)
	a.join(t)
	for _, name := range []string{"", string(make([]byte, MaxNameBytes+1)), "a\nb", "\xff"} {
		_, err = a.Assign(t.Context(), name, "")
		require.ErrorIs(t, err, ErrInvalid)
		if name != "" {
			_, err = a.Assign(t.Context(), "q", name)
			require.ErrorIs(t, err, ErrInvalid)
		}
	}
	require.NoError(t, a.SetState(t.Context(), "a", StateDraining))
	_, err = a.Assign(t.Context(), "q", "")
	require.ErrorIs(t, err, ErrNoPair)
	require.NoError(t, a.SetState(t.Context(), "a", StateOpen))
	require.NoError(t, a.PutRule(t.Context(), Rule{Pattern: "q*", Labels: map[string]string{"zone": "x"}}))
	_, err = a.Assign(t.Context(), "q", "")
	require.ErrorIs(t, err, ErrNoPair)
	m := a.member()
	m.Labels = map[string]string{"zone": "x", "disk": "ssd"}
	require.NoError(t, a.UpdateMember(t.Context(), m))
	_, err = a.Assign(t.Context(), "q", "")
	require.NoError(t, err)
	a.set(func(s *PairState) { s.Term = 0 })
	_, err = a.Assign(t.Context(), "q", "")
	require.ErrorIs(t, err, ErrNotActive)
	_, err = a.Reconcile(t.Context(), a.list, nil)
	require.ErrorIs(t, err, ErrNotActive)
	require.ErrorIs(t, a.SetState(t.Context(), "none", StateOpen), ErrNotMember)
	require.ErrorIs(t, a.SetState(t.Context(), "a", "closed"), ErrInvalid)
	require.ErrorIs(t, a.PutRule(t.Context(), Rule{Pattern: "x"}), ErrInvalid)
}

// Each name has one owner, epochs are unique, and the queues of a group have one pair, regardless of concurrent calls.
func TestConcurrentAssign(t *testing.T) {
	t.Parallel()
	s := start(t)
	var all []*pair
	for _, name := range []string{"a", "b", "c"} {
		p := newPair(t, s.client(t), name)
		p.join(t)
		all = append(all, p)
	}
	const names = 40
	results := make([][]Owner, len(all))
	var wg sync.WaitGroup
	for i, p := range all {
		results[i] = make([]Owner, names)
		for worker := range 2 {
			wg.Go(func() {
				for n := worker; n < names; n += 2 {
					name := fmt.Sprintf("q%d", n)
					if n%4 == 0 {
						name = fmt.Sprintf("{g%d}/%d/%s", n%3, n, p.name) // different queues of one group
					}
					o, err := p.Assign(t.Context(), name, "")
					if err != nil {
						t.Errorf("assign %s: %v", name, err)
					}
					results[i][n] = o
				}
			})
		}
	}
	wg.Wait()
	all[0].run(t)
	epochs, groups := map[uint64]bool{}, map[string]string{}
	placements := all[0].Queues("", 1000)
	require.Len(t, placements, names/4*3+names/4*3)
	for _, p := range placements {
		require.False(t, epochs[p.Epoch], "epoch %d was assigned twice", p.Epoch)
		epochs[p.Epoch] = true
		if p.Group != "" {
			require.Equal(t, p.Pair, orDefault(groups[p.Group], p.Pair), "group %s is separated", p.Group)
			groups[p.Group] = p.Pair
		}
	}
	require.Len(t, groups, 3)
	for n := range names {
		for i := range all {
			if n%4 != 0 {
				require.Equal(t, results[0][n].Pair, results[i][n].Pair)
			}
		}
	}
}

func orDefault(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// A group stays at its pair, even if the pair is draining, until its last queue is deleted.
func TestGroup(t *testing.T) {
	t.Parallel()
	p := pairs(t, start(t).client(t), "a", "b")
	a, b := p[0], p[1]
	require.NoError(t, a.SetState(t.Context(), "b", StateDraining))
	for _, q := range []string{"x{t}", "{t}y"} {
		o, err := a.Assign(t.Context(), q, "")
		require.NoError(t, err)
		require.Equal(t, "a", o.Pair)
		a.create(q, o.Epoch)
	}
	require.NoError(t, a.SetState(t.Context(), "b", StateOpen))
	require.NoError(t, a.SetState(t.Context(), "a", StateDraining))
	o, err := b.Assign(t.Context(), "z", "t")
	require.NoError(t, err)
	require.Equal(t, "a", o.Pair)
	for q, epoch := range a.queues {
		require.NoError(t, a.Release(t.Context(), q, epoch))
	}
	a.queues = map[string]uint64{}
	for range 3 { // the unclaimed entry of z, then the group
		_, err := a.Reconcile(t.Context(), a.list, nil)
		require.NoError(t, err)
	}
	o, err = b.Assign(t.Context(), "{t}new", "")
	require.NoError(t, err)
	require.Equal(t, "b", o.Pair)
}

// If a group has no queues, a queue of the group is created at the pair of the queue with this name.
func TestGroupOfQueue(t *testing.T) {
	t.Parallel()
	p := pairs(t, start(t).client(t), "a", "b")
	a, b := p[0], p[1]
	require.NoError(t, a.SetState(t.Context(), "b", StateDraining))
	_, err := a.Assign(t.Context(), "requests", "")
	require.NoError(t, err)
	require.NoError(t, a.SetState(t.Context(), "b", StateOpen))
	require.NoError(t, a.SetState(t.Context(), "a", StateDraining))
	for queue, group := range map[string]string{"reply": "requests", "reply2{requests}": "", "other": "unknown"} {
		o, err := b.Assign(t.Context(), queue, group)
		require.NoError(t, err)
		want := "a"
		if queue == "other" {
			want = "b"
		}
		require.Equal(t, want, o.Pair, queue)
	}
}

func TestJoin(t *testing.T) {
	t.Parallel()
	client := start(t).client(t)
	a := newPair(t, client, "a")
	for i := range 120 {
		a.queues[fmt.Sprintf("a%d", i)] = 0
	}
	report := a.join(t)
	require.Equal(t, 120, report.Added)
	require.Len(t, report.Epochs, 120)
	require.Len(t, slices.Compact(slices.Sorted(maps.Values(report.Epochs))), 120)
	report = a.join(t)
	require.Zero(t, report.Added, "joined twice")

	b := newPair(t, client, "b")
	for i := range 120 {
		b.queues[fmt.Sprintf("b%d", i)] = 0
	}
	b.queues["a7"], b.queues["a100"] = 0, 0
	_, _, err := b.Join(t.Context(), b.member(), b.list)
	var conflict *ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, []Conflict{
		{Queue: "a100", Pair: "a", PairEpoch: a.queues["a100"]}, {Queue: "a7", Pair: "a", PairEpoch: a.queues["a7"]},
	}, conflict.Conflicts)
	a.run(t)
	require.Len(t, a.Pairs(), 1)
	require.Equal(t, 120, a.Status().Queues)
	require.Equal(t, 120, a.Pairs()[0].Queues)

	delete(b.queues, "a7")
	delete(b.queues, "a100")
	b.join(t)
	a.await(t, func(s Status) bool { return len(a.Pairs()) == 2 && s.Queues == 240 && a.Pairs()[1].Live })
	require.Equal(t, StateOpen, a.Pairs()[1].State)

	other := newPair(t, client, "a")
	other.opts.PairID = "other"
	_, _, err = other.Join(t.Context(), a.member(), a.list)
	require.ErrorIs(t, err, ErrPairExists)
	renamed := newPair(t, client, "c")
	renamed.opts.PairID = "id-b"
	_, _, err = renamed.Join(t.Context(), a.member(), renamed.list)
	require.ErrorIs(t, err, ErrPairExists)
}

// A new epoch is above that of the directory and those of the caller, and the directory does not appear to be older.
func TestNewEpoch(t *testing.T) {
	t.Parallel()
	client := start(t).client(t)
	a := newPair(t, client, "a")
	id, _, err := a.Join(t.Context(), a.member(), a.list)
	require.NoError(t, err)
	first, err := a.NewEpoch(t.Context(), id, 0)
	require.NoError(t, err)
	require.Positive(t, first)
	again, err := a.NewEpoch(t.Context(), id, 0)
	require.NoError(t, err)
	require.Greater(t, again, first)
	last, err := a.NewEpoch(t.Context(), id, 100)
	require.NoError(t, err)
	require.Greater(t, last, uint64(100))
	a.set(func(s *PairState) { s.FleetID, s.MaxEpoch = id, last })
	require.NoError(t, a.PutLoad(t.Context(), Load{FreeBytes: 1}))
	o, err := a.Assign(t.Context(), "q", "")
	require.NoError(t, err)
	require.Greater(t, o.Epoch, last)
	_, err = a.NewEpoch(t.Context(), "another fleet", 0)
	require.NoError(t, err, "a member ignores the ID")
	b := newPair(t, client, "b")
	_, err = b.NewEpoch(t.Context(), "another fleet", 0)
	require.ErrorIs(t, err, ErrLost)
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	client := start(t).client(t)
	p := pairs(t, client, "a", "b")
	a, b := p[0], p[1]
	require.NoError(t, a.PutRule(t.Context(), Rule{Pattern: "*", Pair: "a"}))
	for _, q := range []string{"gone", "creating", "kept"} {
		o, err := a.Assign(t.Context(), q, "")
		require.NoError(t, err)
		if q == "kept" {
			a.create(q, o.Epoch)
		}
	}
	_, err := b.Assign(t.Context(), "unclaimed", "")
	require.NoError(t, err)
	o, err := a.Assign(t.Context(), "missing", "")
	require.NoError(t, err)
	a.create("missing", o.Epoch)
	_, err = client.Delete(t.Context(), "/test/queues/missing")
	require.NoError(t, err)
	a.queues["new"] = 0
	b.create("kept", 3)
	inProgress := func(q string) bool { return q == "creating" }

	report, err := a.Reconcile(t.Context(), a.list, inProgress)
	require.NoError(t, err)
	require.Equal(t, Report{Added: 2, Removed: 1, Epochs: map[string]uint64{"new": 6}}, report)
	a.create("new", 6)
	report, err = a.Reconcile(t.Context(), a.list, inProgress)
	require.NoError(t, err)
	require.Equal(t, Report{Removed: 1, Epochs: map[string]uint64{}}, report, "the unclaimed entry")
	report, err = b.Reconcile(t.Context(), b.list, nil)
	require.NoError(t, err)
	require.Equal(t, []Conflict{{Queue: "kept", Epoch: 3, Pair: "a", PairEpoch: 3}}, report.Conflicts)

	a.set(func(s *PairState) { s.Term = 2 })
	_, err = a.Assign(t.Context(), "later", "")
	require.NoError(t, err)
	a.set(func(s *PairState) { s.Term = 1 }) // a replaced active
	_, err = a.Reconcile(t.Context(), a.list, inProgress)
	require.NoError(t, err)
	_, err = a.Assign(t.Context(), "later", "")
	require.ErrorIs(t, err, ErrNotActive)
	a.run(t)
	var names []string
	for _, q := range a.Queues("", 100) {
		names = append(names, q.Queue)
	}
	require.Equal(t, []string{"creating", "kept", "later", "missing", "new"}, names)
}

func TestRebuildOfLostDirectory(t *testing.T) {
	t.Parallel()
	s := start(t)
	client := s.client(t)
	p := pairs(t, client, "a", "b")
	a, b := p[0], p[1]
	a.run(t)
	for i := range 20 {
		q := fmt.Sprint("q", i)
		for _, p := range p {
			o, err := p.Assign(t.Context(), q, "")
			require.NoError(t, err)
			if o.Pair == p.name {
				p.create(q, o.Epoch)
			}
		}
	}
	s.restart(t, func() { require.NoError(t, os.RemoveAll(s.dir)) })
	a.await(t, func(s Status) bool { return s.Current && s.FleetID == "" })
	require.ErrorIs(t, a.Status().Problem, ErrLost)
	_, _, err := a.Owner("q1")
	require.ErrorIs(t, err, ErrLost)
	_, err = a.Assign(t.Context(), "new", "")
	require.ErrorIs(t, err, ErrLost)
	_, _, err = a.Join(t.Context(), a.member(), a.list)
	require.ErrorIs(t, err, ErrLost)

	all := []string{"a", "b"}
	report, err := a.Rebuild(t.Context(), a.member(), all, a.list)
	require.NoError(t, err)
	require.Equal(t, []string{"b"}, report.Waiting)
	_, err = a.Assign(t.Context(), "new", "")
	require.ErrorIs(t, err, ErrRebuilding)
	report, err = b.Rebuild(t.Context(), b.member(), all, b.list)
	require.NoError(t, err)
	require.Empty(t, report.Waiting)
	require.Len(t, b.queues, report.Added)
	a.await(t, func(s Status) bool { return s.Problem == nil && s.Queues == 20 })
	require.NoError(t, a.PutLoad(t.Context(), Load{}), "with a new lease")
	o, err := a.Assign(t.Context(), "new", "")
	require.NoError(t, err)
	require.Greater(t, o.Epoch, max(a.state.MaxEpoch, b.state.MaxEpoch))
	report, err = b.Rebuild(t.Context(), b.member(), all, b.list)
	require.NoError(t, err)
	require.Equal(t, Report{Epochs: map[string]uint64{}}, report, "nothing to rebuild")
}

func TestRestoredDirectory(t *testing.T) {
	t.Parallel()
	s := start(t)
	p := pairs(t, s.client(t), "a", "b")
	a, b := p[0], p[1]
	require.NoError(t, a.PutRule(t.Context(), Rule{Pattern: "a*", Pair: "a"}))
	require.NoError(t, a.PutRule(t.Context(), Rule{Pattern: "b*", Pair: "b"}))
	b.run(t)
	assign := func(p *pair, q string) {
		o, err := p.Assign(t.Context(), q, "")
		require.NoError(t, err)
		require.Equal(t, p.name, o.Pair)
		p.create(q, o.Epoch)
	}
	assign(a, "a-old")
	image := t.TempDir()
	s.restart(t, func() { require.NoError(t, os.CopyFS(image, os.DirFS(s.dir))) })
	assign(a, "a-new")
	assign(b, "b-new")
	require.NoError(t, a.Release(t.Context(), "a-old", a.queues["a-old"]))
	delete(a.queues, "a-old")
	s.restart(t, func() {
		require.NoError(t, os.RemoveAll(s.dir))
		require.NoError(t, os.CopyFS(s.dir, os.DirFS(image)))
	})
	// The watch of b detects it, and stops the assignments of all pairs.
	b.await(t, func(s Status) bool { return s.Current && errors.Is(s.Problem, ErrRebuilding) })
	_, err := a.Assign(t.Context(), "b-new", "")
	require.ErrorIs(t, err, ErrRebuilding)
	for _, p := range p {
		report, err := p.Rebuild(t.Context(), p.member(), nil, p.list)
		require.NoError(t, err)
		require.Empty(t, report.Conflicts)
	}
	b.await(t, func(s Status) bool { return s.Problem == nil && s.Queues == 2 })
	require.NoError(t, b.PutLoad(t.Context(), Load{}))
	o, err := b.Assign(t.Context(), "b-other", "")
	require.NoError(t, err)
	require.Greater(t, o.Epoch, uint64(3))
}

// Without a Run, the next assignment detects a restored directory.
func TestRestoredDirectoryDetectedByAssign(t *testing.T) {
	t.Parallel()
	client := start(t).client(t)
	p := pairs(t, client, "a", "b")
	p[0].set(func(s *PairState) { s.MaxEpoch = 7 })
	_, err := p[0].Assign(t.Context(), "q", "")
	require.ErrorIs(t, err, ErrRestored)
	_, err = p[1].Assign(t.Context(), "q", "")
	require.ErrorIs(t, err, ErrRebuilding)
}

// A check of a copy that is no longer current does not stop the assignments, and does not log that it did.
func TestRestoredDirectoryChangedConcurrently(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.WarnLevel)
	p := pairs(t, start(t).client(t), "a", "b")
	a := p[0]
	a.log = zap.New(core)
	a.set(func(s *PairState) { s.MaxEpoch = 7 })
	h, _, err := a.readHead(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, a.check(t.Context(), h, a.known()), ErrRestored)
	require.Equal(t, 1, logs.FilterFieldKey("counter").Len())
	require.ErrorIs(t, a.check(t.Context(), h, a.known()), ErrRestored)
	require.Equal(t, 1, logs.FilterFieldKey("counter").Len(), "another check has already stopped them")
}

// A batch does not delete an entry that was claimed after it was read.
func TestDeletionComparesValue(t *testing.T) {
	t.Parallel()
	a := pairs(t, start(t).client(t), "a")[0]
	first, err := a.Assign(t.Context(), "q", "")
	require.NoError(t, err)
	calls := 0
	err = a.apply(t.Context(), []string{"q"}, a.joined(t.Context(), a.state.FleetID), nil,
		func(_ string, old stored) (change, entryValue) {
			if calls++; calls > 1 {
				require.Greater(t, old.Epoch, first.Epoch)
				return keep, entryValue{}
			}
			_, err := a.Assign(t.Context(), "q", "")
			require.NoError(t, err)
			return remove, entryValue{}
		}, func(string, change, entryValue) { t.Error("deleted") })
	require.NoError(t, err)
	require.Equal(t, 2, calls)
}
