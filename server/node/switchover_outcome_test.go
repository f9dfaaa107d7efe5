// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"

	"github.com/lockstep-mq/lockstep/server/observe/conditions"
)

// The switchover of a rolling compaction succeeds, and neither node reports a failed switchover.
func TestPlanLeavesNoCondition(t *testing.T) { simulated(t, testPlanLeavesNoCondition) }

func testPlanLeavesNoCondition(t *testing.T) {
	p := startMaintenancePair(t)
	a := p.nodes[0]
	_, err := a.maintenance.StartPlan(t.Context(), &pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_COMPACT})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return a.status().GetPlan().GetState() == pb.PlanState_PLAN_STATE_DONE
	}, time.Minute, 10*time.Millisecond)
	for _, n := range p.nodes {
		for _, about := range []string{"a", "b"} {
			require.Nil(t, n.condition(conditions.SwitchoverFailed, about))
		}
	}
}

// The condition switchover-failed is cleared when the roles change, regardless of the node that received the
// request.
func TestFailedSwitchoverEnds(t *testing.T) { simulated(t, testFailedSwitchoverEnds) }

func testFailedSwitchoverEnds(t *testing.T) {
	etcd := startEtcd(t)
	a := start(t, settingsOfPair(t, "a", etcd))
	a.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	_, err := a.admin.Switchover(t.Context(), &pb.SwitchoverRequest{})
	require.Error(t, err)
	a.waitCondition(conditions.SwitchoverFailed, "a", true)
	b := start(t, settingsOfPair(t, "b", etcd))
	b.waitFor(pb.Role_ROLE_STANDBY)
	require.Eventually(t, func() bool { // the standby may first lose its connection
		_, err := b.admin.Switchover(t.Context(), &pb.SwitchoverRequest{})
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	a.waitCondition(conditions.SwitchoverFailed, "a", false)
}
