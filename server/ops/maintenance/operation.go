// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
)

type operation struct {
	kind   string
	planID string
	since  time.Time
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when the operation has ended
	err    error         // of a rewrite; final when done is closed

	onProgress func(checkpoint.Progress) // may be nil

	mu  sync.Mutex // guards now
	now checkpoint.Progress
}

const (
	opScan    = "scan"
	opRewrite = "rewrite"
	opShrink  = "shrink"
	opBackup  = "backup"
	opDropOld = "drop-old"
	opVerify  = "verify-backup"
)

// begin registers an operation. It returns a *BusyError while another operation runs, and ErrRole for a rewrite that
// the role does not permit. The returned context ends when ctx ends. The context of a rewrite also ends when
// CancelRewrite is called. Unless begin returns an error, the caller must call end.
func (m *Manager) begin(
	ctx context.Context, kind, planID string, report func(checkpoint.Progress),
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
		onProgress: report,
	}
	m.running = op
	return ctx, op, nil
}

// follows reports whether a node in this role follows an active.
func follows(r failover.Role) bool {
	return r == failover.RoleStandby || r == failover.RoleSyncing || r == failover.RoleCatchingUp
}

func (m *Manager) refuseRewrite(role failover.Role) error {
	if m.node.Alone() {
		return fmt.Errorf("%w: standalone node is serving; set resize-on-startup or compact-on-startup and "+
			"restart it", ErrRole)
	}
	return fmt.Errorf("%w: only a standby rewrites its page file, this node is %s; use a rolling plan, or call "+
		"the other node", ErrRole, role)
}

func (m *Manager) end(op *operation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	op.cancel(nil)
	m.running = nil
	close(op.done)
}

// report records the progress and forwards it to onProgress. It is safe for concurrent use, even after end.
func (op *operation) report(p checkpoint.Progress) {
	op.mu.Lock()
	op.now = p
	op.mu.Unlock()
	if op.onProgress != nil {
		op.onProgress(p)
	}
}

func (op *operation) activity() Activity {
	op.mu.Lock()
	defer op.mu.Unlock()
	return Activity{Operation: op.kind, Since: op.since, Progress: op.now, PlanID: op.planID}
}

// Activity returns the operation that runs on this node, if any.
func (m *Manager) Activity() (a Activity, ok bool) {
	m.mu.Lock()
	op := m.running
	m.mu.Unlock()
	if op == nil {
		return Activity{}, false
	}
	return op.activity(), true
}

// Following records that this node follows an active. It permits rewrites until CancelRewrite is called.
func (m *Manager) Following() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.following = true
}

// holding returns a context that CancelRewrite cancels. It is intended for short operations during which the
// store applies nothing. The caller must call forget.
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

// cancelRewriteTimeout is the delay after which a slow cancellation is logged.
const cancelRewriteTimeout = time.Second

// CancelRewrite cancels a running rewrite and the contexts of holding, and prevents new rewrites until Following is
// called. It returns when the rewrite has ended and the store can apply transactions again. If the installation of
// the new file has already begun, that rewrite is completed instead of canceled.
func (m *Manager) CancelRewrite() {
	m.mu.Lock()
	m.following, m.starting = false, false
	op := m.running
	for _, cancel := range m.held {
		cancel(ErrRoleChanged)
	}
	m.mu.Unlock()
	if op == nil || op.kind != opRewrite {
		return
	}
	start := time.Now()
	op.cancel(ErrRoleChanged)
	timer := time.NewTimer(cancelRewriteTimeout)
	defer timer.Stop()
	select {
	case <-op.done:
	case <-timer.C:
		m.log.Warn("rewrite of page.db is slow to cancel for a role change",
			zap.Stringer("rewrite", op.activity()))
		<-op.done
	}
	if !errors.Is(op.err, ErrRoleChanged) {
		return // the rewrite ended before it was canceled, or could no longer be canceled
	}
	m.log.Warn("rewrite of page.db canceled for a role change",
		zap.Duration("waited", time.Since(start)))
}
