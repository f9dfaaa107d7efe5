// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

const (
	// scenarioFill is the amount of data that a rewrite in the scenarios copies.
	scenarioFill = 32 << 20
	// rewriteSlow is the rewrite rate for scenarios that interrupt a rewrite. At this rate, a rewrite takes minutes on
	// any disk, so a test does not wait for its end. After the interruption, the node restarts with fullSpeed.
	rewriteSlow = "128KiB"
	// rewriteSeconds is the rate of rewrites that finish in a few seconds.
	rewriteSeconds = "8MiB"
	fullSpeed      = "0"
)

// rolling is a pair with a backlog of messages. The subtests rewrite the page files one after another.
type rolling struct {
	p       *cluster.Pair
	backlog *backlog
	sizes   [2]uint32
	slow    []*cluster.Node // nodes with a rate limit for rewrites
}

var rateSetting = regexp.MustCompile(`rewrite-rate: "[^"]*"`)

// rate sets the rewrite rate that a node uses from its next start.
func (r *rolling) rate(t *testing.T, n *cluster.Node, rate string) {
	t.Helper()
	name := filepath.Join(n.Dir, "node.yaml")
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Len(t, rateSetting.FindAll(b, -1), 1)
	require.NoError(t, os.WriteFile(name, rateSetting.ReplaceAll(b, []byte(fmt.Sprintf("rewrite-rate: %q", rate))),
		0o640))
	r.slow = slices.DeleteFunc(r.slow, func(s *cluster.Node) bool { return s == n })
	if rate != fullSpeed {
		r.slow = append(r.slow, n)
	}
}

// restart restarts a node with another rate.
func (r *rolling) restart(t *testing.T, n *cluster.Node, rate string) {
	t.Helper()
	require.NoError(t, n.Stop())
	r.rate(t, n, rate)
	require.NoError(t, n.Start())
}

// scenario runs a subtest with a workload, and then checks history, files and digests.
func (r *rolling) scenario(t *testing.T, name string, run func(t *testing.T, w *cluster.Workload)) {
	t.Helper()
	ok := t.Run(name, func(t *testing.T) {
		w := work(t, r.p, cluster.WorkloadOptions{
			Prefix: strings.ReplaceAll(name, " ", "-") + "-", Seed: seed(t),
			PerSecond: 300,
		})
		acked(t, w)
		inSync(t, r.p)
		run(t, w)
		for _, n := range slices.Clone(r.slow) {
			r.restart(t, n, fullSpeed)
			inSync(t, r.p)
		}
		verify(t, r.p, w)
		r.backlog.check(t)
		checkFiles(t, r.p, r.sizes)
		require.NoError(t, w.Cleanup(limited(t)))
	})
	if !ok {
		t.FailNow() // later scenarios would fail in the same way
	}
}

// resize restarts the standby with the given rewrite rate, starts a plan with another page size, and waits until the
// standby is copying.
func (r *rolling) resize(t *testing.T, rate string) (plan *pb.Plan, size uint32, active, standby *cluster.Node) {
	t.Helper()
	_, standby = inSync(t, r.p)
	r.restart(t, standby, rate)
	active, standby = inSync(t, r.p)
	size = 24<<10 - r.sizes[0] // alternately 8 KiB and 16 KiB
	plan, err := admin.New(r.backlog.c).StartPlan(limited(t),
		&pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_RESIZE, PageSize: size})
	require.NoError(t, err)
	require.NoError(t, r.p.Wait(limited(t), "a rewrite under way", func(a, b *pb.GetStatusResponse) bool {
		return copied([]*pb.GetStatusResponse{a, b}[index(r.p, standby)], 0.0001)
	}))
	return plan, size, active, standby
}

// startResize waits until the pair is in sync, and starts a plan for a page size.
func startResize(t *testing.T, r *rolling, size uint32) *pb.Plan {
	t.Helper()
	inSync(t, r.p)
	plan, err := admin.New(r.backlog.c).StartPlan(limited(t),
		&pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_RESIZE, PageSize: size})
	require.NoError(t, err)
	return plan
}

// done waits until a plan has succeeded.
func (r *rolling) done(t *testing.T, plan *pb.Plan, size uint32) {
	t.Helper()
	plan = ended(t, r.p, plan.GetId())
	require.Equal(t, pb.PlanState_PLAN_STATE_DONE, plan.GetState(), plan.GetReason())
	r.sizes = [2]uint32{size, size}
}

func pageSize(t *testing.T, n *cluster.Node) uint32 {
	t.Helper()
	s, err := n.Status(limited(t))
	require.NoError(t, err)
	return s.GetStore().GetPageSize()
}

