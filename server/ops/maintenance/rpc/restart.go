// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
)

// RestartNode restarts this node as a step of a plan.
func (s *Service) RestartNode(
	ctx context.Context, req *pb.RestartNodeRequest,
) (*pb.RestartNodeResponse, error) {
	done, err := s.manager.Restart(ctx, req.GetPlanId())
	if err != nil {
		return nil, apierror.ToStatus(err)
	}
	return &pb.RestartNodeResponse{Done: done}, nil
}
