// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Scan reports progress until it is canceled or, with a limit of 4096, has a result.
func (n *fakeNode) Scan(r *pb.ScanRequest, s grpc.ServerStreamingServer[pb.ScanResponse]) error {
	if r.GetPageSizeMax() == 1 {
		return refusal(n.pair.t, codes.AlreadyExists, "MAINTENANCE_BUSY")
	}
	if err := s.Send(&pb.ScanResponse{Progress: &pb.Progress{Phase: "scan", DoneBytes: 1, TotalBytes: 2}}); err != nil {
		return err
	}
	if r.GetPageSizeMax() == 4096 {
		return s.Send(&pb.ScanResponse{Result: &pb.ScanResult{Recommended: 4096}})
	}
	<-s.Context().Done()
	return s.Context().Err()
}

func (n *fakeNode) Rewrite(*pb.RewriteRequest, grpc.ServerStreamingServer[pb.RewriteResponse]) error {
	return refusal(n.pair.t, codes.Aborted, "ROLE_CHANGED")
}

func (n *fakeNode) Backup(*pb.BackupRequest, grpc.ServerStreamingServer[pb.BackupResponse]) error {
	return refusal(n.pair.t, codes.ResourceExhausted, "BACKUP_NO_SPACE")
}

func (n *fakeNode) WatchPlan(_ *pb.WatchPlanRequest, s grpc.ServerStreamingServer[pb.WatchPlanResponse]) error {
	for {
		n.pair.mu.Lock()
		plan, changed, err := n.pair.plan, n.pair.changed, n.active()
		n.pair.mu.Unlock()
		if err != nil {
			return err
		}
		if err := s.Send(&pb.WatchPlanResponse{Plan: plan}); err != nil || admin.PlanEnded(plan) {
			return err
		}
		select {
		case <-changed:
		case <-s.Context().Done():
			return nil
		}
	}
}

func (n *fakeNode) RunJob(context.Context, *pb.RunJobRequest) (*pb.RunJobResponse, error) {
	if err := n.change(); err != nil {
		return nil, err
	}
	return nil, refusal(n.pair.t, codes.NotFound, "JOB_NOT_FOUND")
}

func (n *fakeNode) CancelPlan(context.Context, *pb.CancelPlanRequest) (*pb.CancelPlanResponse, error) {
	return nil, refusal(n.pair.t, codes.NotFound, "PLAN_NOT_FOUND")
}

func (n *fakeNode) PutJob(_ context.Context, r *pb.PutJobRequest) (*pb.PutJobResponse, error) {
	n.pair.mu.Lock()
	defer n.pair.mu.Unlock()
	if err := n.active(); err != nil {
		return nil, err
	}
	if r.GetJob().GetName() == "one-too-many" {
		return nil, refusal(n.pair.t, codes.ResourceExhausted, "TOO_MANY_JOBS")
	}
	return &pb.PutJobResponse{Job: r.GetJob()}, nil
}

// Maintenance calls report progress, results and cancellation, and return the documented errors.
func TestNodeMaintenance(t *testing.T) { synctest.Test(t, testNodeMaintenance) }

func testNodeMaintenance(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	n, err := admin.New(c).Node(p.addrs[1])
	require.NoError(t, err)
	var phases []string
	r, err := n.Scan(t.Context(), &pb.ScanRequest{PageSizeMax: 4096},
		func(p *pb.Progress) { phases = append(phases, p.GetPhase()) })
	require.NoError(t, err)
	require.Equal(t, uint32(4096), r.GetRecommended())
	require.Equal(t, []string{"scan"}, phases)

	ctx, cancel := context.WithCancel(t.Context())
	_, err = n.Scan(ctx, &pb.ScanRequest{}, func(*pb.Progress) { cancel() })
	require.ErrorIs(t, err, context.Canceled)

	_, err = n.Scan(t.Context(), &pb.ScanRequest{PageSizeMax: 1}, nil)
	require.ErrorIs(t, err, admin.ErrBusy)
	_, err = n.Rewrite(t.Context(), &pb.RewriteRequest{}, nil)
	require.ErrorIs(t, err, admin.ErrRoleChanged)
	require.NotErrorIs(t, err, client.ErrFenced)
	_, err = n.Backup(t.Context(), &pb.BackupRequest{}, nil)
	require.ErrorIs(t, err, admin.ErrNoSpace)
	require.Contains(t, err.Error(), "injected")
	_, err = admin.New(c).RunJob(t.Context(), "nightly")
	require.ErrorIs(t, err, admin.ErrNoJob)
	_, err = admin.New(c).CancelPlan(t.Context())
	require.ErrorIs(t, err, admin.ErrNoPlan)
	require.NotErrorIs(t, err, admin.ErrNoJob)
	_, err = admin.New(c).PutJob(t.Context(), &pb.Job{Name: "one-too-many"})
	require.ErrorIs(t, err, client.ErrLimit)
	require.NotErrorIs(t, err, admin.ErrNoSpace)
	_, err = n.DropOld(t.Context())
	require.ErrorIs(t, err, client.ErrInternal, "not implemented by this node")
}

// WatchPlan continues after a failover until the plan has ended.
func TestWatchPlan(t *testing.T) { synctest.Test(t, testWatchPlan) }

func testWatchPlan(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	plan, err := admin.New(c).Plan(t.Context())
	require.NoError(t, err)
	require.Nil(t, plan)

	set := func(s pb.PlanState) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.plan = &pb.Plan{Id: "1", State: s}
		p.announce()
	}
	set(pb.PlanState_PLAN_STATE_REWRITING)
	var states []pb.PlanState
	for plan, err := range admin.New(c).WatchPlan(t.Context()) {
		require.NoError(t, err)
		if len(states) == 0 || states[len(states)-1] != plan.GetState() {
			states = append(states, plan.GetState())
		}
		switch plan.GetState() {
		case pb.PlanState_PLAN_STATE_REWRITING:
			p.setRole(0, pb.Role_ROLE_FENCED)
			p.takeOver(1)
			set(pb.PlanState_PLAN_STATE_CATCHING_UP)
		case pb.PlanState_PLAN_STATE_CATCHING_UP:
			set(pb.PlanState_PLAN_STATE_DONE)
		default:
		}
	}
	require.Equal(t, []pb.PlanState{
		pb.PlanState_PLAN_STATE_REWRITING, pb.PlanState_PLAN_STATE_CATCHING_UP, pb.PlanState_PLAN_STATE_DONE,
	}, states)

	job, err := admin.New(c).PutJob(t.Context(), &pb.Job{Name: "nightly"})
	require.NoError(t, err)
	require.Equal(t, "nightly", job.GetName())
}
