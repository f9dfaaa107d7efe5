// SPDX-License-Identifier: Apache-2.0

package replication_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	lockstepv1 "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/identity"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// waitLimit is the timeout of every wait of these tests, in simulated time.
const waitLimit = time.Minute

// world is the environment of a pair in a synctest bubble: a network and the pair ID.
type world struct {
	t    *testing.T
	pair uuid.UUID
	net  *memNetwork
	grpc bool
	// listeners maps addresses to gRPC listeners if grpc is set.
	listeners sync.Map
}

func newWorld(t *testing.T) *world {
	return &world{t: t, pair: uuid.New(), net: &memNetwork{}}
}

// simulated runs a subtest in a separate synctest bubble.
func simulated(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// pause sleeps in simulated time.
func pause(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // in a bubble
}

// requireTook asserts that the simulated time since start is between least and most.
func requireTook(t *testing.T, start time.Time, least, most time.Duration) {
	t.Helper()
	took := time.Since(start)
	require.GreaterOrEqual(t, took, least)
	require.LessOrEqual(t, took, most)
}

// overBoth runs a test over the in-memory network and over gRPC on in-memory connections, each in a bubble.
func overBoth(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	simulated(t, "memnet", func(t *testing.T) { test(t, newWorld(t)) })
	simulated(t, "grpc", func(t *testing.T) {
		w := newWorld(t)
		w.grpc = true
		test(t, w)
	})
}

func (w *world) dialer() replication.Dialer {
	if w.grpc {
		return replication.NewDialerOver(w.dial)
	}
	return w.net.Dialer()
}

// dial connects to a gRPC listener. It returns ECONNREFUSED if none listens at the address.
func (w *world) dial(ctx context.Context, address string) (net.Conn, error) {
	l, ok := w.listeners.Load(address)
	if !ok {
		return nil, syscall.ECONNREFUSED
	}
	return l.(*bufconn.Listener).DialContext(ctx)
}

// node is a node with a real store on an in-memory filesystem, and the roles that a test starts.
type node struct {
	w       *world
	name    string
	disk    *memfs.FS
	hook    func(faultfs.Op) error // installed in each fault filesystem
	fault   *faultfs.FS
	options store.Options
	tuning  replication.Tuning
	store   *store.Store
	address string
	close   func()

	mu       sync.Mutex // guards all below
	primary  *replication.Primary
	follower *replication.Follower
	events   []replication.Event
	changed  chan struct{} // closed when an event is added
	term     uint64
	config   uint64
	queueID  uint64
}

func (w *world) node(name string, change ...func(*node)) *node {
	n := &node{w: w, name: name, disk: memfs.New(), changed: make(chan struct{})}
	n.options = store.Options{Dir: "/data", SegmentBytes: 1 << 20, MemoryBudget: store.MinMemoryBudget}
	for _, c := range change {
		c(n)
	}
	n.open()
	n.listen()
	w.t.Cleanup(func() {
		n.stop()
		n.close()
		_ = n.store.Close()
	})
	return n
}

// smallLog minimizes the retained log.
func smallLog(n *node) { n.options.LogKeepBytes, n.options.SegmentBytes = 1, 64<<10 }

// open opens the store on the current disk.
func (n *node) open() {
	n.fault = faultfs.New(n.disk)
	n.fault.SetHook(n.hook)
	n.options.FS = n.fault
	st, err := store.Open(n.options)
	require.NoError(n.w.t, err)
	require.NoError(n.w.t, st.JoinPair(n.w.pair))
	n.store = st
}

func (n *node) active() (replication.Service, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.primary == nil {
		return nil, replication.ErrNotActive
	}
	return n.primary, nil
}

func (n *node) listen() {
	if !n.w.grpc {
		n.address = n.name
		n.close = n.w.net.Listen(n.name, n.active).Close
		return
	}
	l := bufconn.Listen(256 << 10)
	n.address = n.name
	n.w.listeners.Store(n.address, l)
	srv := grpc.NewServer()
	lockstepv1.RegisterReplicationServiceServer(srv, replication.NewServer(n.active, n.store, replication.Responder{}))
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(l)
	}()
	n.close = sync.OnceFunc(func() {
		n.w.listeners.CompareAndDelete(n.address, l)
		srv.Stop()
		<-served
	})
}

