// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/fleet"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/ops/mover"
)

func (s *Service) mover() (*mover.Manager, error) {
	if s.o.Pair == "" || s.o.Mover == nil {
		return nil, errNoFleet
	}
	return s.o.Mover, nil
}

// MoveQueues implements FleetService.
func (s *Service) MoveQueues(ctx context.Context, req *pb.MoveQueuesRequest) (*pb.MoveQueuesResponse, error) {
	m, err := s.mover()
	var move fleet.Move
	if err == nil {
		move, err = m.Begin(ctx, req.GetQueues(), req.GetGroup())
	}
	if err != nil {
		return nil, s.status(err)
	}
	return &pb.MoveQueuesResponse{Epoch: move.Epoch, From: move.From, Queues: move.Queues}, nil
}

// ListMoves implements FleetService.
func (s *Service) ListMoves(context.Context, *pb.ListMovesRequest) (*pb.ListMovesResponse, error) {
	m, err := s.mover()
	if err != nil {
		return nil, s.status(err)
	}
	moves, current := m.Moves()
	resp := &pb.ListMovesResponse{Current: current}
	for i := range moves {
		p := &moves[i]
		out := &pb.FleetMove{
			Epoch: p.Epoch, From: p.From, To: p.To, Queues: p.Queues, Phase: pb.MovePhase(p.Phase),
			CopiedBytes: p.CopiedBytes, RemainingBytes: p.RemainingBytes, Passes: uint32(p.Passes),
		}
		switch {
		case p.Reason != nil:
			out.Error = p.Reason.Error()
		case p.Err != nil:
			out.Error = p.Err.Error()
		}
		if p.Pause > 0 {
			out.Pause = durationpb.New(p.Pause)
		}
		resp.Moves = append(resp.Moves, out)
	}
	return resp, nil
}

// CancelMove implements FleetService.
func (s *Service) CancelMove(ctx context.Context, req *pb.CancelMoveRequest) (*pb.CancelMoveResponse, error) {
	m, err := s.mover()
	if err == nil {
		err = m.Cancel(ctx, req.GetEpoch())
	}
	if err != nil {
		return nil, s.status(err)
	}
	return &pb.CancelMoveResponse{}, nil
}

// GetMoveSource implements FleetService.
func (s *Service) GetMoveSource(
	_ context.Context, req *pb.GetMoveSourceRequest,
) (resp *pb.GetMoveSourceResponse, _ error) {
	m, err := s.mover()
	if err == nil {
		resp, err = m.Source(req)
	}
	if err != nil {
		return nil, s.status(err)
	}
	return resp, nil
}

// PullMessages implements FleetService.
func (s *Service) PullMessages(
	req *pb.PullMessagesRequest, stream grpc.ServerStreamingServer[pb.PullMessagesResponse],
) error {
	m, err := s.mover()
	if err == nil {
		err = m.Messages(stream.Context(), req, stream.Send)
	}
	return s.status(err)
}

// DigestMessages implements FleetService.
func (s *Service) DigestMessages(
	ctx context.Context, req *pb.DigestMessagesRequest,
) (resp *pb.DigestMessagesResponse, _ error) {
	m, err := s.mover()
	if err == nil {
		resp, err = m.MessageDigests(ctx, req)
	}
	if err != nil {
		return nil, s.status(err)
	}
	return resp, nil
}

// PrepareFence implements FleetService.
func (s *Service) PrepareFence(
	ctx context.Context, req *pb.PrepareFenceRequest,
) (resp *pb.PrepareFenceResponse, _ error) {
	m, err := s.mover()
	if err == nil {
		resp, err = m.Prepare(ctx, req)
	}
	if err != nil {
		return nil, s.status(err)
	}
	return resp, nil
}

// PullState implements FleetService.
func (s *Service) PullState(ctx context.Context, req *pb.PullStateRequest) (resp *pb.PullStateResponse, _ error) {
	m, err := s.mover()
	if err == nil {
		resp, err = m.State(ctx, req)
	}
	if err != nil {
		return nil, s.status(err)
	}
	return resp, nil
}

// FenceQueues implements FleetService.
func (s *Service) FenceQueues(ctx context.Context, req *pb.FenceQueuesRequest) (*pb.FenceQueuesResponse, error) {
	m, err := s.mover()
	if err == nil {
		err = m.Fence(ctx, req)
	}
	if err != nil {
		return nil, s.status(err)
	}
	return &pb.FenceQueuesResponse{}, nil
}

// GetMoveDigests implements FleetService.
func (s *Service) GetMoveDigests(
	ctx context.Context, req *pb.GetMoveDigestsRequest,
) (resp *pb.GetMoveDigestsResponse, _ error) {
	m, err := s.mover()
	if err == nil {
		resp, err = m.Digests(ctx, req.GetEpoch())
	}
	if err != nil {
		return nil, s.status(err)
	}
	return resp, nil
}

// UnfenceQueues implements FleetService.
func (s *Service) UnfenceQueues(
	ctx context.Context, req *pb.UnfenceQueuesRequest,
) (*pb.UnfenceQueuesResponse, error) {
	m, err := s.mover()
	if err == nil {
		err = m.Unfence(ctx, req)
	}
	if err != nil {
		return nil, s.status(err)
	}
	return &pb.UnfenceQueuesResponse{}, nil
}

// DropMoved implements FleetService.
func (s *Service) DropMoved(ctx context.Context, req *pb.DropMovedRequest) (*pb.DropMovedResponse, error) {
	m, err := s.mover()
	if err == nil {
		err = m.Drop(ctx, req)
	}
	if err != nil {
		return nil, s.status(err)
	}
	return &pb.DropMovedResponse{}, nil
}
