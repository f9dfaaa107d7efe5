package node

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/replication"
)

// failbackCheck is how often the active looks whether something speaks against giving the role to the preferred node,
// while it is about to.
const failbackCheck = time.Second

// MayForce tells whether Force would be done now.
func (n *node) MayForce(ctx context.Context, config uint64) error {
	if n.alone() {
		return fmt.Errorf("%w: this node runs alone, and is always active", failover.ErrForce)
	}
	return n.runner.MayForce(ctx, config)
}

// Force makes this node active although it is not known to hold everything.
func (n *node) Force(ctx context.Context, req failover.ForceRequest) (failover.Record, error) {
	if n.alone() {
		return failover.Record{}, fmt.Errorf("%w: this node runs alone, and is always active", failover.ErrForce)
	}
	log := n.log.With(zap.String("by", req.By), zap.String("reason", req.Reason), zap.Uint64("config", req.Config))
	log.Warn("FORCED FAILOVER: an operator makes this node active; what it does not hold is lost",
		zap.Stringer("log_end", n.store.End()))
	req.Committed = n.store.Committed()
	rec, err := n.runner.Force(ctx, req)
	if err != nil {
		log.Error("the failover was not forced", zap.Error(err))
		return rec, fmt.Errorf("node %s: %w", n.cfg.Node.Name, err)
	}
	log.Warn("the failover is forced", zap.Uint64("new_config", rec.Config), zap.Uint64("term", rec.Term))
	return rec, nil
}

// void is what a forced failover has made void of another node's log.
func void(f *failover.Forced) replication.Void {
	if f == nil {
		return replication.Void{}
	}
	return replication.Void{Term: f.Term, After: f.After}
}

// watchFailback tells the machine what speaks against giving the role to the preferred node now: a plan, which moves
// the roles by itself, or a standby that rewrites its page file and could not serve at once.
func (n *node) watchFailback(ctx context.Context) {
	ticker := time.NewTicker(failbackCheck)
	defer ticker.Stop()
	told := ""
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if told == "" && n.runner.Status().FailbackAt.IsZero() {
			continue
		}
		told = n.occupied(ctx)
		n.runner.SetOccupied(told)
	}
}

// occupied says why the role should stay where it is for now; empty if it need not.
func (n *node) occupied(ctx context.Context) string {
	if p, err := n.maintenance.Plan(); err == nil && p != nil && !p.State.Ended() {
		return fmt.Sprintf("plan %s (%s) is under way", p.ID, p.Kind)
	}
	if err := n.maintenance.MaySwitchOver(ctx); err != nil {
		return err.Error()
	}
	return ""
}
