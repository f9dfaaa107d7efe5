// SPDX-License-Identifier: Apache-2.0

//go:build deep

package chaos

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

// copyFile copies a file under a temporary name, and renames the copy to its target, as an upgrade does.
func copyFile(t *testing.T, from, to string) os.FileInfo {
	t.Helper()
	src, err := os.Open(from)
	require.NoError(t, err)
	defer func() { _ = src.Close() }()
	dst, err := os.OpenFile(to+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	require.NoError(t, err)
	_, err = io.Copy(dst, src)
	require.NoError(t, err)
	require.NoError(t, dst.Close())
	require.NoError(t, os.Rename(to+".new", to))
	info, err := os.Stat(to)
	require.NoError(t, err)
	return info
}

// executable returns the executable file of a node's process.
func executable(t *testing.T, n *cluster.Node) os.FileInfo {
	t.Helper()
	info, err := os.Stat(fmt.Sprintf("/proc/%d/exe", n.PID()))
	require.NoError(t, err)
	return info
}

// In a rolling restart of both nodes with a replaced binary, no publish fails, nothing is lost, and the processes keep
// their IDs.
func TestRollingRestart(t *testing.T) {
	program := filepath.Join(t.TempDir(), "lockstep")
	old := copyFile(t, binary, program)
	p := startWith(t, cluster.Options{Binary: program, Settings: steady()})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t), PerSecond: 500})
	acked(t, w)
	active, standby := inSync(t, p)
	pids := map[string]int{}
	for _, n := range p.Nodes() {
		require.True(t, os.SameFile(old, executable(t, n)))
		pids[n.Name] = n.PID()
	}
	upgraded := copyFile(t, binary, program)
	c := maintenanceClient(t, p)
	plan, err := admin.New(c).StartPlan(limited(t),
		&pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_RESTART, SwitchBack: true})
	require.NoError(t, err)
	plan = ended(t, p, plan.GetId())
	require.Equal(t, pb.PlanState_PLAN_STATE_DONE, plan.GetState(), plan.GetReason())
	nowActive, nowStandby := inSync(t, p)
	require.Equal(t, active.Name, nowActive.Name, "the role must return")
	require.Equal(t, standby.Name, nowStandby.Name)
	for _, n := range p.Nodes() {
		require.True(t, os.SameFile(upgraded, executable(t, n)), "node %s runs the old binary", n.Name)
		require.Equal(t, pids[n.Name], n.PID())
	}
	acked(t, w)
	for _, publish := range w.History().PublishesSoFar() {
		require.Equal(t, historycheck.Acked, publish.Outcome, publish.Error)
	}
	verify(t, p, w)
}

// If nodes are killed while the standby restarts, and are started manually, the plan continues on the active node.
func TestRestartKilled(t *testing.T) {
	t.Parallel() // mostly idle
	for name, victims := range map[string]func(active, standby *cluster.Node) []*cluster.Node{
		"standby": func(_, standby *cluster.Node) []*cluster.Node { return []*cluster.Node{standby} },
		"active":  func(active, _ *cluster.Node) []*cluster.Node { return []*cluster.Node{active} },
		"both":    func(active, standby *cluster.Node) []*cluster.Node { return []*cluster.Node{active, standby} },
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, cluster.Options{})
			w := work(t, p, cluster.WorkloadOptions{Seed: seed(t), PerSecond: 300})
			active, standby := inSync(t, p)
			plan, err := admin.New(maintenanceClient(t, p)).StartPlan(limited(t),
				&pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_RESTART})
			require.NoError(t, err)
			require.NoError(t, p.Wait(limited(t), "a restart under way", func(a, b *pb.GetStatusResponse) bool {
				s := planOf(a, b)
				return s.GetState() == pb.PlanState_PLAN_STATE_RESTARTING || len(s.GetDoneNodes()) > 0
			}))
			killed := victims(active, standby)
			for _, n := range killed {
				require.NoError(t, n.Kill())
			}
			if len(killed) == 1 && killed[0] == standby {
				acked(t, w) // the other node serves in the meantime
			}
			for _, n := range killed {
				require.NoError(t, n.Start())
			}
			plan = ended(t, p, plan.GetId())
			require.Equal(t, pb.PlanState_PLAN_STATE_DONE, plan.GetState(), plan.GetReason())
			require.Len(t, plan.GetDoneNodes(), 2)
			acked(t, w)
			verify(t, p, w)
		})
	}
}

// maintenanceClient returns a client for plans.
func maintenanceClient(t *testing.T, p *cluster.Pair) *client.Client {
	t.Helper()
	c, err := client.OpenWith(t.Context(), client.Options{Addresses: p.Addresses()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}
