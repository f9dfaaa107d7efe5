// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"

	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
)

// Settings changed on either node apply to the pair. They survive a failover and a restart.
func TestSettingsSurviveFailover(t *testing.T) { simulated(t, testSettingsSurviveFailover) }

func testSettingsSurviveFailover(t *testing.T) {
	p := startMaintenancePair(t)
	a, b := p.nodes[0], p.nodes[1]
	before, err := a.maintenance.GetSettings(t.Context(), &pb.GetSettingsRequest{})
	require.NoError(t, err)
	require.Equal(t, uint32(2048), before.GetSettings().GetPageSizeCurrent())
	require.Equal(t, uint32(32768), before.GetSettings().GetPageSizeMax())
	require.Equal(t, uint32(3), before.GetSettings().GetBackupKeepGenerations())

	changed, err := b.maintenance.UpdateSettings(t.Context(), &pb.UpdateSettingsRequest{
		PageSizeMax: ptr(uint32(65536)), BackupKeepGenerations: ptr(uint32(7)), BackupPath: ptr("/backups"),
	})
	require.NoError(t, err, "the standby forwards the request")
	require.Equal(t, uint32(65536), changed.GetSettings().GetPageSizeMax())
	for name, bad := range map[string]*pb.UpdateSettingsRequest{
		"page size":   {PageSizeMax: ptr(uint32(3000))},
		"generations": {BackupKeepGenerations: ptr(uint32(0))},
		"path":        {BackupPath: ptr("relative")},
	} {
		_, err := b.maintenance.UpdateSettings(t.Context(), bad)
		require.Equal(t, codes.InvalidArgument, status.Code(err), name)
		require.ErrorIs(t, kind(err), maintenance.ErrSetting, name)
	}
	r := b.scan()
	require.Greater(t, r.GetRecommended(), uint32(2048))
	check := func(n *testNode) {
		t.Helper()
		require.Eventually(t, func() bool {
			s, err := n.maintenance.GetSettings(t.Context(), &pb.GetSettingsRequest{})
			require.NoError(t, err)
			return s.GetSettings().GetPageSizeRecommended() == r.GetRecommended() &&
				s.GetSettings().GetBackupPath() == "/backups" &&
				s.GetSettings().GetBackupKeepGenerations() == 7
		}, testTimeout, 5*time.Millisecond)
	}
	check(a)
	check(b)
	a.stop()
	b.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	check(b)
	p.restart(0)
	p.nodes[0].waitFor(pb.Role_ROLE_STANDBY)
	check(p.nodes[0])
}

// A standby stays in sync under load while it rewrites its page file. During the rewrite, another rewrite and a
// switchover are refused. An active refuses to rewrite its page file.
func TestStandbyRewrites(t *testing.T) { simulated(t, testStandbyRewrites) }

func testStandbyRewrites(t *testing.T) {
	p := startMaintenancePair(t)
	a, b := p.nodes[0], p.nodes[1]
	stop := p.load()
	dry, _, err := b.rewrite(&pb.RewriteRequest{PageSize: 16384, DryRun: true})
	require.NoError(t, err)
	require.Equal(t, uint32(2048), dry.GetPageSizeBefore())
	require.Equal(t, uint32(16384), dry.GetPageSizeAfter())
	require.NotZero(t, dry.GetNeededBytes())
	require.Greater(t, dry.GetAvailableBytes(), dry.GetNeededBytes())

	_, _, err = a.rewrite(&pb.RewriteRequest{PageSize: 16384})
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.ErrorIs(t, kind(err), maintenance.ErrRole)

	reached := p.barriers[1].block()
	var done sync.WaitGroup
	var result *pb.RewriteResult
	var rewriteErr error
	done.Go(func() { result, _, rewriteErr = b.rewrite(&pb.RewriteRequest{PageSize: 16384}) })
	<-reached

	require.Equal(t, "rewrite", b.status().GetMaintenance().GetOperation())
	_, _, err = b.rewrite(&pb.RewriteRequest{PageSize: 4096})
	require.Equal(t, codes.AlreadyExists, status.Code(err))
	require.ErrorIs(t, kind(err), maintenance.ErrBusy)
	for _, n := range p.nodes {
		_, err = n.admin.Switchover(t.Context(), &pb.SwitchoverRequest{})
		require.ErrorIs(t, kind(err), failover.ErrSwitchover, n.config.Node.Name)
		require.Contains(t, err.Error(), "rewrite")
	}
	before := a.status().GetStore().GetCommitLsn()
	require.Eventually(t, func() bool { return a.status().GetStore().GetCommitLsn() > before+100 }, testTimeout,
		5*time.Millisecond,
		"commits continue, each durable on the standby too")
	require.Equal(t, pb.Role_ROLE_STANDBY, b.role())
	require.Equal(t, pb.Role_ROLE_ACTIVE, a.role())
	require.Equal(t, "in-sync", a.status().GetStandby().GetState())
	require.Less(t, b.status().GetStore().GetAppliedLsn(), before+100, "nothing is applied in the meantime")

	p.barriers[1].release()
	done.Wait()
	require.NoError(t, rewriteErr)
	require.Equal(t, uint32(16384), result.GetPageSizeAfter())
	require.Less(t, result.GetFileBytesAfter(), result.GetFileBytesBefore()*2)
	require.Equal(t, uint32(16384), b.pageSize())
	require.Equal(t, uint32(2048), a.pageSize())
	require.Nil(t, b.status().GetMaintenance())
	acknowledged := stop()
	p.same()

	old, err := b.maintenance.DropOld(t.Context(), &pb.DropOldRequest{})
	require.NoError(t, err)
	require.NotZero(t, old.GetBytes())
	again, err := b.maintenance.DropOld(t.Context(), &pb.DropOldRequest{})
	require.NoError(t, err)
	require.Zero(t, again.GetBytes())
	_, err = a.admin.Switchover(t.Context(), &pb.SwitchoverRequest{})
	require.NoError(t, err)
	b.waitFor(pb.Role_ROLE_ACTIVE)
	b.checkStored(acknowledged)
}

