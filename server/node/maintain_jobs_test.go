// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
)

func (n *testNode) job(name string) *pb.Job {
	n.t.Helper()
	resp, err := n.maintenance.ListJobs(n.t.Context(), &pb.ListJobsRequest{})
	require.NoError(n.t, err)
	for _, j := range resp.GetJobs() {
		if j.GetName() == name {
			return j
		}
	}
	return nil
}

func (n *testNode) run(job string) *pb.JobRun {
	n.t.Helper()
	resp, err := n.maintenance.RunJob(n.t.Context(), &pb.RunJobRequest{Name: job})
	require.NoError(n.t, err)
	return resp.GetRun()
}

// Jobs run on the node that their kind selects. They are stored on both nodes and survive a failover.
func TestJobs(t *testing.T) { simulated(t, testJobs) }

func testJobs(t *testing.T) {
	p := startMaintenancePair(t)
	a, b := p.nodes[0], p.nodes[1]
	stop := p.load()
	put := func(j *pb.Job) {
		t.Helper()
		resp, err := b.maintenance.PutJob(t.Context(), &pb.PutJobRequest{Job: j})
		require.NoError(t, err)
		require.Equal(t, j.GetName(), resp.GetJob().GetName())
	}
	put(&pb.Job{Name: "tick", Schedule: "@every 1s", Kind: "scan"})
	put(&pb.Job{Name: "save", Schedule: "0 3 * * *", Kind: "backup"})
	put(&pb.Job{Name: "small", Schedule: "@daily", Kind: "shrink"})
	put(&pb.Job{Name: "same", Schedule: "@weekly", Kind: "verify"})
	put(&pb.Job{Name: "pack", Schedule: "@monthly", Kind: "compact", Paused: true})
	for name, bad := range map[string]*pb.Job{
		"schedule": {Name: "x", Schedule: "at night", Kind: "scan"},
		"kind":     {Name: "x", Schedule: "@daily", Kind: "unknown"},
		"node":     {Name: "x", Schedule: "@daily", Kind: "scan", On: "unknown"},
		"name":     {Name: "", Schedule: "@daily", Kind: "scan"},
	} {
		_, err := a.maintenance.PutJob(t.Context(), &pb.PutJobRequest{Job: bad})
		require.Equal(t, codes.InvalidArgument, status.Code(err), name)
	}
	require.Nil(t, a.job("pack").GetNextRun())
	require.Equal(t, 3, a.job("save").GetNextRun().AsTime().Local().Hour())

	require.Eventually(t, func() bool { return len(b.job("tick").GetHistory()) >= 2 }, testTimeout, 20*time.Millisecond)
	run := b.job("tick").GetHistory()[1]
	require.Equal(t, "ok", run.GetOutcome(), run.GetDetail())
	require.Equal(t, "b", run.GetNode(), "on the standby")
	require.Contains(t, run.GetDetail(), "recommended")
	put(&pb.Job{Name: "tick", Schedule: "@every 1s", Kind: "scan", Paused: true})
	require.NotEmpty(t, a.job("tick").GetHistory(), "the history is kept")
	require.Eventually(t, func() bool { return a.job("tick").GetHistory()[0].GetOutcome() != "running" }, testTimeout,
		5*time.Millisecond)

	saved := a.run("save")
	require.Equal(t, "ok", saved.GetOutcome(), saved.GetDetail())
	require.Equal(t, "b", saved.GetNode())
	sets, err := b.maintenance.ListBackups(t.Context(), &pb.ListBackupsRequest{})
	require.NoError(t, err)
	require.Len(t, sets.GetSets(), 1)
	require.True(t, sets.GetSets()[0].GetComplete())
	require.Contains(t, saved.GetDetail(), sets.GetSets()[0].GetName())

	both := a.run("small")
	require.Equal(t, "ok", both.GetOutcome(), both.GetDetail())
	require.Equal(t, "b, a", both.GetNode())
	same := a.run("same")
	require.Equal(t, "ok", same.GetOutcome(), same.GetDetail())
	require.Contains(t, same.GetDetail(), "the same")

	_, err = a.maintenance.RunJob(t.Context(), &pb.RunJobRequest{Name: "none"})
	require.ErrorIs(t, kind(err), maintenance.ErrNoJob)
	_, err = b.maintenance.DeleteJob(t.Context(), &pb.DeleteJobRequest{Name: "small"})
	require.NoError(t, err)
	require.Nil(t, a.job("small"))

	stop()
	a.stop()
	b.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	require.Len(t, b.job("save").GetHistory(), 1)
	require.Equal(t, "skipped", b.run("same").GetOutcome(), "no other node to compare with")
	require.Equal(t, "ok", b.run("save").GetOutcome(), "without a standby, the active runs the job")
	require.Len(t, b.job("save").GetHistory(), 2)
}

// A job that cannot run during a rewrite is skipped. The history contains the reason.
func TestJobDuringRewriteIsSkipped(t *testing.T) { simulated(t, testJobDuringRewriteIsSkipped) }

