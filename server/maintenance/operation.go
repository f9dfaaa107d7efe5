// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
)

// operation is what runs on this node.
type operation struct {
	kind   string
	planID string
	since  time.Time
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when nothing of it is left

	tell func(checkpoint.Progress) // may be nil

	mu  sync.Mutex // guards now
	now checkpoint.Progress
}

// The kinds of operations.
const (
	opScan    = "scan"
	opRewrite = "rewrite"
	opShrink  = "shrink"
	opBackup  = "backup"
	opDropOld = "drop-old"
	opVerify  = "verify-backup"
)

// begin registers an operation, or says why it cannot be now. The context ends with ctx and with GiveWay; end must be
// called.
func (m *Manager) begin(
	ctx context.Context, kind, planID string, tell func(checkpoint.Progress),
) (context.Context, *operation, error) {
	role := m.node.Pair().Role
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running != nil {
		return nil, nil, &BusyError{Activity: m.running.activity()}
	}
	if kind == opRewrite && !m.starting && !(m.following && follows(role)) {
		return nil, nil, m.refuseRewrite(role)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	op := &operation{
		kind: kind, planID: planID, since: time.Now(), cancel: cancel, done: make(chan struct{}),
		tell: tell,
	}
	m.running = op
	return ctx, op, nil
}

// follows tells whether a node in this role has no client waiting for what it applies.
func follows(r failover.Role) bool {
	return r == failover.RoleStandby || r == failover.RoleSyncing || r == failover.RoleCatchingUp
}

func (m *Manager) refuseRewrite(role failover.Role) error {
	if m.node.Alone() {
		return fmt.Errorf("%w: this node runs alone and serves; set resize-on-startup or compact-on-startup and "+
			"start it again", ErrRole)
	}
	return fmt.Errorf("%w: only a standby rewrites its page file, and this node is %s; use a rolling plan, or ask "+
		"the other node", ErrRole, role)
}

// end is called when nothing of the operation is left.
func (m *Manager) end(op *operation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	op.cancel(nil)
	m.running = nil
	close(op.done)
}

// report notes progress and passes it on. It may be called from any goroutine, also after end.
func (op *operation) report(p checkpoint.Progress) {
	op.mu.Lock()
	op.now = p
	op.mu.Unlock()
	if op.tell != nil {
		op.tell(p)
	}
}

func (op *operation) activity() Activity {
	op.mu.Lock()
	defer op.mu.Unlock()
	return Activity{Operation: op.kind, Since: op.since, Progress: op.now, PlanID: op.planID}
}

// Activity tells what runs on this node; ok is false when nothing does.
func (m *Manager) Activity() (a Activity, ok bool) {
	m.mu.Lock()
	op := m.running
	m.mu.Unlock()
	if op == nil {
		return Activity{}, false
	}
	return op.activity(), true
}

// Following tells that the node follows an active from now on, until GiveWay: it may rewrite.
func (m *Manager) Following() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.following = true
}

// holding gives a context that GiveWay ends, for what makes the store apply nothing for a moment.
func (m *Manager) holding(ctx context.Context) (_ context.Context, forget func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holds++
	id := m.holds
	m.held[id] = cancel
	return ctx, func() {
		cancel(nil)
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.held, id)
	}
}

// giveWayLimit is when a rewrite that does not give way is told of. Past its last point of return it needs a few
// renames.
const giveWayLimit = time.Second

// GiveWay drops a rewrite that is under way and lets none begin until Following is called. It returns when the store
// applies again: after milliseconds, or, if the new file is being put in place, after that.
func (m *Manager) GiveWay() {
	m.mu.Lock()
	m.following, m.starting = false, false
	op := m.running
	for _, cancel := range m.held {
		cancel(ErrGaveWay)
	}
	m.mu.Unlock()
	if op == nil || op.kind != opRewrite {
		return
	}
	began := time.Now()
	op.cancel(ErrGaveWay)
	timer := time.NewTimer(giveWayLimit)
	defer timer.Stop()
	select {
	case <-op.done:
	case <-timer.C:
		m.log.Warn("the rewrite of page.db takes long to give way to a change of this node's role",
			zap.Stringer("rewrite", op.activity()))
		<-op.done
	}
	m.log.Warn("the rewrite of page.db gave way to a change of this node's role",
		zap.Duration("waited", time.Since(began)))
}
