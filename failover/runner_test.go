// SPDX-License-Identifier: Apache-2.0

package failover_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd"
	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd/embedded"
	"github.com/lockstep-mq/lockstep/failover/coordinator/memory"
	"github.com/lockstep-mq/lockstep/test/coordtest"
)

// bound limits waits, in simulated time or, in the only test with a real etcd, in real time.
const bound = time.Minute

// node is one node of a test: a plane, and a Runner while it runs.
type node struct {
	t     *testing.T
	plane *plane
	coord failover.Coordinator
	run   *failover.Runner
	stop  context.CancelFunc
	done  chan error
}

// pair is two nodes and a coordinator.
type pair struct {
	hub     *hub
	nodes   [2]*node
	connect func() failover.Coordinator
	// features are announced by the nodes.
	features failover.Features
	// logger is used by the nodes; if nil, they use the test's logger.
	logger *zap.Logger
}

func newPair(t *testing.T, connect func() failover.Coordinator) *pair {
	t.Helper()
	p := &pair{hub: &hub{planes: map[string]*plane{}}, connect: connect}
	for i, name := range []string{"a", "b"} {
		f, err := os.Create(filepath.Join(t.TempDir(), "fence"))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, f.Close()) })
		pl := &plane{
			hub: p.hub, addr: name, file: f, dead: true,
			id: failover.Identity{Node: uuid.New(), Store: uuid.New(), Incarnation: 1},
		}
		p.hub.planes[name] = pl
		p.nodes[i] = &node{t: t, plane: pl}
		t.Cleanup(func() { p.nodes[i].end() })
	}
	return p
}

// start starts a node with its store.
func (p *pair) start(i int, set failover.Settings) {
	n := p.nodes[i]
	n.t.Helper()
	p.hub.mu.Lock()
	n.plane.dead = false
	p.hub.mu.Unlock()
	n.coord = p.connect()
	logger := p.logger
	if logger == nil {
		logger = zaptest.NewLogger(n.t)
	}
	var err error
	n.run, err = failover.New(failover.Options{
		Coordinator: n.coord, Data: n.plane, Settings: set, Logger: logger.Named(n.plane.addr),
		Self: failover.NodeInfo{
			ID: n.plane.id.Node, Name: n.plane.addr, Address: n.plane.addr, Features: p.features,
		},
	})
	require.NoError(n.t, err)
	ctx, stop := context.WithCancel(context.Background())
	n.stop, n.done = stop, make(chan error, 1)
	go func() { n.done <- n.run.Run(ctx) }()
}

// end stops a node cleanly.
func (n *node) end() {
	if n.stop == nil {
		return
	}
	n.stop()
	require.NoError(n.t, <-n.done)
	require.NoError(n.t, n.coord.Close())
	n.stop = nil
}

// kill stops a node abruptly: its connections break, and it is unreachable.
func (p *pair) kill(i int) {
	n := p.nodes[i]
	require.NoError(n.t, n.coord.Close()) // the node can no longer swap
	p.hub.mu.Lock()
	n.plane.dead = true
	p.hub.disconnect(n.plane, failover.LostReset)
	n.plane.active, n.plane.follow, n.plane.post = nil, nil, nil
	p.hub.connectAll() // the follower redials immediately, also after a rejection
	p.hub.mu.Unlock()
	n.stop()
	<-n.done
	n.stop = nil
}

func (n *node) await(what string, ok func(failover.Status) bool) failover.Status {
	n.t.Helper()
	deadline := time.After(bound)
	for {
		changed := n.run.Changed()
		st := n.run.Status()
		if ok(st) {
			return st
		}
		select {
		case <-changed:
		case <-deadline:
			require.FailNow(n.t, "not reached: "+what, "node %s: %s %q %+v", n.plane.addr, st.Role, st.Reason,
				st.Record)
		}
	}
}

func (n *node) awaitRole(role failover.Role) failover.Status {
	n.t.Helper()
	return n.await(role.String(), func(s failover.Status) bool { return s.Role == role })
}

// both starts both nodes and waits until a is active and b in sync.
func (p *pair) both(set failover.Settings) {
	p.nodes[0].t.Helper()
	p.start(0, set)
	p.nodes[0].awaitRole(failover.RoleActiveAlone)
	p.start(1, set)
	p.nodes[0].awaitRole(failover.RoleActive)
	p.nodes[1].awaitRole(failover.RoleStandby)
}

