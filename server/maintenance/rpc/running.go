package rpc

import (
	"context"
	"fmt"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/wire"
)

// This file is the settings that can be changed while the nodes run.

// RunningSetting is one of them, as a node has it.
type RunningSetting struct {
	// Key, Usage and Scope as in config.Running.
	Key, Usage, Scope string
	// Value that holds on this node, and Configured, that its configuration says.
	Value, Configured string
	// Changed: Value was set while the nodes ran.
	Changed bool
}

// RunningChange of settings.
type RunningChange struct {
	// Set are the new values, by key; Unset are those for which the configurations hold again.
	Set   map[string]string
	Unset []string
	// Node, by name or UUID, that it is for; empty for both. Only for settings that a node may have for itself.
	Node string
}

// RunningSettings is the part of a node that they are asked of.
type RunningSettings interface {
	// RunningSettings as they hold on this node.
	RunningSettings() []RunningSetting
	// ChangeRunning changes some, on the active, and returns what holds then. Nothing is changed if one of them cannot
	// be used (ErrInvalid).
	ChangeRunning(ctx context.Context, c RunningChange) error
}

// ListSettings tells which settings can be changed while the nodes run, and what they are on this node.
func (s *Service) ListSettings(context.Context, *pb.ListSettingsRequest) (*pb.ListSettingsResponse, error) {
	return &pb.ListSettingsResponse{Settings: runningToProto(s.node.RunningSettings())}, nil
}

// ChangeSettings changes some of them.
func (s *Service) ChangeSettings(
	ctx context.Context, req *pb.ChangeSettingsRequest,
) (*pb.ChangeSettingsResponse, error) {
	return pass(ctx, s, req, func(ctx context.Context, req *pb.ChangeSettingsRequest) (
		*pb.ChangeSettingsResponse, error,
	) {
		if len(req.GetSet())+len(req.GetUnset()) == 0 {
			return nil, fmt.Errorf("%w: nothing to change", wire.ErrInvalid)
		}
		if err := s.node.ChangeRunning(ctx, RunningChange{
			Set: req.GetSet(), Unset: req.GetUnset(),
			Node: req.GetNode(),
		}); err != nil {
			return nil, err
		}
		return &pb.ChangeSettingsResponse{Settings: runningToProto(s.node.RunningSettings())}, nil
	}, pb.MaintenanceServiceClient.ChangeSettings)
}

func runningToProto(list []RunningSetting) []*pb.RunningSetting {
	out := make([]*pb.RunningSetting, 0, len(list))
	for _, r := range list {
		out = append(out, &pb.RunningSetting{
			Name: r.Key, Usage: r.Usage, KeptBy: r.Scope, Value: r.Value, Configured: r.Configured, Changed: r.Changed,
		})
	}
	return out
}
