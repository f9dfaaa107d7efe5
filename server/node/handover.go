// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// This file hands the active role over before the node stops.

const (
	// successorLimit is how long the new active may take to serve before this node stops all the same.
	successorLimit = time.Second
	// successorPoll is how often it is asked.
	successorPoll = 2 * time.Millisecond
	// successorGrace is how long this node stays its standby then: so that who waited has an answer before the next
	// pause.
	successorGrace = 50 * time.Millisecond
	// settleLimit is how long the transactions may take that are under way when a node stops that still has the role.
	settleLimit = 500 * time.Millisecond
)

// handOverBeforeStop gives the active role to a standby in sync, so that clients see no more of the stop than a
// switchover. Whatever stands in the way of that does not keep the node from stopping: then the standby takes over, as
// from a node that died. An error is one of the store, which came meanwhile.
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
	began := time.Now()
	found, err := n.runner.Find(ctx) // that the pair was paused may be news of this moment
	if err == nil && found.Record.Paused != nil {
		n.log.Info("this node stops as the active: the pair is paused, so the role stays here until it is started again")
		return nil
	}
	result, err := n.switchover(ctx, other.Node)
	if err != nil {
		n.log.Warn("this node stops as the active: it could not hand over first",
			zap.Duration("after", time.Since(began)), zap.Error(err))
	} else {
		n.waitForSuccessor(ctx, result.Active.Address)
		n.log.Info("handed over before the stop", zap.String("active", result.Active.Name),
			zap.Duration("pause", result.Pause))
	}
	select {
	case err := <-n.fatal:
		return err
	default:
		return nil
	}
}

// settle has an active that stops, and has no successor, answer the publishes that it has taken. Those that come from
// now on are refused. After a failure there is nothing to wait for.
func (n *node) settle(ctx context.Context, failure error) {
	primary, err := n.plane.active()
	if err != nil || failure != nil && !errors.Is(failure, ErrRestart) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	primary.Settle(ctx)
}

// waitForSuccessor waits until the new active serves, with this node as its standby. It takes one write of the record
// to go on without this node: that pause must not come on top of the one of the switchover.
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