func memoryPair(t *testing.T) (*pair, *memory.Server) {
	t.Helper()
	s := memory.NewServer(0)
	return newPair(t, func() failover.Coordinator { return s.Connect() }), s
}

// etcdServer is an embedded etcd that can be stopped and restarted.
type etcdServer struct {
	t   *testing.T
	dir string
	srv *embedded.Server
}

func (e *etcdServer) start(address string) {
	e.t.Helper()
	e.srv = coordtest.StartEtcd(e.t, e.dir, address)
}

func etcdPair(t *testing.T) (*pair, *etcdServer) {
	t.Helper()
	e := &etcdServer{t: t, dir: t.TempDir()}
	e.start("")
	addr := e.srv.Address()
	t.Cleanup(func() { require.NoError(t, e.srv.Close()) })
	return newPair(t, func() failover.Coordinator {
		c, err := etcd.Open(etcd.Options{Endpoints: []string{addr}, RequestTimeout: 500 * time.Millisecond})
		require.NoError(t, err)
		return c
	}), e
}

// A takeover after a refused connection starts the active role without waiting.
func TestTakeoverDoesNotWait(t *testing.T) { synctest.Test(t, testTakeoverDoesNotWait) }

func testTakeoverDoesNotWait(t *testing.T) {
	p, _ := memoryPair(t)
	p.both(failover.Settings{})
	var times []time.Duration
	term := p.nodes[0].run.Status().Record.Term
	for round := range 10 {
		gone, next := round%2, 1-round%2
		synctest.Wait() // the active may still complete the record, and the standby reconnect
		p.kill(gone)
		st := p.nodes[next].awaitRole(failover.RoleActiveAlone)
		require.Equal(t, term+1, st.Record.Term)
		term = st.Record.Term
		n := p.nodes[next].plane
		p.hub.mu.Lock()
		times = append(times, n.started.Sub(n.lostPost))
		calls := slices.Clone(n.calls)
		p.hub.mu.Unlock()
		at := slices.Index(calls, "start-active")
		require.Equal(t, []string{"stop-follower", "fence", "fence"}, calls[at-3:at],
			"INV-4, and INV-1 for the new record")
		p.start(gone, failover.Settings{})
		p.nodes[next].awaitRole(failover.RoleActive)
		st = p.nodes[gone].awaitRole(failover.RoleStandby)
		require.Len(t, st.Record.InSync, 2)
		p.hub.mu.Lock()
		n.calls, p.nodes[gone].plane.calls = nil, nil
		p.hub.mu.Unlock()
	}
	require.Equal(t, make([]time.Duration, 10), times)
}

// While both nodes are running, an outage of the coordinator and its end only change the status.
func TestCoordinatorStopped(t *testing.T) {
	t.Run("etcd", func(t *testing.T) {
		p, e := etcdPair(t)
		addr := e.srv.Address()
		coordinatorStops(t, p, func() { require.NoError(t, e.srv.Close()) }, func() { e.start(addr) })
	})
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, s := memoryPair(t)
			coordinatorStops(t, p, func() { s.SetDown(true) }, func() { s.SetDown(false) })
		})
	})
}

func coordinatorStops(t *testing.T, p *pair, stop, start func()) {
	t.Helper()
	p.both(failover.Settings{})
	before := p.nodes[0].run.Status()
	stop()
	for _, n := range p.nodes {
		n.await("unreachable", func(s failover.Status) bool { return !s.CoordinatorReachable })
	}
	cfg, ok := p.nodes[0].plane.config()
	require.True(t, ok)
	require.True(t, cfg.Serve)
	require.True(t, cfg.Deliver)
	require.Equal(t, failover.RoleActive, p.nodes[0].run.Status().Role)
	require.Equal(t, failover.RoleStandby, p.nodes[1].run.Status().Role)

	// A broken connection recovers without the coordinator: no node has fenced the other one.
	p.hub.mu.Lock()
	p.hub.disconnect(p.nodes[0].plane, failover.LostReset)
	p.hub.mu.Unlock()
	p.nodes[0].awaitRole(failover.RoleBlocked)
	p.hub.mu.Lock()
	p.hub.connectAll()
	p.hub.mu.Unlock()
	p.nodes[0].awaitRole(failover.RoleActive)

	start()
	for _, n := range p.nodes {
		n.await("reachable", func(s failover.Status) bool { return s.CoordinatorReachable })
	}
	p.nodes[0].awaitRole(failover.RoleActive)
	p.nodes[1].awaitRole(failover.RoleStandby)
	require.Equal(t, before.Record.Term, p.nodes[0].run.Status().Record.Term)
}

