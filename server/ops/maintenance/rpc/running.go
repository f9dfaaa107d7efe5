// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/ops/settings"
)

// ListSettings returns the settings that can be changed at run time, with their values on this node.
func (s *Service) ListSettings(context.Context, *pb.ListSettingsRequest) (*pb.ListSettingsResponse, error) {
	return &pb.ListSettingsResponse{Settings: runningToProto(s.o.Settings.List())}, nil
}

// ChangeSettings changes settings at run time.
func (s *Service) ChangeSettings(
	ctx context.Context, req *pb.ChangeSettingsRequest,
) (*pb.ChangeSettingsResponse, error) {
	return pass(ctx, s, req, func(ctx context.Context, req *pb.ChangeSettingsRequest) (
		*pb.ChangeSettingsResponse, error,
	) {
		if len(req.GetSet())+len(req.GetUnset()) == 0 {
			return nil, fmt.Errorf("%w: no setting to change", apierror.ErrInvalid)
		}
		if err := s.o.Settings.Change(ctx, settings.Change{
			Set: req.GetSet(), Unset: req.GetUnset(),
			Node: req.GetNode(),
		}); err != nil {
			return nil, err
		}
		return &pb.ChangeSettingsResponse{Settings: runningToProto(s.o.Settings.List())}, nil
	}, pb.MaintenanceServiceClient.ChangeSettings)
}

func runningToProto(list []settings.Setting) []*pb.RunningSetting {
	out := make([]*pb.RunningSetting, 0, len(list))
	for _, r := range list {
		out = append(out, &pb.RunningSetting{
			Name: r.Key, Usage: r.Usage, Scope: r.Scope, Value: r.Value, Configured: r.Configured, Changed: r.Changed,
		})
	}
	return out
}
