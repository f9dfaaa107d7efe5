// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/rewrite"
)

const (
	retryFactor = 30
	// maxFailures is the number of consecutive failures at which a non-transient error fails the plan.
	maxFailures = 10
	// standbyPoll is the interval at which the active checks the progress of its standby.
	standbyPoll = 20 * time.Millisecond
	// catchUpLimit limits the wait for a standby to apply the backlog of its rewrite. After that time, the step is
	// retried.
	catchUpLimit  = 10 * time.Second
	handOverLimit = 10 * time.Second
)

// drive executes the plan while this node is active. The next step depends only on the stored plan and on the roles
// and stores of the nodes.
func (m *Manager) drive(ctx context.Context) {
	entries, unwatch := query.WatchMeta(m.store)
	defer unwatch()
	failures := 0
	for {
		changed := m.node.Changed()
		wait := time.Duration(0)
		p, ok := m.planToDrive()
		if ok {
			wait, failures = m.attempt(ctx, p, failures)
		} else {
			failures = 0
		}
		if wait < 0 { // the next step can run immediately
			if ctx.Err() != nil {
				return
			}
			continue
		}
		if failures > 0 {
			if !m.waitForRetry(ctx, changed, entries, p.ID, wait) {
				return
			}
		} else if !m.wait(ctx, changed, entries, wait) {
			return
		}
	}
}

// waitForRetry waits for delay after a failed step of plan id. It returns earlier if the failover status changes, or
// if the plan ends or is replaced. It ignores other changes of internal entries. It returns false if ctx has ended.
func (m *Manager) waitForRetry(
	ctx context.Context, changed, entries <-chan struct{}, id string, delay time.Duration,
) bool {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	for {
		select {
		case <-entries:
			if p, ok := m.planToDrive(); ok && p.ID == id {
				continue
			}
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
		}
		return ctx.Err() == nil
	}
}

func (m *Manager) planToDrive() (*Plan, bool) {
	if _, ok := m.node.Serving(); !ok {
		return nil, false
	}
	p, ok, err := read[Plan](m, keyPlan)
	if err != nil {
		m.log.Error("plan cannot be read", zap.Error(err))
		return nil, false
	}
	return &p, ok && !p.State.Ended()
}

func (m *Manager) pair() uuid.UUID {
	if r := m.node.Pair().Record; r != nil && !m.node.Alone() {
		return r.PairID
	}
	return uuid.Nil
}

// foreign reports whether the plan was restored from a backup of another pair, or this node is standalone.
func (m *Manager) foreign(p *Plan) bool {
	return m.node.Alone() || m.node.Pair().Record != nil && p.Pair != m.pair()
}

// attempt executes the next step. It returns the delay until the next step (negative: no delay; 0: wait for a change)
// and the number of consecutive failures. It stores a failure in the plan, or ends the plan as failed.
func (m *Manager) attempt(ctx context.Context, p *Plan, failures int) (wait time.Duration, failed int) {
	stepCtx, stop := m.servingContext(ctx, func() error {
		if now, ok := m.planToDrive(); !ok || now.ID != p.ID {
			return errPlanEnded
		}
		return nil
	})
	defer stop()
	wait, err := m.step(stepCtx, p)
	m.progress.Store(nil)
	if err == nil {
		return wait, 0
	}
	err = cause(stepCtx, err)
	if errors.Is(err, errPlanEnded) || errors.Is(err, errLeft) || ctx.Err() != nil {
		return 0, 0
	}
	failures++
	m.log.Warn("plan step failed", zap.String("plan", p.ID), zap.Int("failures", failures), zap.Error(err))
	// Use ctx: the failure must be stored even if stepCtx has ended.
	if final(err) || failures >= maxFailures && !passes(err) {
		if err = m.advance(ctx, p.ID, func(p *Plan) error {
			p.end(PlanFailed, fmt.Sprintf("while %s: %v", p.State, err), m.o.Now())
			return nil
		}); err == nil {
			return 0, 0 // the next plan starts with no failures
		}
	} else {
		err = m.advance(ctx, p.ID, func(p *Plan) error {
			p.Retries++
			p.Reason = "will be retried: " + err.Error()
			return nil
		})
	}
	if err != nil {
		m.log.Warn("plan not stored", zap.Error(err))
	}
	return m.o.Retry * time.Duration(min(1<<min(failures-1, 10), retryFactor)), failures
}

func final(err error) bool {
	return errors.Is(err, rewrite.ErrNoSpace) || errors.Is(err, index.ErrDataLoss) || errors.Is(err, page.ErrCorrupt) ||
		errors.Is(err, ErrSetting)
}

// passes reports whether an error is transient.
func passes(err error) bool {
	return slices.ContainsFunc([]error{
		ErrBusy, ErrRole, ErrRoleChanged, ErrUnreachable, rewrite.ErrMaintenance, rewrite.ErrCanceled, store.ErrClosed,
		failover.ErrSwitchover, failover.ErrStopped, replication.ErrNotActive, replication.ErrBlocked,
		replication.ErrOutcomeUnknown, context.Canceled, context.DeadlineExceeded,
	}, func(e error) bool { return errors.Is(err, e) })
}