// Without the coordinator and the standby, nothing is acknowledged, and after the lease has expired, nothing is
// delivered. When the coordinator returns, the active continues alone.
func TestCoordinatorAndStandbyLost(t *testing.T) { synctest.Test(t, testCoordinatorAndStandbyLost) }

func testCoordinatorAndStandbyLost(t *testing.T) {
	p, s := memoryPair(t)
	p.both(failover.Settings{})
	s.SetDown(true)
	p.kill(1)
	p.nodes[0].awaitRole(failover.RoleBlocked)
	cfg, _ := p.nodes[0].plane.config()
	require.True(t, cfg.RequireStandby)
	p.nodes[0].await("refuses", func(s failover.Status) bool { return !s.Serve })
	p.nodes[0].await("does not deliver", func(s failover.Status) bool { return !s.Deliver })

	s.SetDown(false)
	st := p.nodes[0].awaitRole(failover.RoleActiveAlone)
	require.True(t, st.Serve)
	require.True(t, st.Deliver)
	require.Len(t, st.Record.InSync, 1)
	cfg, _ = p.nodes[0].plane.config()
	require.False(t, cfg.RequireStandby)
	p.start(1, failover.Settings{})
	p.nodes[0].awaitRole(failover.RoleActive)
}

func TestBothNodesRestart(t *testing.T) { synctest.Test(t, testBothNodesRestart) }

func testBothNodesRestart(t *testing.T) {
	p, _ := memoryPair(t)
	p.both(failover.Settings{})
	p.kill(1) // the active may or may not have dropped it
	p.kill(0)
	p.start(1, failover.Settings{})
	p.start(0, failover.Settings{})
	ok := func() bool {
		a, b := p.nodes[0].run.Status(), p.nodes[1].run.Status()
		return a.Role == failover.RoleActive && b.Role == failover.RoleStandby || a.Role == failover.RoleStandby &&
			b.Role == failover.RoleActive
	}
	require.Eventually(t, ok, bound, 5*time.Millisecond)
}

func TestSwitchover(t *testing.T) {
	for _, asked := range []string{"active", "standby"} {
		t.Run(asked, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, _ := memoryPair(t)
				p.both(failover.Settings{})
				ask := p.nodes[0]
				if asked == "standby" {
					ask = p.nodes[1]
				}
				ctx, cancel := context.WithTimeout(t.Context(), bound)
				defer cancel()
				res, err := ask.run.Switchover(ctx)
				require.NoError(t, err)
				require.Equal(t, p.nodes[1].plane.id.Node, res.Active.ID)
				require.Equal(t, "b", res.Active.Address)
				require.Equal(t, uint64(2), res.Term)
				require.Zero(t, res.Pause)
				p.nodes[1].awaitRole(failover.RoleActive)
				st := p.nodes[0].awaitRole(failover.RoleStandby)
				require.Len(t, st.Record.InSync, 2)
				_, ok := p.nodes[0].plane.config()
				require.False(t, ok)
			})
		})
	}
}

// When SetMinInSync returns, the called node uses the new value. The same applies to SetPaused.
func TestSetMinInSync(t *testing.T) { synctest.Test(t, testSetMinInSync) }

func testSetMinInSync(t *testing.T) {
	p, _ := memoryPair(t)
	p.features = failover.KnownFeatures()
	p.both(failover.Settings{})
	for range 20 {
		for _, n := range p.nodes {
			for _, wanted := range []int{2, 1} {
				require.NoError(t, n.run.SetMinInSync(t.Context(), wanted, 1))
				require.Equal(t, wanted, n.run.Status().Record.MinInSync)
			}
			require.NoError(t, n.run.SetPaused(t.Context(), &failover.Pause{Reason: "a test"}))
			require.NotNil(t, n.run.Status().Record.Paused)
			require.NoError(t, n.run.SetPaused(t.Context(), nil))
			require.Nil(t, n.run.Status().Record.Paused)
		}
	}
}

func TestSwitchoverFails(t *testing.T) { synctest.Test(t, testSwitchoverFails) }

