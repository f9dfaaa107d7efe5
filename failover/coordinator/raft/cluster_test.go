// SPDX-License-Identifier: Apache-2.0

package raft_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover/coordinator/raft"
	"github.com/lockstep-mq/lockstep/test/simnet"
)

// bound limits all waits.
const bound = time.Minute

// Voters of every test. The test's network resolves the names and assigns the listen ports.
const (
	nodeA   = "a.test:1"
	nodeB   = "b.test:1"
	witness = "w.test:1"
	spare   = "x.test:1" // fourth voter, for replacements
)

func names() []string { return []string{nodeA, nodeB, witness} }

// network carries the connections between voters, and can be cut.
type network struct {
	sim *simnet.Network // nil: TCP on the loopback interface

	mu        sync.Mutex // guards the fields below
	real      map[string]string
	holes     map[string]bool // voters with all traffic dropped
	cut       map[[2]string]bool
	links     map[*link]struct{}
	processes map[string]*simnet.Process
}

type link struct {
	net.Conn

	n        *network
	from, to string
}

func newNetwork(sim *simnet.Network) *network {
	return &network{
		sim: sim, real: make(map[string]string), holes: make(map[string]bool), cut: make(map[[2]string]bool),
		links: make(map[*link]struct{}), processes: make(map[string]*simnet.Process),
	}
}

// host returns the simulated host of a voter or client.
func host(name string) string {
	h, _, _ := strings.Cut(name, ":")
	return h
}

// process returns the simulated process of a voter or client.
func (n *network) process(name string) *simnet.Process {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.processes[name] == nil {
		n.processes[name] = n.sim.NewProcess(host(name))
	}
	return n.processes[name]
}

func (n *network) dial(ctx context.Context, from, address string) (net.Conn, error) {
	if n.sim == nil {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}
	return n.process(from).Dial(ctx, address)
}

// delay sets the latency of messages from one voter to another.
func (n *network) delay(from, to string, d time.Duration) {
	n.sim.Change(simnet.Way{From: host(from), To: host(to)}, func(l *simnet.Link) { l.Delay = d })
}

// hold stops the delivery of messages from one voter to another if on is set. Otherwise it delivers them again.
func (n *network) hold(from, to string, on bool) {
	n.sim.Change(simnet.Way{From: host(from), To: host(to)}, func(l *simnet.Link) { l.Cut = on })
}

var errCut = errors.New("link is cut")

// dialFrom returns the Dial function of one voter.
func (n *network) dialFrom(from string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, to string) (net.Conn, error) {
		n.mu.Lock()
		address, ok := n.real[to]
		cut := n.cut[[2]string{from, to}]
		n.mu.Unlock()
		if !ok || cut {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errCut}
		}
		conn, err := n.dial(ctx, from, address)
		if err != nil {
			return nil, err
		}
		l := &link{Conn: conn, n: n, from: from, to: to}
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.cut[[2]string{from, to}] { // cut in the meantime
			_ = conn.Close()
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errCut}
		}
		n.links[l] = struct{}{}
		return l, nil
	}
}

func (l *link) Close() error {
	l.n.mu.Lock()
	delete(l.n.links, l)
	l.n.mu.Unlock()
	return l.Conn.Close()
}

// Read implements net.Conn. It discards data from a hole.
func (l *link) Read(p []byte) (int, error) {
	for {
		n, err := l.Conn.Read(p)
		if err != nil || !l.lost() {
			return n, err
		}
	}
}

// Write implements net.Conn.
func (l *link) Write(p []byte) (int, error) {
	if l.lost() {
		return len(p), nil
	}
	return l.Conn.Write(p)
}

func (l *link) lost() bool {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	return l.n.holes[l.from] || l.n.holes[l.to]
}

// dropTraffic drops all traffic of a voter silently if on is set. Otherwise it delivers traffic again, and closes the
// connections that lost data.
func (n *network) dropTraffic(name string, on bool) {
	n.mu.Lock()
	n.holes[name] = on
	var ends []net.Conn
	for l := range n.links {
		if !on && (l.from == name || l.to == name) {
			ends = append(ends, l.Conn)
		}
	}
	n.mu.Unlock()
	for _, c := range ends {
		_ = c.Close()
	}
}

// isolate cuts a voter off from all others, or reconnects it.
func (n *network) isolate(name string, cut bool) {
	for _, other := range names() {
		n.cutLink(name, other, cut)
	}
}