// hasLogged reports whether a node's log contains a text after the offset since.
func hasLogged(t *testing.T, n *cluster.Node, text string, since int) bool {
	t.Helper()
	b, err := os.ReadFile(n.LogFile())
	require.NoError(t, err)
	return strings.Contains(string(b[since:]), text)
}

func logSize(t *testing.T, n *cluster.Node) int {
	t.Helper()
	info, err := os.Stat(n.LogFile())
	require.NoError(t, err)
	return int(info.Size())
}

// A rolling resize completes, or is canceled, after each kind of interruption at a defined moment.
func TestResizeScenarios(t *testing.T) {
	t.Parallel() // mostly idle
	settings := maintenanceSettings()
	settings["page-size"] = "8KiB"
	settings["maintenance.rewrite-rate"] = fullSpeed
	maps.Copy(settings, steady())
	r := &rolling{p: start(t, cluster.Options{Settings: settings}), sizes: [2]uint32{8 << 10, 8 << 10}}
	r.backlog = fillBacklog(t, r.p, scenarioFill, 1)
	r.scenario(t, "no fault", r.noFault)
	r.scenario(t, "active killed", r.activeKilled)
	r.scenario(t, "standby killed", r.standbyKilled)
	r.scenario(t, "standby killed then canceled", r.standbyKilledThenCancelled)
	r.scenario(t, "both killed", r.bothKilled)
	r.scenario(t, "etcd stopped", r.etcdStopped)
	r.scenario(t, "other requests rejected then canceled", r.refusedThenCancelled)
	r.scenario(t, "corrupt page", r.corruptPage)
	checkOffline(t, r.p)
}

// noFault: no publish fails while a plan runs without faults, and the role returns if requested.
func (r *rolling) noFault(t *testing.T, w *cluster.Workload) {
	active, _ := inSync(t, r.p)
	size := 24<<10 - r.sizes[0]
	plan, err := admin.New(r.backlog.c).StartPlan(limited(t),
		&pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_RESIZE, PageSize: size, SwitchBack: true})
	require.NoError(t, err)
	r.done(t, plan, size)
	now, _ := inSync(t, r.p)
	require.Equal(t, active.Name, now.Name, "the role must return")
	acked(t, w)
	for _, publish := range w.History().PublishesSoFar() {
		require.Equal(t, historycheck.Acked, publish.Outcome, publish.Error)
	}
}

// activeKilled: the standby cancels its rewrite, applies its backlog and takes over, in a time that does not depend
// on the store size. The plan continues when the killed node is running again.
func (r *rolling) activeKilled(t *testing.T, w *cluster.Workload) {
	plan, size, active, standby := r.resize(t, rewriteSlow)
	begun := logSize(t, standby)
	since := w.History().Now()
	require.NoError(t, active.Kill())
	took := ackedSince(t, w, since, active) // the rewrite would last minutes
	t.Logf("kill of the active while the standby rewrote, to the next acknowledged publish: %v", took)
	require.True(t, hasLogged(t, standby, "rewrite of page.db canceled", begun),
		"the standby had finished rewriting")
	require.Equal(t, r.sizes[0], pageSize(t, standby), "a canceled rewrite changes nothing")
	onlyPageFile(t, standby)
	s, err := standby.Status(limited(t))
	require.NoError(t, err)
	require.Equal(t, plan.GetId(), s.GetPlan().GetId())
	require.False(t, admin.PlanEnded(s.GetPlan()), "%v", s.GetPlan())
	require.NoError(t, active.Start())
	inSync(t, r.p)
	r.restart(t, standby, fullSpeed)
	r.done(t, plan, size)
}

// standbyKilled: the active continues alone. The plan waits for the standby, which restarts its rewrite.
func (r *rolling) standbyKilled(t *testing.T, w *cluster.Workload) {
	plan, size, active, standby := r.resize(t, rewriteSlow)
	require.NoError(t, standby.Kill())
	require.FileExists(t, filepath.Join(standby.DataDir(), "page.db_new"),
		"the standby had finished rewriting")
	acked(t, w)
	require.NoError(t, r.p.Wait(limited(t), "a waiting plan", func(a, b *pb.GetStatusResponse) bool {
		return planOf(a, b).GetState() == pb.PlanState_PLAN_STATE_WAITING
	}))
	require.Equal(t, r.sizes[0], pageSize(t, active), "the active does not rewrite without a standby")
	r.rate(t, standby, fullSpeed)
	require.NoError(t, standby.Start())
	r.done(t, plan, size)
}