// If the active fails while its standby rewrites its page file, the standby cancels the rewrite and takes over.
func TestTakeoverDuringRewrite(t *testing.T) { simulated(t, testTakeoverDuringRewrite) }

func testTakeoverDuringRewrite(t *testing.T) {
	p := startMaintenancePair(t)
	a, b := p.nodes[0], p.nodes[1]
	stop := p.load()
	reached := p.barriers[1].block()
	var done sync.WaitGroup
	var rewriteErr error
	done.Go(func() { _, _, rewriteErr = b.rewrite(&pb.RewriteRequest{PageSize: 16384}) })
	<-reached
	before := a.status().GetStore().GetCommitLsn()
	require.Eventually(t, func() bool { return a.status().GetStore().GetCommitLsn() > before+50 }, testTimeout,
		5*time.Millisecond)
	a.stop()
	start := time.Now()
	b.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	t.Logf("active after %s, with a rewrite blocked in a disk write", time.Since(start))
	done.Wait()
	require.Equal(t, codes.Aborted, status.Code(rewriteErr))
	require.ErrorIs(t, kind(rewriteErr), maintenance.ErrRoleChanged)
	require.Equal(t, uint32(2048), b.pageSize())
	before = b.status().GetStore().GetCommitLsn()
	require.Eventually(t, func() bool { return b.status().GetStore().GetCommitLsn() > before+50 }, testTimeout,
		5*time.Millisecond)
	acknowledged := stop()
	b.checkStored(acknowledged)
	p.barriers[1].release()
	_, _, err := b.rewrite(&pb.RewriteRequest{PageSize: 16384})
	require.ErrorIs(t, kind(err), maintenance.ErrRole, "it is active now")
}

// If the caller of a rewrite disconnects, the standby cancels the rewrite and catches up.
func TestCancelRewrite(t *testing.T) { simulated(t, testCancelRewrite) }

func testCancelRewrite(t *testing.T) {
	p := startMaintenancePair(t)
	b := p.nodes[1]
	reached := p.barriers[1].block()
	ctx, cancel := context.WithCancel(t.Context())
	s, err := b.maintenance.Rewrite(ctx, &pb.RewriteRequest{PageSize: 16384})
	require.NoError(t, err)
	<-reached
	cancel()
	for err == nil {
		_, err = s.Recv()
	}
	require.Eventually(t, func() bool { return b.status().GetMaintenance() == nil }, testTimeout, 5*time.Millisecond)
	p.barriers[1].release()
	require.Equal(t, uint32(2048), b.pageSize())
	p.nodes[0].publish("q", "one more")
	p.same()
	require.Eventually(t, func() bool { // the files of the canceled rewrite are removed in the background
		_, _, err = b.rewrite(&pb.RewriteRequest{PageSize: 8192})
		return err == nil
	}, testTimeout, 10*time.Millisecond)
	require.Equal(t, uint32(8192), b.pageSize())
}

// Both nodes are resized to the recommended page size under load, and have their original roles at the end.
func TestRollingResize(t *testing.T) { simulated(t, testRollingResize) }

