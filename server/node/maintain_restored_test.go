// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/backup"
)

// A pair or a standalone node can start from a backup that a job created during a plan. The restored node ends the
// plan and the job run that were in progress. The page size and the messages are those in the backup.
func TestRestoredStore(t *testing.T) { simulated(t, testRestoredStore) }

func testRestoredStore(t *testing.T) {
	p := startMaintenancePair(t)
	a, b := p.nodes[0], p.nodes[1]
	reached := p.barriers[1].block()
	started, err := a.maintenance.StartPlan(t.Context(),
		&pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_RESIZE, PageSize: 8192})
	require.NoError(t, err)
	<-reached
	p.waitForPlan(0, pb.PlanState_PLAN_STATE_REWRITING)
	_, err = a.maintenance.PutJob(t.Context(), &pb.PutJobRequest{Job: &pb.Job{
		Name: "save", Schedule: "@yearly",
		Kind: "backup", On: "active",
	}})
	require.NoError(t, err)
	saved := a.run("save")
	require.Equal(t, "ok", saved.GetOutcome(), saved.GetDetail())
	sets, err := backup.List(t.Context(), backup.Directory(nil, a.config.Backup.Path))
	require.NoError(t, err)
	require.Len(t, sets, 1)
	p.barriers[1].release()
	p.waitForPlan(0, pb.PlanState_PLAN_STATE_DONE)
	a.stop()
	b.stop()

	restore := func() (dir string) {
		dir = filepath.Join(t.TempDir(), "data")
		_, err := backup.Restore(t.Context(), sets[0].Path, dir, backup.RestoreOptions{})
		require.NoError(t, err)
		return dir
	}
	check := func(n *testNode) {
		t.Helper()
		n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
		require.Eventually(t, func() bool {
			return n.status().GetPlan().GetState() == pb.PlanState_PLAN_STATE_CANCELLED
		}, testTimeout, 10*time.Millisecond)
		plan := n.status().GetPlan()
		require.Equal(t, started.GetPlan().GetId(), plan.GetId())
		require.Contains(t, plan.GetReason(), "another pair")
		require.Equal(t, uint32(2048), n.pageSize(), "the page size of the backup")
		require.Eventually(t, func() bool { return n.job("save").GetHistory()[0].GetOutcome() == "failed" }, testTimeout,
			10*time.Millisecond)
	}
	alone := settings(t, "alone")
	alone.Data.Dir = restore()
	n := start(t, alone)
	check(n)
	n.stop()
	n = start(t, alone)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	require.Len(t, n.consume("q", 1000).take(200), 200)
	n.stop()

	etcd := startEtcd(t)
	first := settingsOfPair(t, "first", etcd)
	first.Data.Dir = restore()
	n = start(t, first)
	check(n)
	second := start(t, settingsOfPair(t, "second", etcd))
	second.waitFor(pb.Role_ROLE_STANDBY)
	n.waitFor(pb.Role_ROLE_ACTIVE)
	require.Equal(t, uint64(200), (&maintenancePair{t: t, nodes: [2]*testNode{n, second}}).same())
}