func testJobDuringRewriteIsSkipped(t *testing.T) {
	p := startMaintenancePair(t)
	a, b := p.nodes[0], p.nodes[1]
	_, err := a.maintenance.PutJob(t.Context(), &pb.PutJobRequest{Job: &pb.Job{
		Name: "daily", Schedule: "@daily",
		Kind: "scan",
	}})
	require.NoError(t, err)
	reached := p.barriers[1].block()
	var done sync.WaitGroup
	done.Go(func() { _, _, _ = b.rewrite(&pb.RewriteRequest{PageSize: 4096}) })
	<-reached
	run := a.run("daily")
	require.Equal(t, "skipped", run.GetOutcome())
	require.Contains(t, run.GetDetail(), "rewrite")
	p.barriers[1].release()
	done.Wait()
}

// A standalone node executes an operation requested for its next start once, before it serves clients.
func TestResizeOnStartupAlone(t *testing.T) { simulated(t, testResizeOnStartupAlone) }

func testResizeOnStartupAlone(t *testing.T) {
	c := settings(t, "alone")
	n := start(t, c)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	fill(n)
	want := n.scan().GetRecommended()
	require.Greater(t, want, uint32(2048))
	_, _, err := n.rewrite(&pb.RewriteRequest{PageSize: want})
	require.ErrorIs(t, kind(err), maintenance.ErrRole)
	_, err = n.maintenance.StartPlan(t.Context(), &pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_RESIZE})
	require.ErrorIs(t, kind(err), maintenance.ErrRole)
	_, err = n.maintenance.UpdateSettings(t.Context(), &pb.UpdateSettingsRequest{ResizeOnStartup: ptr(true)})
	require.NoError(t, err)
	n.stop()

	n = start(t, c)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	require.Equal(t, want, n.pageSize())
	require.Eventually(t, func() bool {
		s, err := n.maintenance.GetSettings(t.Context(), &pb.GetSettingsRequest{})
		require.NoError(t, err)
		return !s.GetSettings().GetResizeOnStartup()
	}, testTimeout, 5*time.Millisecond, "the flag is cleared")
	require.Len(t, n.consume("q", 1000).take(200), 200)
	n.stop()

	// An operation requested by the configuration is executed once each time the setting is enabled.
	dropped := func() uint64 {
		old, err := n.maintenance.DropOld(t.Context(), &pb.DropOldRequest{})
		require.NoError(t, err)
		return old.GetBytes()
	}
	for i, on := range []bool{true, true, false, true} {
		c.Compact = on
		n = start(t, c)
		n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
		if i == 0 || i == 3 {
			require.NotZero(t, dropped(), "start %d compacts", i)
		} else {
			require.Zero(t, dropped(), "start %d does not", i)
		}
		n.stop()
	}
}

// Each node of a pair executes a requested operation at its next start as a standby. When both nodes have executed
// the operation, the request is cleared.
func TestResizeOnStartupPair(t *testing.T) { simulated(t, testResizeOnStartupPair) }

func testResizeOnStartupPair(t *testing.T) {
	p := startMaintenancePair(t)
	want := p.nodes[0].scan().GetRecommended()
	_, err := p.nodes[0].maintenance.UpdateSettings(t.Context(), &pb.UpdateSettingsRequest{ResizeOnStartup: ptr(true)})
	require.NoError(t, err)
	requested := func(n int) bool {
		s, err := p.nodes[n].maintenance.GetSettings(t.Context(), &pb.GetSettingsRequest{})
		require.NoError(t, err)
		return s.GetSettings().GetResizeOnStartup()
	}
	p.restart(1)
	require.Eventually(t, func() bool { return p.nodes[1].pageSize() == want }, testTimeout, 10*time.Millisecond)
	require.True(t, requested(0), "the other node has not been resized")
	p.nodes[1].waitFor(pb.Role_ROLE_STANDBY)
	require.Eventually(t, func() bool {
		_, err := p.nodes[0].admin.Switchover(t.Context(), &pb.SwitchoverRequest{})
		return err == nil
	}, testTimeout, 10*time.Millisecond)
	p.nodes[0].waitFor(pb.Role_ROLE_STANDBY)
	require.Equal(t, uint32(2048), p.nodes[0].pageSize(), "a node is resized only at its start")
	p.restart(0)
	require.Eventually(t, func() bool {
		return p.nodes[0].pageSize() == want && !requested(1) && !requested(0)
	}, testTimeout, 10*time.Millisecond)
	require.Equal(t, uint64(200), p.same())
}

// The digests of both nodes are computed at the same record while the log grows.
func TestVerifyUnderLoad(t *testing.T) { simulated(t, testVerifyUnderLoad) }

func testVerifyUnderLoad(t *testing.T) {
	p := startMaintenancePair(t)
	_, err := p.nodes[0].maintenance.PutJob(t.Context(),
		&pb.PutJobRequest{Job: &pb.Job{Name: "same", Schedule: "@weekly", Kind: "verify"}})
	require.NoError(t, err)
	p.load()
	for range 3 {
		run := p.nodes[0].run("same")
		require.Equal(t, "ok", run.GetOutcome(), run.GetDetail())
	}
	_, err = p.nodes[0].admin.GetDigest(t.Context(), &pb.GetDigestRequest{AtLsn: 1})
	require.Equal(t, codes.OutOfRange, status.Code(err))
}