func (n *node) member() replication.Member {
	id := n.store.Identity()
	return replication.Member{Node: id.NodeID, Store: id.StoreID, Incarnation: id.Incarnation}
}

func (n *node) event(e replication.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events = append(n.events, e)
	close(n.changed)
	n.changed = make(chan struct{})
}

// lead makes the node the active. If standby is set, its acks are required from the beginning.
func (n *node) lead(config, term uint64, standby *node) *replication.Primary {
	cfg := replication.PrimaryConfig{Config: config, Serve: true}
	if standby != nil {
		cfg.RequireStandby, cfg.Standby = true, standby.member()
	}
	return n.leadWith(term, cfg)
}

func (n *node) leadWith(term uint64, cfg replication.PrimaryConfig) *replication.Primary {
	p, err := replication.StartPrimary(replication.PrimaryOptions{
		Store: n.store, Term: term, Config: cfg, Events: n.event, Tuning: n.tuning,
	})
	require.NoError(n.w.t, err)
	require.NoError(n.w.t, n.store.SetFence(identity.Fence{Config: cfg.Config, Term: term}))
	n.mu.Lock()
	n.primary, n.term, n.config = p, term, cfg.Config
	n.mu.Unlock()
	return p
}

// follow makes the node the standby of active.
func (n *node) follow(active *node) *replication.Follower {
	return n.followVia(n.w.dialer(), active.address)
}

func (n *node) followVia(d replication.Dialer, address string) *replication.Follower {
	f := replication.StartFollower(replication.FollowerOptions{
		Store: n.store, Dialer: d, Address: address, Events: n.event, Tuning: n.tuning,
	})
	n.mu.Lock()
	n.follower = f
	n.mu.Unlock()
	return f
}

func (n *node) stop() {
	n.mu.Lock()
	p, f := n.primary, n.follower
	n.primary, n.follower = nil, nil
	n.mu.Unlock()
	if p != nil {
		p.Stop()
	}
	if f != nil {
		f.Stop()
	}
}

// clearEvents drops all events up to now, also those that are posted but not yet recorded.
func (n *node) clearEvents() {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events = nil
}

// seen returns all events up to now, also those that were posted but not yet recorded.
func (n *node) seen() []replication.Event {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.events)
}

// await waits for and returns the first matching event.
func await[T replication.Event](n *node, fits func(T) bool) T {
	n.w.t.Helper()
	var found T
	timeout := time.NewTimer(waitLimit)
	defer timeout.Stop()
	for {
		n.mu.Lock()
		events, changed := slices.Clone(n.events), n.changed
		n.mu.Unlock()
		for _, e := range events {
			if e, ok := e.(T); ok && (fits == nil || fits(e)) {
				return e
			}
		}
		select {
		case <-changed:
		case <-timeout.C:
			require.Failf(n.w.t, "event not seen", "%s: no %T received", n.name, found)
		}
	}
}

func lost(cause replication.LostCause) func(replication.FollowerLost) bool {
	return func(e replication.FollowerLost) bool { return e.Cause == cause }
}

func lostStandby(cause replication.LostCause) func(replication.StandbyLost) bool {
	return func(e replication.StandbyLost) bool { return e.Cause == cause }
}

// sync adds b, which follows n, to the in-sync set, as package failover does (INV-3).
func (n *node) sync(b *node) {
	await(n, func(e replication.StandbyCaughtUp) bool { return e.Member == b.member() })
	n.configure(func(c *replication.PrimaryConfig) { c.RequireStandby, c.Standby = true, b.member() })
	await(n, func(e replication.StandbySynced) bool { return e.Member == b.member() })
	n.configure(func(*replication.PrimaryConfig) {})
}

// configure changes the active's configuration under a new config number.
func (n *node) configure(change func(*replication.PrimaryConfig)) {
	n.mu.Lock()
	p := n.primary
	n.config++
	config := n.config
	n.mu.Unlock()
	cfg := p.Status().Config
	cfg.Config = config
	change(&cfg)
	p.Configure(cfg)
	require.NoError(n.w.t, n.store.SetFence(identity.Fence{Config: config, Term: n.term}))
}

