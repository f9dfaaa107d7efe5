package server

import (
	"context"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// RestartNode has this node begin anew as a step of a plan.
func (s *MaintenanceServer) RestartNode(
	ctx context.Context, req *pb.RestartNodeRequest,
) (*pb.RestartNodeResponse, error) {
	done, err := s.manager.Restart(ctx, req.GetPlanId())
	if err != nil {
		return nil, ToStatus(err)
	}
	return &pb.RestartNodeResponse{Done: done}, nil
}

// Restart has that node begin anew.
func (p *peer) Restart(ctx context.Context, planID string) (done bool, err error) {
	c, err := p.peers.maintenance(p.address)
	if err != nil {
		return false, err
	}
	r, err := c.RestartNode(ctx, &pb.RestartNodeRequest{PlanId: planID})
	if err != nil {
		return false, fromPeer(err)
	}
	return r.GetDone(), nil
}
