// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
)

const (
	successorLimit = time.Second
	successorPoll  = 2 * time.Millisecond
	// successorGrace is how long this node remains a standby after the new active has begun to serve.
	successorGrace = 50 * time.Millisecond
	drainLimit     = 500 * time.Millisecond
)

// handOverBeforeStop switches over to an in-sync standby before the node stops, unless shutdown.handover is off or
// the pair is paused. If the switchover fails, the node stops anyway. If the store fails in the meantime,
// handOverBeforeStop returns that error.
func (n *node) handOverBeforeStop(ctx context.Context) error {
	st := n.runner.Status()
	if !n.cfg.Shutdown.Handover || n.alone() || st.Role != failover.RoleActive {
		return nil
	}
	other, ok := st.Record.Other(st.Self.ID)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.Shutdown.HandoverTimeout.Std())
	defer cancel()
	start := time.Now()
	found, err := n.runner.Find(ctx) // the pair may have been paused in the meantime
	if err == nil && found.Record.Paused != nil {
		n.log.Info("active node stops without handover: the pair is paused; this node keeps the active role")
		return nil
	}
	result, err := n.switchover(ctx, other.Node)
	if err != nil {
		n.log.Warn("active node stops without handover: switchover failed",
			zap.Duration("after", time.Since(start)), zap.Error(err))
	} else {
		n.waitForSuccessor(ctx, result.Active.Address)
		n.log.Info("handed over before stop", zap.String("active", result.Active.Name),
			zap.Duration("pause", result.Pause))
	}
	select {
	case err := <-n.fatal:
		return err
	default:
		return nil
	}
}

// drainWithoutSuccessor drains a stopping active that has no successor. It holds new transactions until the node
// stops, and waits up to drainLimit for the outcome of the transactions already accepted. If the node stops because
// of a failure, it does nothing.
func (n *node) drainWithoutSuccessor(ctx context.Context, failure error) {
	primary, err := n.plane.active()
	if err != nil || failure != nil && !errors.Is(failure, ErrRestart) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, drainLimit)
	defer cancel()
	primary.Settle(ctx)
}

// waitForSuccessor waits until the new active serves with this node as its standby. It stops waiting if the new
// active does not respond or serves alone, and after successorLimit.
func (n *node) waitForSuccessor(ctx context.Context, address string) {
	ctx, cancel := context.WithTimeout(ctx, successorLimit)
	defer cancel()
	ticker := time.NewTicker(successorPoll)
	defer ticker.Stop()
	for {
		st, err := n.peers.Status(ctx, address)
		if err != nil || st.GetRole() == pb.Role_ROLE_ACTIVE_ALONE {
			return
		}
		if st.GetRole() == pb.Role_ROLE_ACTIVE {
			ticker.Reset(successorGrace)
			<-ticker.C
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

const failbackCheck = time.Second

// discardedRange returns the range of the other node's log that a forced failover has discarded.
func discardedRange(f *failover.Forced) replication.DiscardedRange {
	if f == nil {
		return replication.DiscardedRange{}
	}
	return replication.DiscardedRange{Term: f.Term, After: f.After}
}

// watchFailback reports to the failover machine why a failback must wait.
func (n *node) watchFailback(ctx context.Context) {
	ticker := time.NewTicker(failbackCheck)
	defer ticker.Stop()
	blocker := ""
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if blocker == "" && n.runner.Status().FailbackAt.IsZero() {
			continue
		}
		blocker = n.switchoverBlocker(ctx)
		n.runner.BlockFailback(blocker)
	}
}

func (n *node) switchoverBlocker(ctx context.Context) string {
	if p, err := n.maintenance.Plan(); err == nil && p != nil && !p.State.Ended() {
		return fmt.Sprintf("plan %s (%s) is running", p.ID, p.Kind)
	}
	if err := n.maintenance.MaySwitchOver(ctx); err != nil {
		return err.Error()
	}
	return ""
}