// payload encodes a transaction that publishes one message.
func payload(queue uint64, producer string, seq uint64, body []byte) []byte {
	var b txn.Builder
	var p *txn.Producer
	if producer != "" {
		p = &txn.Producer{ID: []byte(producer), Epoch: 1, Sequence: seq}
	}
	b.Begin(nil, 1000, p)
	b.BeginPublish(queue)
	b.Message(1000, nil, body)
	b.EndPublish()
	out, err := b.Finish()
	if err != nil {
		panic(err)
	}
	return out
}

// createQueue creates the queue "q" with one subscription.
func (n *node) createQueue() {
	n.w.t.Helper()
	var b txn.Builder
	b.Begin(nil, 1000, nil)
	b.CreateQueue("q", txn.Config{}, "s")
	raw, err := b.Finish()
	require.NoError(n.w.t, err)
	ctx, cancel := context.WithTimeout(n.w.t.Context(), waitLimit)
	defer cancel()
	r, err := n.primary.Commit(ctx, raw)
	require.NoError(n.w.t, err)
	require.NoError(n.w.t, r.Err())
	n.queueID = r.Ops[0].ID
}

// publish commits count messages of size bytes from parallel goroutines.
func (n *node) publish(queue uint64, count, size, parallel int) {
	n.w.t.Helper()
	ctx, cancel := context.WithTimeout(n.w.t.Context(), waitLimit)
	defer cancel()
	errs := make(chan error, parallel)
	for g := range parallel {
		go func() {
			body := make([]byte, max(size, 16))
			for i := g; i < count; i += parallel {
				binary.LittleEndian.PutUint64(body, uint64(i))
				r, err := n.primary.Commit(ctx, payload(queue, "", 0, body))
				if err == nil {
					err = r.Err()
				}
				if err != nil {
					errs <- fmt.Errorf("message %d: %w", i, err)
					return
				}
			}
			errs <- nil
		}()
	}
	for range parallel {
		require.NoError(n.w.t, <-errs)
	}
}

// requireEqual waits until both nodes applied the same log, then compares log and content.
func requireEqual(a, b *node) {
	t := a.w.t
	t.Helper()
	require.Eventually(t, func() bool {
		end := a.store.End()
		return a.store.Applied() == end && b.store.End() == end && b.store.Applied() == end
	}, waitLimit, time.Millisecond, "a end %v applied %v, b end %v applied %v", a.store.End(), a.store.Applied(),
		b.store.End(), b.store.Applied())
	var digests [2]checkpoint.Digest
	for i, n := range []*node{a, b} {
		require.NoError(t, n.store.ReadCheckpoint(t.Context(), store.ReadOptions{},
			func(c *checkpoint.Checkpoint) (err error) {
				digests[i], err = c.Digest(t.Context())
				return err
			}))
	}
	require.Equal(t, digests[0], digests[1])
	for _, n := range []*node{a, b} {
		var report checkpoint.Report
		require.NoError(t, n.store.ReadCheckpoint(t.Context(), store.ReadOptions{},
			func(c *checkpoint.Checkpoint) (err error) {
				report, err = c.Check(t.Context(), nil)
				return err
			}))
		require.Empty(t, report.Problems, n.name)
	}
}

// messages returns the bodies of all unacknowledged messages of the queue's subscription.
func (n *node) messages() (bodies [][]byte) {
	t := n.w.t
	t.Helper()
	q, err := query.QueueByName(n.store, "q")
	if err != nil {
		require.ErrorIs(t, err, store.ErrNoQueue)
		return nil
	}
	from := uint64(1)
	for {
		got, next, err := n.store.Read(t.Context(),
			store.ReadRequest{Queue: q.ID, From: from, MaxMessages: 1000, MaxBytes: 1 << 20}, nil)
		require.NoError(t, err)
		if len(got) == 0 {
			return bodies
		}
		for _, d := range got {
			m, err := txn.DecodeMessage(d.Record)
			require.NoError(t, err)
			bodies = append(bodies, slices.Clone(m.Body))
		}
		from = next
	}
}

// frameAll encodes payloads as frames that follow prev.
func frameAll(prev lsn.Position, term uint64, payloads [][]byte) (frames []byte, end lsn.Position) {
	for _, p := range payloads {
		frames, prev = wal.AppendFrame(frames, prev, term, wal.KindTxn, p)
	}
	return frames, prev
}