func (m *Manager) step(ctx context.Context, p *Plan) (wait time.Duration, err error) {
	if m.foreign(p) {
		return 0, m.advance(ctx, p.ID, func(p *Plan) error {
			p.end(PlanCancelled, "started on another pair: this store was restored from its backup", m.o.Now())
			return nil
		})
	}
	self, member := m.members()   // read first: if that store is replaced later, the step is repeated
	if p.outdated(self, member) { // a node has installed a snapshot of a node that was not done
		return -1, m.advance(ctx, p.ID, func(p *Plan) error {
			p.removeOutdated(self, member)
			return nil
		})
	}
	// The other node need not be connected. When it reconnects, its store is unchanged, or a snapshot of this node
	// has replaced it. In both cases, that node is done.
	if p.has(self) && len(p.Done) >= pairSize && (!p.SwitchBack || p.FirstActive == self.Node) {
		return 0, m.finish(ctx, p)
	}
	other, reason := m.partner()
	if reason == "" && member.Node != other.ID {
		return standbyPoll, nil // the standby has just connected
	}
	if reason != "" {
		return standbyPoll * 5, m.enter(ctx, p.ID, PlanWaiting, uuid.Nil, reason)
	}
	switch {
	case !p.has(member) && p.Kind == PlanRestart:
		return m.restartOn(ctx, p, member, other)
	case !p.has(member):
		return -1, m.rewriteOn(ctx, p, member, other)
	case p.has(self) && (!p.SwitchBack || p.FirstActive != other.ID): // after both nodes were done
		return 0, m.finish(ctx, p)
	}
	if err := m.catchUp(ctx, p, other); err != nil {
		return 0, err
	}
	return standbyPoll * 5, m.switchTo(ctx, p, other)
}

func (m *Manager) finish(ctx context.Context, p *Plan) error {
	return m.advance(ctx, p.ID, func(p *Plan) error {
		p.end(PlanDone, "both nodes are done", m.o.Now())
		return nil
	})
}

func (m *Manager) members() (self, other failover.Member) {
	st := m.node.Pair()
	if st.Record == nil {
		return self, other
	}
	other, _ = st.Record.Other(st.Self.ID)
	if i := slices.IndexFunc(st.Record.InSync, func(m failover.Member) bool { return m.Node == st.Self.ID }); i >= 0 {
		self = st.Record.InSync[i]
	}
	return self, other
}

func (m *Manager) partner() (other failover.NodeInfo, reason string) {
	st := m.node.Pair()
	standby, connected := m.node.Standby()
	if st.Record == nil {
		return other, "waits for the coordinator"
	}
	member, inSync := st.Record.Other(st.Self.ID)
	switch {
	case !inSync:
		return other, "waits for a standby in sync"
	case !connected || standby.Node != member.Node || !standby.Required:
		return other, "waits for the standby to connect"
	}
	info, ok := st.Node(member.Node)
	if !ok || info.Address == "" {
		return other, "waits for the address of the standby"
	}
	return info, ""
}

// rewriteOn requests a rewrite of the other node's page file, and waits for its end. Repeated requests for the same
// plan are idempotent.
func (m *Manager) rewriteOn(ctx context.Context, p *Plan, member failover.Member, other failover.NodeInfo) error {
	if err := m.enter(ctx, p.ID, PlanRewriting, other.ID, "node "+name(other)+" rewrites its page file"); err != nil {
		return err
	}
	r, err := m.o.Peers.At(other.Address).Rewrite(ctx, RewriteRequest{PageSize: p.PageSize, PlanID: p.ID},
		func(now checkpoint.Progress) { m.progress.Store(&now) })
	if err != nil {
		return fmt.Errorf("rewrite on node %s: %w", name(other), err)
	}
	m.log.Info("other node has rewritten its page file", zap.String("plan", p.ID), zap.String("node", name(other)),
		zap.Int("page_size", r.PageSizeAfter), zap.Uint64("bytes_before", r.FileBytesBefore),
		zap.Uint64("bytes", r.FileBytesAfter),
		zap.Duration("took", r.Duration))
	return m.advance(ctx, p.ID, func(p *Plan) error {
		p.storeDone(member)
		p.State, p.Node, p.Reason = PlanCatchingUp, other.ID, "node "+name(other)+" is catching up"
		return nil
	})
}

// catchUp waits until the standby has applied all transactions committed before the call. After catchUpLimit, or if
// the standby disconnects, it returns ErrUnreachable.
func (m *Manager) catchUp(ctx context.Context, p *Plan, other failover.NodeInfo) error {
	s, ok := m.node.Standby()
	if !ok {
		return fmt.Errorf("%w: node %s is not connected", ErrUnreachable, name(other))
	}
	goal := s.CommitLSN
	limit := time.NewTimer(catchUpLimit)
	defer limit.Stop()
	tick := time.NewTicker(standbyPoll)
	defer tick.Stop()
	for s.AppliedLSN < goal {
		if err := m.enter(ctx, p.ID, PlanCatchingUp, other.ID,
			"node "+name(other)+" is catching up"); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limit.C:
			return fmt.Errorf("%w: node %s has applied %d of %d records", ErrUnreachable, name(other), s.AppliedLSN,
				goal)
		case <-tick.C:
		}
		if s, ok = m.node.Standby(); !ok {
			return fmt.Errorf("%w: node %s is not connected", ErrUnreachable, name(other))
		}
	}
	return nil
}

// switchTo switches over to the other node.
func (m *Manager) switchTo(ctx context.Context, p *Plan, other failover.NodeInfo) error {
	if err := m.enter(ctx, p.ID, PlanSwitching, other.ID, "switching over to node "+name(other)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, handOverLimit)
	defer cancel()
	if err := m.node.HandOver(ctx); err != nil {
		if _, serving := m.node.Serving(); !serving {
			return nil // the switchover succeeded or the role was lost; the new active continues the plan
		}
		return fmt.Errorf("hand over to node %s: %w", name(other), err)
	}
	return nil
}

func name(n failover.NodeInfo) string {
	if n.Name != "" {
		return n.Name
	}
	return n.ID.String()
}
