// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store/queue"
)

const (
	maxReasonBytes   = 1024
	maxSwitchTimeout = 10 * time.Minute
)

// Service implements SiteService.
type Service struct {
	pb.UnimplementedSiteServiceServer

	m       *Manager
	closing <-chan struct{}
}

var _ pb.SiteServiceServer = (*Service)(nil)

// NewService returns the service for a Manager. Streams end when closing is closed.
func NewService(m *Manager, closing <-chan struct{}) *Service {
	return &Service{m: m, closing: closing}
}

// GetSite implements SiteService.
func (s *Service) GetSite(_ context.Context, req *pb.GetSiteRequest) (*pb.GetSiteResponse, error) {
	_, err := s.m.active()
	if req.GetLocal() && err != nil {
		return nil, apierror.ToStatus(err) // the caller needs a state that contains all committed changes
	}
	resp := &pb.GetSiteResponse{Site: s.m.state()}
	if req.GetLocal() {
		return resp, nil
	}
	st := s.m.Status()
	resp.Remote = st.Remote
	switch {
	case !st.Active:
		resp.Error = "this node is not the active of its pair"
	case st.Err != nil:
		resp.Error = st.Err.Error()
	}
	if st.Active && st.State.Role == queue.SiteReplica {
		resp.Replication = st.Progress.toProto()
	}
	return resp, nil
}

// SwitchSite implements SiteService.
func (s *Service) SwitchSite(ctx context.Context, req *pb.SwitchSiteRequest) (*pb.SwitchSiteResponse, error) {
	timeout := req.GetTimeout().AsDuration()
	if timeout < 0 || timeout > maxSwitchTimeout {
		return nil, apierror.ToStatus(fmt.Errorf("%w: timeout %v, must be at most %v", apierror.ErrInvalid, timeout,
			maxSwitchTimeout))
	}
	if timeout == 0 {
		timeout = DefaultSwitchTimeout
	}
	r, err := s.m.Switch(ctx, req.GetTo(), timeout)
	if err != nil {
		return nil, apierror.ToStatus(err)
	}
	return &pb.SwitchSiteResponse{
		Primary: r.Primary.GetName(), Epoch: r.Primary.GetEpoch(), Pause: durationpb.New(r.Pause),
		Addresses: r.Primary.GetAddresses(),
	}, nil
}

// PromoteSite implements SiteService.
func (s *Service) PromoteSite(ctx context.Context, req *pb.PromoteSiteRequest) (*pb.PromoteSiteResponse, error) {
	if n := len(req.GetReason()); n == 0 || n > maxReasonBytes {
		return nil, apierror.ToStatus(fmt.Errorf("%w: reason has %d bytes, must have 1 to %d", apierror.ErrInvalid, n,
			maxReasonBytes))
	}
	r, err := s.m.Promote(ctx, req.GetReason(), req.GetForce())
	if err != nil {
		return nil, apierror.ToStatus(err)
	}
	return &pb.PromoteSiteResponse{
		Epoch: r.Epoch, Origin: positionToProto(r.Origin), Replication: r.Progress.toProto(),
	}, nil
}

// DemoteSite implements SiteService.
func (s *Service) DemoteSite(ctx context.Context, req *pb.DemoteSiteRequest) (*pb.DemoteSiteResponse, error) {
	r, err := s.m.Demote(ctx, req.GetReplicaOf())
	if err != nil {
		return nil, apierror.ToStatus(err)
	}
	return &pb.DemoteSiteResponse{
		Primary: r.Primary.GetName(), Epoch: r.Primary.GetEpoch(), Upstream: positionToProto(r.Upstream),
	}, nil
}

// VerifySites implements SiteService.
func (s *Service) VerifySites(ctx context.Context, req *pb.VerifySitesRequest) (*pb.VerifySitesResponse, error) {
	resp, err := s.m.Verify(ctx, req.GetLocal())
	if err != nil {
		return nil, apierror.ToStatus(err)
	}
	return resp, nil
}

// GetSiteDigests implements SiteService.
func (s *Service) GetSiteDigests(
	ctx context.Context, _ *pb.GetSiteDigestsRequest,
) (*pb.GetSiteDigestsResponse, error) {
	resp, err := s.m.digests(ctx)
	if err != nil {
		return nil, apierror.ToStatus(err)
	}
	return resp, nil
}

// PullLog implements SiteService.
func (s *Service) PullLog(req *pb.PullLogRequest, stream grpc.ServerStreamingServer[pb.PullLogResponse]) error {
	ctx, end := s.untilClosing(stream.Context())
	defer end()
	return apierror.ToStatus(s.m.serveLog(ctx, req, stream.Send))
}

// PullSnapshot implements SiteService.
func (s *Service) PullSnapshot(
	req *pb.PullSnapshotRequest, stream grpc.ServerStreamingServer[pb.PullSnapshotResponse],
) error {
	ctx, end := s.untilClosing(stream.Context())
	defer end()
	return apierror.ToStatus(s.m.serveSnapshot(ctx, req, stream.Send))
}

// untilClosing returns a context that ends when ctx ends, closing is closed, or the returned function is called.
func (s *Service) untilClosing(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-s.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// ReportPosition implements SiteService.
func (s *Service) ReportPosition(
	_ context.Context, req *pb.ReportPositionRequest,
) (*pb.ReportPositionResponse, error) {
	if err := s.m.ReportPosition(req); err != nil {
		return nil, apierror.ToStatus(err)
	}
	return &pb.ReportPositionResponse{}, nil
}

// Takeover implements SiteService.
func (s *Service) Takeover(ctx context.Context, req *pb.TakeoverRequest) (*pb.TakeoverResponse, error) {
	st, err := s.m.Takeover(ctx, req)
	if err != nil {
		return nil, apierror.ToStatus(err)
	}
	return &pb.TakeoverResponse{Site: st}, nil
}

// CancelTakeover implements SiteService.
func (s *Service) CancelTakeover(
	ctx context.Context, req *pb.CancelTakeoverRequest,
) (*pb.CancelTakeoverResponse, error) {
	st, err := s.m.CancelTakeover(ctx, req)
	if err != nil {
		return nil, apierror.ToStatus(err)
	}
	return &pb.CancelTakeoverResponse{Site: st}, nil
}
