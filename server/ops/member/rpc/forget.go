// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// ForgetPair implements FleetService.
func (s *Service) ForgetPair(ctx context.Context, req *pb.ForgetPairRequest) (*pb.ForgetPairResponse, error) {
	d, err := s.directory()
	if err != nil {
		return nil, s.status(err)
	}
	f, err := d.Forget(ctx, req.GetPair())
	if err != nil {
		return nil, s.status(err)
	}
	return &pb.ForgetPairResponse{Queues: uint64(f.Queues), Moves: f.Moves, Waiting: f.Waiting}, nil
}