// cutLink cuts the link between two voters, or restores it.
func (n *network) cutLink(a, b string, cut bool) {
	n.mu.Lock()
	var ends []net.Conn
	n.cut[[2]string{a, b}], n.cut[[2]string{b, a}] = cut, cut
	for l := range n.links {
		if cut && (l.from == a && l.to == b || l.from == b && l.to == a) {
			ends = append(ends, l.Conn)
		}
	}
	n.mu.Unlock()
	for _, c := range ends {
		_ = c.Close()
	}
}

func (n *network) at(name, address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if address == "" {
		delete(n.real, name)
		return
	}
	n.real[name] = address
}

// cluster consists of the three voters of a test.
type cluster struct {
	t      *testing.T
	net    *network
	dir    string
	tune   func(*raft.Options)
	voters map[string]*raft.Voter
	dirs   map[string]string
}

// simulate runs a test in simulated time (testing/synctest), in parallel to other tests.
func simulate(t *testing.T, test func(*testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// latency is the delay of each message on the simulated network.
const latency = time.Millisecond

// newCluster returns a cluster on a simulated network, without running voters.
func newCluster(t *testing.T, tune func(*raft.Options)) *cluster {
	t.Helper()
	// A leadership transfer of the library outlives its voter until its message times out. Simulated time stops with the
	// test.
	t.Cleanup(func() { <-time.NewTimer(bound).C })
	return newClusterOn(t, newNetwork(simnet.New(simnet.Options{Delay: latency})), tune)
}

func newClusterOn(t *testing.T, n *network, tune func(*raft.Options)) *cluster {
	t.Helper()
	c := &cluster{
		t: t, net: n, dir: t.TempDir(), tune: tune, voters: make(map[string]*raft.Voter),
		dirs: make(map[string]string),
	}
	t.Cleanup(func() {
		for _, name := range append(names(), spare) {
			c.stop(name)
		}
	})
	return c
}

// startCluster starts all voters on a simulated network, and waits until the witness leads.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t, nil)
	c.startAll()
	return c
}

func (c *cluster) startAll() {
	t := c.t
	t.Helper()
	for _, name := range names() {
		c.start(name)
	}
	c.awaitLeader(witness)
	// A voter that has received only heartbeats has an empty disk, and would be a new voter after a restart.
	require.Eventually(t, func() bool {
		for _, v := range c.voters {
			if !v.Status().Member {
				return false
			}
		}
		return true
	}, bound, 2*time.Millisecond, "a voter has not received the log")
}

func (c *cluster) options(name string) raft.Options {
	dir := c.dirs[name]
	if dir == "" {
		dir = filepath.Join(c.dir, name[:1])
	}
	o := raft.Options{
		Dir: dir, Listen: "127.0.0.1:0", Advertise: name, Voters: names(), Dial: c.net.dialFrom(name),
		ElectionTimeout: 250 * time.Millisecond, LeaseTTL: time.Second, RequestTimeout: 500 * time.Millisecond,
		UnsafeNoFsync: true,
	}
	if c.net.sim != nil {
		o.Listen, o.Bind = host(name)+":0", c.net.process(name).Listen
	}
	if name == spare {
		o.Voters = []string{nodeA, nodeB, spare}
	}
	if name == witness || name == spare {
		o.Kind = raft.KindWitness
	}
	if c.tune != nil {
		c.tune(&o)
	}
	return o
}

func (c *cluster) start(name string) *raft.Voter {
	c.t.Helper()
	v, err := raft.Start(c.options(name))
	require.NoError(c.t, err)
	c.voters[name] = v
	c.net.at(name, v.ListenAddress())
	return v
}

func (c *cluster) stop(name string) {
	c.t.Helper()
	if v := c.voters[name]; v != nil {
		delete(c.voters, name)
		c.net.at(name, "")
		require.NoError(c.t, v.Close())
	}
}

// wipe gives a stopped voter an empty directory.
func (c *cluster) wipe(name string) { c.dirs[name] = c.t.TempDir() }

func (c *cluster) awaitLeader(name string) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		for _, v := range c.voters {
			if v.Status().LeaderAddress != name {
				return false
			}
		}
		return c.voters[name].Status().State == "Leader"
	}, bound, 2*time.Millisecond, "%s does not lead", name)
}

func (c *cluster) connect(name string) *raft.Coordinator {
	c.t.Helper()
	k := c.voters[name].Connect()
	c.t.Cleanup(func() { require.NoError(c.t, k.Close()) })
	return k
}

// awaitProblem waits until a voter reports a problem that contains text.
func (c *cluster) awaitProblem(name, text string) {
	c.t.Helper()
	if !awaitTrue(func() bool { return contains(c.voters[name].Status().Problem, text) }) {
		require.Contains(c.t, c.voters[name].Status().Problem, text)
	}
}

func timed(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	t.Cleanup(cancel)
	return ctx
}
