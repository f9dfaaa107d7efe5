// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/replication"
)

// failbackCheck is the interval of checks for obstacles to a pending failback.
const failbackCheck = time.Second

// discardedRange returns the discarded range of another node's log after a forced failover.
func discardedRange(f *failover.Forced) replication.DiscardedRange {
	if f == nil {
		return replication.DiscardedRange{}
	}
	return replication.DiscardedRange{Term: f.Term, After: f.After}
}

// watchFailback reports obstacles to a failback to the failover machine: a plan, which moves the roles itself, or a
// standby that rewrites its page file and could not serve immediately.
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
		told = n.switchoverBlocker(ctx)
		n.runner.SetOccupied(told)
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