func testSwitchoverFails(t *testing.T) {
	p, s := memoryPair(t)
	p.both(failover.Settings{})
	p.hub.mu.Lock()
	p.nodes[0].plane.drain = errors.New("transaction is stuck")
	p.hub.mu.Unlock()
	for _, n := range p.nodes {
		_, err := n.run.Switchover(t.Context())
		require.ErrorIs(t, err, failover.ErrSwitchover)
	}
	st := p.nodes[0].awaitRole(failover.RoleActive)
	require.Equal(t, uint64(1), st.Record.Term)
	p.hub.mu.Lock()
	require.Contains(t, p.nodes[0].plane.calls, "resume")
	p.hub.mu.Unlock()
	p.nodes[0].await("no request", func(s failover.Status) bool { return s.Record.Switchover == nil })

	s.SetDown(true)
	for range 20 { // the outage is not detected yet; a swap without a response would block every write (INV-8)
		_, err := p.nodes[0].run.Switchover(t.Context())
		require.ErrorIs(t, err, failover.ErrSwitchover)
		require.Equal(t, failover.RoleActive, p.nodes[0].run.Status().Role)
	}
	p.nodes[0].await("unreachable", func(s failover.Status) bool { return !s.CoordinatorReachable })
	_, err := p.nodes[0].run.Switchover(t.Context())
	require.ErrorIs(t, err, failover.ErrSwitchover)
	require.ErrorIs(t, err, failover.ErrUnreachable)
	run := p.nodes[0].run
	p.nodes[0].end()
	_, err = run.Switchover(t.Context())
	require.ErrorIs(t, err, failover.ErrStopped)
}

// If the response to a takeover's swap is lost, the node detects that the swap was applied, and becomes active.
func TestLostReply(t *testing.T) { synctest.Test(t, testLostReply) }

func testLostReply(t *testing.T) {
	p, _ := memoryPair(t)
	p.both(failover.Settings{})
	p.nodes[1].coord.(*memory.Coordinator).LoseNextReply()
	p.kill(0)
	st := p.nodes[1].awaitRole(failover.RoleActiveAlone)
	require.Equal(t, uint64(2), st.Record.Term)
}

// Run stops the role when its context ends, rejects a second call, and returns the error of a failed store.
func TestRunEnds(t *testing.T) { synctest.Test(t, testRunEnds) }

func testRunEnds(t *testing.T) {
	p, s := memoryPair(t)
	p.both(failover.Settings{})
	p.nodes[0].end()
	p.hub.mu.Lock()
	require.Equal(t, "stop-active", p.nodes[0].plane.calls[len(p.nodes[0].plane.calls)-1])
	p.hub.mu.Unlock()
	again := p.nodes[0].run.Run(t.Context())
	require.Error(t, again)
	require.Contains(t, again.Error(), "already running")

	s.Forget()
	p.nodes[1].run.Post(failover.Failed{Err: os.ErrDeadlineExceeded})
	err := <-p.nodes[1].done
	require.ErrorIs(t, err, failover.ErrFailed)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	p.nodes[1].stop = nil
}

// A node without a partner activates in a new term each time.
func TestStandalone(t *testing.T) { synctest.Test(t, testStandalone) }

func testStandalone(t *testing.T) {
	p, _ := memoryPair(t)
	n := p.nodes[0]
	self := failover.NodeInfo{ID: n.plane.id.Node, Name: "a", Address: "a"}
	p.connect = func() failover.Coordinator { return memory.Standalone(n.plane.Identity(), self).Connect() }
	for term := range uint64(3) {
		p.start(0, failover.Settings{AcceptLoss: true})
		st := n.awaitRole(failover.RoleActiveAlone)
		require.Equal(t, term+1, st.Record.Term)
		require.True(t, st.Serve)
		n.end()
		n.plane.id.MayHaveLost = term == 1
	}
}

func TestInvalidOptions(t *testing.T) {
	c := memory.NewServer(0).Connect()
	good := failover.Options{Coordinator: c, Data: &plane{}, Self: failover.NodeInfo{ID: uuid.New(), Address: "a"}}
	_, err := failover.New(good)
	require.NoError(t, err)
	for _, change := range []func(*failover.Options){
		func(o *failover.Options) { o.Coordinator = nil },
		func(o *failover.Options) { o.Data = nil },
		func(o *failover.Options) { o.Self.ID = uuid.Nil },
		func(o *failover.Options) { o.Self.Address = "" },
		func(o *failover.Options) { o.Settings.MinInSync = 3 },
	} {
		bad := good
		change(&bad)
		_, err := failover.New(bad)
		require.Error(t, err)
	}
}