// standbyKilledThenCancelled: the plan is canceled while the standby is down. The standby returns with its old page
// file, and incomplete files of the rewrite are removed.
func (r *rolling) standbyKilledThenCancelled(t *testing.T, w *cluster.Workload) {
	_, _, _, standby := r.resize(t, rewriteSlow)
	require.NoError(t, standby.Kill())
	require.FileExists(t, filepath.Join(standby.DataDir(), "page.db_new"),
		"the standby had finished rewriting")
	acked(t, w)
	plan, err := admin.New(r.backlog.c).CancelPlan(limited(t))
	require.NoError(t, err)
	require.Equal(t, pb.PlanState_PLAN_STATE_CANCELLED, plan.GetState())
	r.rate(t, standby, fullSpeed)
	require.NoError(t, standby.Start())
	inSync(t, r.p)
	onlyPageFile(t, standby)
	s, err := standby.Status(limited(t))
	require.NoError(t, err)
	require.Nil(t, s.GetMaintenance())
}

// bothKilled: the node that is active after the restart continues the plan.
func (r *rolling) bothKilled(t *testing.T, w *cluster.Workload) {
	plan, size, active, standby := r.resize(t, rewriteSlow)
	require.NoError(t, standby.Kill())
	require.NoError(t, active.Kill())
	require.FileExists(t, filepath.Join(standby.DataDir(), "page.db_new"),
		"the standby had finished rewriting")
	r.rate(t, standby, fullSpeed)
	require.NoError(t, standby.Start())
	require.NoError(t, active.Start())
	acked(t, w)
	r.done(t, plan, size)
}

// etcdStopped: messages and the rewrite continue; the switchover waits for etcd.
func (r *rolling) etcdStopped(t *testing.T, w *cluster.Workload) {
	plan, size, active, standby := r.resize(t, rewriteSeconds)
	require.NoError(t, r.p.StopEtcd())
	require.NoError(t, r.p.Wait(limited(t), "the standby's rewrite", func(a, b *pb.GetStatusResponse) bool {
		s := []*pb.GetStatusResponse{a, b}[index(r.p, standby)]
		return s.GetStore().GetPageSize() == size
	}))
	require.NoError(t, r.p.Wait(limited(t), "an unreachable coordinator on both nodes",
		func(a, b *pb.GetStatusResponse) bool {
			return a != nil && b != nil && !a.GetPair().GetCoordinatorReachable() &&
				!b.GetPair().GetCoordinatorReachable()
		}))
	acked(t, w)
	s, err := active.Status(limited(t))
	require.NoError(t, err)
	require.Equal(t, pb.Role_ROLE_ACTIVE, s.GetRole(), s.GetReason())
	require.False(t, admin.PlanEnded(s.GetPlan()), "%v", s.GetPlan())
	t.Logf("without etcd: %v: %s", s.GetPlan().GetState(), s.GetPlan().GetReason())
	require.NoError(t, r.p.StartEtcd(limited(t)))
	r.done(t, plan, size)
}

func index(p *cluster.Pair, n *cluster.Node) int {
	if n == p.A {
		return 0
	}
	return 1
}

// refusedThenCancelled: during a rewrite, another rewrite, another plan and a switchover are rejected with a reason.
// The plan is then canceled, and changes nothing.
func (r *rolling) refusedThenCancelled(t *testing.T, w *cluster.Workload) {
	_, _, active, standby := r.resize(t, rewriteSlow)
	refused := func(label string, err error, codes ...codes.Code) {
		t.Helper()
		require.Error(t, err, label)
		require.Contains(t, codes, status.Code(err), "%s: %v", label, err)
		t.Logf("%s: %v", label, err)
	}
	refused("rewrite of the standby", rewrite(t, standby), codes.AlreadyExists)
	refused("rewrite of the active", rewrite(t, active), codes.FailedPrecondition)
	_, err := pb.NewMaintenanceServiceClient(active.Conn()).StartPlan(limited(t),
		&pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_COMPACT})
	refused("another plan", err, codes.AlreadyExists)
	_, err = pb.NewAdminServiceClient(active.Conn()).Switchover(limited(t), &pb.SwitchoverRequest{})
	refused("switchover", err, codes.FailedPrecondition)
	plan, err := admin.New(r.backlog.c).CancelPlan(limited(t))
	require.NoError(t, err)
	require.Equal(t, pb.PlanState_PLAN_STATE_CANCELLED, plan.GetState())
	require.Empty(t, plan.GetDoneNodes(), "the rewrite finished too early")
	require.NoError(t, r.p.Wait(limited(t), "the end of the canceled rewrite", func(a, b *pb.GetStatusResponse) bool {
		return a != nil && b != nil && a.GetMaintenance() == nil && b.GetMaintenance() == nil
	}))
	acked(t, w)
	now, _ := inSync(t, r.p)
	require.Equal(t, active.Name, now.Name)
	require.Equal(t, r.sizes[0], pageSize(t, standby))
}

