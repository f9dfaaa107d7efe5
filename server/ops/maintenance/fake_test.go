// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

const testTimeout = time.Minute

// pair is a real store with the pair's entries and two simulated nodes. The Manager runs on one node. The operations
// of the other node are functions. After a switchover, the Manager runs on the other node and continues with the
// content of the store.
type pair struct {
	t     *testing.T
	store *store.Store

	mu      sync.Mutex // guards the fields below
	nodes   [2]failover.NodeInfo
	active  int // index in nodes of the node on which the Manager runs, while it serves
	term    uint64
	role    failover.Role
	serving bool
	inSync  bool
	changed chan struct{}
	now     time.Time
	// incarnation and generation are those of the node that is not active.
	incarnation uint64
	generation  uuid.UUID

	rewrite   func(ctx context.Context, req RewriteRequest) (RewriteResult, error)
	scan      func(ctx context.Context) (checkpoint.ScanResult, error)
	restart   func() (done bool, err error)
	handovers int
}

func newPair(t *testing.T) *pair {
	t.Helper()
	return newPairOn(t, memfs.New())
}

// newPairOn is like newPair, with the store on fs.
func newPairOn(t *testing.T, fs vfs.FS) *pair {
	t.Helper()
	s, err := store.Open(store.Options{
		FS: fs, Dir: "/data", SegmentBytes: 256 << 10, MaxFrameBytes: 1 << 20,
		BootID: "boot",
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	p := &pair{
		t: t, store: s, term: 1, role: failover.RoleActive, serving: true, inSync: true, changed: make(chan struct{}),
		now: time.Date(2026, 3, 1, 1, 0, 0, 0, time.UTC),
	}
	for i := range p.nodes {
		p.nodes[i] = failover.NodeInfo{ID: uuid.New(), Name: string(rune('a' + i)), Address: "host:1"}
	}
	p.rewrite = func(context.Context, RewriteRequest) (RewriteResult, error) {
		return RewriteResult{PageSizeAfter: 8192}, nil
	}
	p.scan = func(context.Context) (checkpoint.ScanResult, error) { return checkpoint.ScanResult{}, nil }
	return p
}

// manager creates the Manager and runs it until the test ends.
func (p *pair) manager() *Manager {
	p.t.Helper()
	m, err := New(Options{
		Store: p.store, Node: p, Peers: p, FS: memfs.New(), DataDir: "/", Retry: time.Millisecond,
		Tick: time.Millisecond, Now: p.clock,
		Defaults: Defaults{PageSizeMax: 32768, BackupKeep: 3},
	})
	require.NoError(p.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Run(ctx)
	}()
	p.t.Cleanup(func() {
		cancel()
		<-done
	})
	return m
}

// set changes the state of the nodes.
func (p *pair) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *pair) clock() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

func (p *pair) pass(d time.Duration) { p.set(func() { p.now = p.now.Add(d) }) }

func (p *pair) Pair() failover.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	self, other := p.nodes[p.active], p.nodes[1-p.active]
	r := &failover.Record{Active: self.ID, Term: p.term, Nodes: p.nodes[:], InSync: []failover.Member{{Node: self.ID}}}
	if p.inSync {
		r.InSync = append(r.InSync, failover.Member{
			Node: other.ID, Incarnation: p.incarnation, Generation: p.generation,
		})
	}
	return failover.Status{Role: p.role, Self: self, Record: r}
}

// follows makes the node of m the standby.
func (p *pair) follows(m *Manager) {
	p.set(func() { p.role, p.serving = failover.RoleStandby, false })
	m.Following()
}

func (p *pair) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

func (p *pair) Alone() bool { return false }

func (p *pair) Serving() (uint64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.term, p.serving
}

func (p *pair) Commit(_ context.Context, payload []byte) (*txn.Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.serving {
		return nil, replication.ErrNotActive
	}
	frames, end := wal.AppendFrame(nil, p.store.End(), p.term, wal.KindTxn, payload)
	if err := errors.Join(p.store.Append(frames, end), p.store.Sync()); err != nil {
		return nil, err
	}
	var result txn.Result
	err := p.store.Apply(end.LSN, func(_ uint64, r *txn.Result) { result = *r })
	return &result, err
}

func (p *pair) Standby() (Standby, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	applied := p.store.Applied().LSN
	return Standby{Node: p.nodes[1-p.active].ID, Required: true, AppliedLSN: applied, CommitLSN: applied}, p.inSync
}

// HandOver moves the Manager to the other node.
func (p *pair) HandOver(context.Context) error {
	p.set(func() {
		p.active = 1 - p.active
		p.term++
		p.handovers++
	})
	return nil
}

func (p *pair) At(string) Operations { return p }

func (p *pair) Activity(context.Context, string) (*Activity, error) { return nil, nil } // no operation is in progress

func (p *pair) Report(context.Context, string, Report) error { return nil }

func (p *pair) Scan(ctx context.Context, _ int, _ func(checkpoint.Progress)) (checkpoint.ScanResult, error) {
	return p.scan(ctx)
}

func (p *pair) Rewrite(
	ctx context.Context, req RewriteRequest, progress func(checkpoint.Progress),
) (RewriteResult, error) {
	progress(checkpoint.Progress{Phase: "copy", Bytes: 1, TotalBytes: 2})
	return p.rewrite(ctx, req)
}

func (p *pair) Shrink(context.Context, bool) (ShrinkResult, error) { return ShrinkResult{}, nil }

func (p *pair) Backup(context.Context, BackupRequest, func(checkpoint.Progress)) (backup.Set, error) {
	return backup.Set{Path: "/backups/one"}, nil
}

func (p *pair) Checkpoint(context.Context) error { return nil }

func (p *pair) Restart(context.Context, string) (bool, error) { return p.restart() }

func (p *pair) Digest(ctx context.Context, at uint64) (checkpoint.Digest, error) {
	return digestAt(ctx, p.store, store.ReadOptions{At: at, MaxWait: time.Second})
}

// planIs waits until the plan has the given state, and returns the plan.
func (p *pair) planIs(m *Manager, state PlanState) *Plan {
	p.t.Helper()
	var plan *Plan
	require.Eventually(p.t, func() bool {
		var err error
		plan, err = m.Plan()
		require.NoError(p.t, err)
		return plan != nil && plan.State == state
	}, testTimeout, time.Millisecond)
	return plan
}
