// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/replication"
)

// failbackCheck is how often the active looks whether something speaks against giving the role to the preferred node,
// while it is about to.
const failbackCheck = time.Second

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