// rewrite requests a compaction of one node, waits for its end, and returns its error.
func rewrite(t *testing.T, n *cluster.Node) error {
	t.Helper()
	ctx, cancel := context.WithCancel(limited(t))
	defer cancel()
	stream, err := pb.NewMaintenanceServiceClient(n.Conn()).Rewrite(ctx, &pb.RewriteRequest{})
	for err == nil {
		var r *pb.RewriteResponse
		if r, err = stream.Recv(); err == nil && r.GetResult() != nil {
			return nil
		}
	}
	return err
}

// corruptPage: a page of the standby has a flipped bit. The rewrite detects the corruption, repairs the page from
// the active and restarts, and the plan succeeds.
func (r *rolling) corruptPage(t *testing.T, w *cluster.Workload) {
	_, standby := inSync(t, r.p)
	require.NoError(t, standby.Stop())
	name := filepath.Join(standby.DataDir(), "page.db")
	flipBit(t, name, historycheck.Body(historycheck.ID{Producer: backlogProducer, N: r.backlog.messages / 2}, 20)[:16])
	require.NoError(t, standby.Start())
	inSync(t, r.p)
	since := logSize(t, standby)
	size := 24<<10 - r.sizes[0]
	plan, err := admin.New(r.backlog.c).StartPlan(limited(t),
		&pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_RESIZE, PageSize: size})
	require.NoError(t, err)
	r.done(t, plan, size)
	require.True(t, hasLogged(t, standby, "repaired a corrupt page", since))
	acked(t, w)
}

// flipBit flips a bit in each occurrence of want in a file.
func flipBit(t *testing.T, name string, want []byte) {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Positive(t, bytes.Count(b, want), "the message is not in %s", name)
	flipped := bytes.Clone(want)
	flipped[0] ^= 1
	require.NoError(t, os.WriteFile(name, bytes.ReplaceAll(b, want, flipped), 0o640))
}

// A node has completed its part of a plan, and is then down until it requires a snapshot. The snapshot of the other
// node has the old page size, so the node repeats its part.
func TestSnapshotUndoesResize(t *testing.T) {
	t.Parallel() // mostly idle
	settings := maintenanceSettings()
	settings["wal.keep-bytes"], settings["wal.segment-bytes"], settings["maintenance.rewrite-rate"] = "64KiB", "1MiB",
		fullSpeed
	p := start(t, cluster.Options{Settings: settings})
	r := &rolling{p: p, sizes: [2]uint32{8 << 10, 8 << 10}}
	r.backlog = fillBacklog(t, p, scenarioFill, 3)
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t), PerSecond: 1000})
	// The second rewrite takes so long that it cannot finish before the first node is killed.
	_, other := inSync(t, p)
	r.restart(t, other, rewriteSlow)
	inSync(t, p)
	_, err := pb.NewAdminServiceClient(p.Other(other).Conn()).Switchover(limited(t), &pb.SwitchoverRequest{})
	require.NoError(t, err)
	require.NoError(t, p.WaitRole(limited(t), other, pb.Role_ROLE_ACTIVE))
	_, first := inSync(t, p)
	require.NotEqual(t, other.Name, first.Name)
	plan := startResize(t, r, 8<<10)
	require.NoError(t, p.Wait(limited(t), "completion on the first node", func(a, b *pb.GetStatusResponse) bool {
		return len(planOf(a, b).GetDoneNodes()) == 1
	}))
	s, err := first.Status(limited(t))
	require.NoError(t, err)
	has := s.GetStore().GetLogEnd().GetLsn()
	require.NoError(t, first.Kill())
	acked(t, w)
	require.Equal(t, uint32(2<<10), pageSize(t, other), "the other node has also completed")
	require.Eventually(t, func() bool {
		_, err := pb.NewAdminServiceClient(other.Conn()).Checkpoint(limited(t), &pb.CheckpointRequest{})
		require.NoError(t, err)
		s, err := other.Status(limited(t))
		require.NoError(t, err)
		return s.GetStore().GetLogFirstLsn() > has+1000
	}, bound, 50*time.Millisecond, "the log is not trimmed")
	require.NoError(t, first.Start())
	inSync(t, p)
	require.True(t, hasLogged(t, first, "snapshot installed", 0), "no snapshot was sent")
	r.restart(t, other, fullSpeed)
	r.done(t, plan, 8<<10)
	verify(t, p, w)
	r.backlog.check(t)
	checkFiles(t, p, r.sizes)
}
