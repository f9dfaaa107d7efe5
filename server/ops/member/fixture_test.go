// SPDX-License-Identifier: Apache-2.0

package member

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd/embedded"
	"github.com/lockstep-mq/lockstep/fleet"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/coordtest"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// bound limits all waits.
const bound = 2 * time.Minute

var errInactive = errors.New("the test's node is not active")

// server is an embedded etcd that can be restarted on the same port.
type server struct {
	dir  string
	etcd *embedded.Server
}

func startEtcd(t *testing.T) *server {
	t.Helper()
	s := &server{dir: t.TempDir()}
	s.etcd = coordtest.StartEtcd(t, s.dir, "")
	t.Cleanup(func() { require.NoError(t, s.etcd.Close()) })
	return s
}

// outage stops etcd, calls during, and starts it again with the same data.
func (s *server) outage(t *testing.T, during func()) {
	t.Helper()
	address := s.etcd.Address()
	require.NoError(t, s.etcd.Close())
	during()
	s.etcd = coordtest.StartEtcd(t, s.dir, address)
}

func (s *server) client(t *testing.T) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: s.etcd.Endpoints(), Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// pair is a pair with one node and its Manager.
type pair struct {
	t       *testing.T
	fs      *memfs.FS
	client  *clientv3.Client
	name    string
	suffix  atomic.Value // of the addresses: a string
	id      uuid.UUID
	store   *store.Store
	term    uint64
	primary *replication.Primary
	m       *Manager
	stopRun func()
}

// newPair starts a pair. It does not wait until the pair has joined.
func newPair(t *testing.T, s *server, name string) *pair {
	t.Helper()
	p := &pair{t: t, fs: memfs.New(), client: s.client(t), name: name, id: uuid.New()}
	p.start()
	t.Cleanup(func() { p.stop() })
	return p
}

// newMember starts a pair, and waits until it has joined and published its load.
func newMember(t *testing.T, s *server, name string) *pair {
	t.Helper()
	p := newPair(t, s, name)
	p.awaitJoined()
	return p
}

func (p *pair) start() {
	p.t.Helper()
	s, err := store.Open(store.Options{FS: p.fs, Dir: "/data", MemoryBudget: store.MinMemoryBudget})
	require.NoError(p.t, err)
	require.NoError(p.t, s.JoinPair(p.id))
	p.store = s
	name := p.name
	p.m, err = New(Options{
		Pair: p.name, Client: p.client, Prefix: "/test", Store: s, Logger: zap.NewNop(),
		Addresses: func() []string {
			suffix, _ := p.suffix.Load().(string)
			return []string{name + "2:1" + suffix, name + "1:1" + suffix}
		},
		Load:     func() fleet.Load { return fleet.Load{FreeBytes: 1 << 30} },
		Capacity: func() uint64 { return 1 << 40 }, Supported: func() error { return nil },
		NotActive: func() error { return errInactive }, requestTimeout: time.Minute, loadTTL: time.Hour,
		reconcileInterval: time.Hour, checkInterval: 20 * time.Millisecond,
	})
	require.NoError(p.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { p.m.Run(ctx) })
	p.stopRun = func() {
		cancel()
		running.Wait()
	}
	p.activate()
}

// activate starts a new term.
func (p *pair) activate() {
	p.t.Helper()
	p.term++
	ready := make(chan struct{})
	primary, err := replication.StartPrimary(replication.PrimaryOptions{
		Store: p.store, Term: p.term, Config: replication.PrimaryConfig{Config: p.term, Serve: true},
		Events: func(e replication.Event) {
			if _, is := e.(replication.ActiveReady); is {
				close(ready)
			}
		},
	})
	require.NoError(p.t, err)
	<-ready
	p.primary = primary
	p.m.Activate(primary)
}

func (p *pair) deactivate() {
	p.m.Deactivate()
	p.primary.Stop()
}

func (p *pair) stop() {
	p.t.Helper()
	p.deactivate()
	p.stopRun()
	require.NoError(p.t, p.store.Close())
}

// restart simulates a new process on the same disk.
func (p *pair) restart() {
	p.t.Helper()
	p.stop()
	p.start()
}

func (p *pair) await(what string, fulfilled func() bool) {
	p.t.Helper()
	require.Eventually(p.t, fulfilled, bound, 5*time.Millisecond, "pair %s: %s", p.name, what)
}

func (p *pair) awaitStatus(what string, fulfilled func(s *Status, problems Problems) bool) {
	p.t.Helper()
	p.await(what, func() bool {
		s := p.m.Status()
		return fulfilled(&s, s.Problems())
	})
}

// awaitJoined waits until the pair is a member, has no problems, and can have new queues.
func (p *pair) awaitJoined() {
	p.t.Helper()
	p.awaitStatus("joined", func(s *Status, problems Problems) bool {
		if !s.Log.Member() || s.Err != nil || problems != (Problems{}) {
			return false
		}
		for _, other := range p.m.Directory().Pairs() {
			if other.Name == p.name {
				return other.Live
			}
		}
		return false
	})
}

// commit returns a function that commits the creation of a queue through the current primary.
func (p *pair) commit(name string) func(epoch uint64) error { return p.commitFor(p.primary, name) }

func (p *pair) commitFor(primary *replication.Primary, name string) func(epoch uint64) error {
	return func(epoch uint64) error {
		return p.commitVia(primary, func(b *txn.Builder) {
			if epoch > 0 {
				b.OwnQueue(name, epoch)
			}
			b.CreateQueue(name, txn.Config{}, "a")
		})
	}
}

func (p *pair) commitVia(primary *replication.Primary, fill func(*txn.Builder)) error {
	payload, err := txn.Build(time.Now(), fill)
	if err != nil {
		return err
	}
	r, err := primary.Commit(context.Background(), payload)
	if err != nil {
		return err
	}
	return r.Err()
}

func (p *pair) create(name string) error {
	return p.m.Create(p.t.Context(), p.primary, name, "", p.commit(name))
}

// remove deletes a queue.
func (p *pair) remove(name string) {
	p.t.Helper()
	info, err := query.QueueByName(p.store, name)
	require.NoError(p.t, err)
	require.NoError(p.t, p.commitVia(p.primary, func(b *txn.Builder) { b.DeleteQueue(info.ID, false) }))
	p.m.Deleted(name, info.Epoch)
}

// place makes new queues with a name of the pattern belong to a pair.
func (p *pair) place(pattern, pair string) {
	p.t.Helper()
	require.NoError(p.t, p.m.Directory().PutRule(p.t.Context(), fleet.Rule{Pattern: pattern, Pair: pair}))
}

// entry returns the epoch of the entry of a queue if it is assigned to this pair; 0 otherwise.
func (p *pair) entry(name string) uint64 {
	owner, found, err := p.m.Directory().Owner(name)
	require.NoError(p.t, err)
	if !found || owner.Pair != p.name {
		return 0
	}
	return owner.Epoch
}

// check waits until the directory contains exactly the queues of the pair, with their epochs.
func (p *pair) check() {
	p.t.Helper()
	p.await("the directory equals the log", func() bool {
		signal(p.m.due)
		own := map[string]uint64{}
		query.OwnedQueues(p.store, func(q query.OwnedQueue) { own[q.Name] = q.Epoch })
		for _, q := range p.m.Directory().Queues("", 1<<20) {
			if q.Pair != p.name {
				continue
			}
			if own[q.Queue] != q.Epoch {
				return false
			}
			delete(own, q.Queue)
		}
		return len(own) == 0
	})
}
