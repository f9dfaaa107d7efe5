// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
)

// VerifyBackup reports whether a backup of this node can be restored.
func (s *Service) VerifyBackup(
	req *pb.VerifyBackupRequest, out grpc.ServerStreamingServer[pb.VerifyBackupResponse],
) error {
	start := time.Now()
	r, err := stream(out.Context(), func(ctx context.Context, progress func(checkpoint.Progress)) (
		maintenance.VerifyReport, error,
	) {
		return s.manager.VerifyBackup(protoconv.Paced(ctx, req),
			maintenance.VerifyRequest{Path: req.GetPath(), Name: req.GetName()}, progress)
	}, func(p *pb.Progress) error { return out.Send(&pb.VerifyBackupResponse{Progress: p}) })
	if err != nil {
		return apierror.ToStatus(err)
	}
	result := protoconv.VerifiedToProto(&r)
	result.Took = durationpb.New(time.Since(start))
	return out.Send(&pb.VerifyBackupResponse{Result: result})
}

// GetPageMap returns the usage of this node's page file.
func (s *Service) GetPageMap(ctx context.Context, req *pb.GetPageMapRequest) (*pb.GetPageMapResponse, error) {
	m, err := s.manager.PageMap(ctx, req.GetRegions())
	if err != nil {
		return nil, apierror.ToStatus(err)
	}
	return protoconv.PageMapToProto(&m), nil
}