func testRollingResize(t *testing.T) {
	p := startMaintenancePair(t)
	a, b := p.nodes[0], p.nodes[1]
	_, err := a.maintenance.StartPlan(t.Context(), &pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_RESIZE})
	require.ErrorIs(t, kind(err), maintenance.ErrNoRecommendation)
	_, err = a.maintenance.StartPlan(t.Context(), &pb.StartPlanRequest{})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	want := b.scan().GetRecommended()
	stop := p.load()
	p.barriers[1].block() // until the test has observed the rewrite
	started, err := b.maintenance.StartPlan(t.Context(),
		&pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_RESIZE, SwitchBack: true})
	require.NoError(t, err, "the standby forwards the request")
	require.Equal(t, a.ready.NodeID, started.GetPlan().GetFirstActive())
	require.Equal(t, want, started.GetPlan().GetPageSize())
	_, err = a.maintenance.StartPlan(t.Context(), &pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_COMPACT})
	require.Equal(t, codes.AlreadyExists, status.Code(err))

	watch, err := b.maintenance.WatchPlan(t.Context(), &pb.WatchPlanRequest{})
	require.NoError(t, err)
	states := map[pb.PlanState]bool{}
	var last *pb.Plan
	for {
		resp, err := watch.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		last = resp.GetPlan()
		require.Equal(t, started.GetPlan().GetId(), last.GetId())
		if states[last.GetState()] = true; last.GetState() == pb.PlanState_PLAN_STATE_REWRITING {
			p.barriers[1].release()
		}
	}
	require.Equal(t, pb.PlanState_PLAN_STATE_DONE, last.GetState(), last.GetReason())
	require.ElementsMatch(t, []string{a.ready.NodeID, b.ready.NodeID}, last.GetDoneNodes())
	require.True(t, states[pb.PlanState_PLAN_STATE_REWRITING])
	require.NotNil(t, last.GetEndedAt())
	for _, n := range p.nodes {
		require.Equal(t, want, n.pageSize())
	}
	a.waitFor(pb.Role_ROLE_ACTIVE)
	b.waitFor(pb.Role_ROLE_STANDBY)
	acknowledged := stop()
	p.same()
	a.checkStored(acknowledged)
	_, err = a.maintenance.CancelPlan(t.Context(), &pb.CancelPlanRequest{})
	require.Equal(t, codes.NotFound, status.Code(err))
}

// A plan continues after a restart of the standby during its rewrite, and later of the active during the other
// rewrite.
func TestPlanSurvivesRestarts(t *testing.T) { simulated(t, testPlanSurvivesRestarts) }

func testPlanSurvivesRestarts(t *testing.T) {
	p := startMaintenancePair(t)
	reached := p.barriers[1].block()
	started, err := p.nodes[0].maintenance.StartPlan(t.Context(),
		&pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_RESIZE, PageSize: 8192})
	require.NoError(t, err)
	<-reached
	p.waitForPlan(0, pb.PlanState_PLAN_STATE_REWRITING)
	require.Equal(t, started.GetPlan().GetId(), p.nodes[1].status().GetMaintenance().GetPlanId())
	secondReached := p.barriers[0].block()
	p.restart(1) // the standby starts its rewrite again
	// Node b now completes its rewrite, the roles are switched, and the rewrite of node a reaches its barrier. After
	// that, the active fails and node a takes over.
	<-secondReached
	p.waitForPlan(1, pb.PlanState_PLAN_STATE_REWRITING)
	require.Equal(t, uint32(8192), p.nodes[1].pageSize())
	p.nodes[1].stop()
	p.nodes[0].waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	plan := p.waitForPlan(0, pb.PlanState_PLAN_STATE_WAITING)
	require.Equal(t, []string{p.nodes[1].ready.NodeID}, plan.GetDoneNodes())
	require.Equal(t, uint32(2048), p.nodes[0].pageSize())
	p.barriers[0].release()
	p.restart(1)
	plan = p.waitForPlan(0, pb.PlanState_PLAN_STATE_DONE)
	require.Len(t, plan.GetDoneNodes(), 2)
	require.Equal(t, started.GetPlan().GetId(), plan.GetId())
	for _, n := range p.nodes {
		require.Equal(t, uint32(8192), n.pageSize())
	}
	require.Equal(t, uint64(200), p.same())
}

// CancelPlan cancels a rewrite in progress. After that, another plan can start.
func TestCancelPlan(t *testing.T) { simulated(t, testCancelPlan) }

func testCancelPlan(t *testing.T) {
	p := startMaintenancePair(t)
	a, b := p.nodes[0], p.nodes[1]
	reached := p.barriers[1].block()
	_, err := a.maintenance.StartPlan(t.Context(),
		&pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_RESIZE, PageSize: 8192})
	require.NoError(t, err)
	<-reached
	canceled, err := b.maintenance.CancelPlan(t.Context(), &pb.CancelPlanRequest{})
	require.NoError(t, err)
	require.Equal(t, pb.PlanState_PLAN_STATE_CANCELLED, canceled.GetPlan().GetState())
	require.Eventually(t, func() bool { return b.status().GetMaintenance() == nil }, testTimeout, 5*time.Millisecond)
	p.barriers[1].release()
	require.Equal(t, uint32(2048), b.pageSize())
	require.Equal(t, pb.Role_ROLE_ACTIVE, a.role())
	_, err = a.maintenance.StartPlan(t.Context(), &pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_COMPACT})
	require.NoError(t, err)
	p.waitForPlan(0, pb.PlanState_PLAN_STATE_DONE)
	require.Equal(t, pb.Role_ROLE_ACTIVE, b.role(), "without switch back")
	p.same()
}
