// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
)

const restartPoll = 100 * time.Millisecond

const restartCheckLimit = 30 * time.Second

// checkRestart returns ErrSetting if a restarted process would fail to start.
func (m *Manager) checkRestart(ctx context.Context) error {
	if m.o.CheckRestart == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, restartCheckLimit)
	defer cancel()
	if err := m.o.CheckRestart(ctx); err != nil {
		return fmt.Errorf("%w: node %s could not start with its configuration, restart refused: %w", ErrSetting,
			name(m.node.Pair().Self), err)
	}
	return nil
}

// Restart restarts this node as a step of a plan. The restarted process returns true. Earlier processes request the
// restart again at each call, and return false. A process that has just become a standby may return false without a
// restart.
//
// Restart returns ErrRole if the node does not follow an active or cannot restart itself, and ErrBusy while an
// operation runs. It returns ErrSetting if planID is empty or a restarted process would fail to start.
func (m *Manager) Restart(ctx context.Context, planID string) (done bool, err error) {
	if planID == "" {
		return false, fmt.Errorf("restart: %w: missing plan ID", ErrSetting)
	}
	before, now := m.local.restarted(planID, m.process)
	if before {
		return true, nil
	}
	role := m.node.Pair().Role
	m.mu.Lock()
	following, running := m.following, m.running
	m.mu.Unlock()
	switch {
	case !follows(role):
		return false, fmt.Errorf("restart: %w: only a standby restarts for a plan, this node is %s", ErrRole, role)
	case !following:
		return false, nil // this node has just become a standby; the caller retries
	case running != nil:
		return false, &BusyError{Activity: running.activity()}
	}
	if err := m.checkRestart(ctx); err != nil {
		return false, fmt.Errorf("restart: %w", err)
	}
	if !now {
		// Record the request first: the next process must detect that it is the restarted one.
		step := doneStep{ID: planID, At: m.o.Now(), Incarnation: m.store.Identity().Incarnation, Process: m.process}
		if err := m.local.recordStep(step); err != nil {
			return false, err
		}
	}
	if m.o.Restart == nil { // the request is recorded before, because a manual restart also counts
		return false, fmt.Errorf("restart: %w: this node cannot restart itself; restart its process manually, then the "+
			"plan continues", ErrRole)
	}
	m.log.Info("restarting for a plan", zap.String("plan", planID))
	m.o.Restart()
	return false, nil
}

// restartOn requests a restart of the other node. The step is repeated until that node confirms the restart. The
// plan then waits until that node is in sync again.
func (m *Manager) restartOn(
	ctx context.Context, p *Plan, member failover.Member, other failover.NodeInfo,
) (time.Duration, error) {
	asked := p.State == PlanRestarting && p.Node == other.ID
	if !asked {
		if err := m.enter(ctx, p.ID, PlanRestarting, other.ID, "node "+name(other)+" restarts"); err != nil {
			return 0, err
		}
	}
	done, err := m.o.Peers.At(other.Address).Restart(ctx, p.ID)
	if asked && errors.Is(err, ErrUnreachable) { // expected during the restart, so not counted as a retry
		return restartPoll, m.enter(ctx, p.ID, PlanRestarting, other.ID,
			"node "+name(other)+" is restarting")
	}
	if err != nil {
		return 0, fmt.Errorf("restart of node %s: %w", name(other), err)
	}
	if !done {
		return restartPoll, nil
	}
	m.log.Info("other node has restarted", zap.String("plan", p.ID), zap.String("node", name(other)))
	return -1, m.advance(ctx, p.ID, func(p *Plan) error {
		p.storeDone(member)
		p.State, p.Node, p.Reason = PlanWaiting, uuid.Nil, "node "+name(other)+" has restarted"
		return nil
	})
}
