// SPDX-License-Identifier: Apache-2.0

// Package rpc implements MaintenanceService. Calls that change the state of the pair are forwarded to the active.
package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
	"github.com/lockstep-mq/lockstep/server/ops/settings"
	"github.com/lockstep-mq/lockstep/server/peerclient"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
)

const (
	progressInterval = 200 * time.Millisecond
	// keyForwarded marks a call that a node has forwarded to the active. Such a call is not forwarded a second time.
	keyForwarded = "lockstep-passed-on"
)

// Options configures New.
type Options struct {
	Runner   *failover.Runner
	Manager  *maintenance.Manager
	Peers    *peerclient.Peers
	Settings *settings.Settings
	// Closing is closed when the node is about to stop.
	Closing <-chan struct{}
}

// Service implements lockstep.v1.MaintenanceService.
type Service struct {
	pb.UnimplementedMaintenanceServiceServer

	o       Options
	manager *maintenance.Manager
}

// New creates the service.
func New(o Options) *Service { return &Service{o: o, manager: o.Manager} }

// pass executes a call on this node. If this node is not active, pass forwards the call to the active. It does not
// forward the call if another node has forwarded it to this node, or if the address of the active is unknown.
func pass[Req, Resp any](
	ctx context.Context, s *Service, req *Req, here func(context.Context, *Req) (*Resp, error),
	there func(pb.MaintenanceServiceClient, context.Context, *Req, ...grpc.CallOption) (*Resp, error),
) (*Resp, error) {
	resp, err := here(ctx, req)
	if err == nil {
		return resp, nil
	}
	if !errors.Is(err, replication.ErrNotActive) || errors.Is(err, replication.ErrOutcomeUnknown) {
		return nil, apierror.ToStatus(err)
	}
	st := s.o.Runner.Status()
	hint := protoconv.NotActive(&st, failover.NodeInfo{})
	if md, ok := metadata.FromIncomingContext(ctx); hint.ActiveAddress == "" || ok && len(md.Get(keyForwarded)) > 0 {
		return nil, apierror.ToStatus(hint)
	}
	client, err := s.o.Peers.Maintenance(hint.ActiveAddress)
	if err != nil {
		return nil, apierror.ToStatus(err)
	}
	return there(client, metadata.AppendToOutgoingContext(ctx, keyForwarded, "1"), req)
}

// stream runs an operation and passes its progress to send at most once per progressInterval. If send fails, the
// operation is canceled.
func stream[R any](
	ctx context.Context, run func(ctx context.Context, progress func(checkpoint.Progress)) (R, error),
	send func(*pb.Progress) error,
) (R, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var latest atomic.Pointer[checkpoint.Progress]
	type ended struct {
		result R
		err    error
	}
	done := make(chan ended, 1)
	go func() {
		r, err := run(ctx, func(p checkpoint.Progress) { latest.Store(&p) })
		done <- ended{r, err}
	}()
	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()
	var sent *checkpoint.Progress
	for {
		select {
		case o := <-done:
			return o.result, o.err
		case <-ticker.C:
		}
		if p := latest.Load(); p != nil && p != sent {
			sent = p
			if send(protoconv.ProgressToProto(p)) != nil {
				cancel() // the result of the operation follows on done
			}
		}
	}
}

// GetSettings returns the pair's maintenance settings as applied on this node.
func (s *Service) GetSettings(context.Context, *pb.GetSettingsRequest) (*pb.GetSettingsResponse, error) {
	settings, err := s.manager.Settings()
	if err != nil {
		return nil, apierror.ToStatus(err)
	}
	return &pb.GetSettingsResponse{Settings: protoconv.SettingsToProto(&settings)}, nil
}

// UpdateSettings changes maintenance settings of the pair.
func (s *Service) UpdateSettings(
	ctx context.Context, req *pb.UpdateSettingsRequest,
) (*pb.UpdateSettingsResponse, error) {
	return pass(ctx, s, req, func(ctx context.Context, req *pb.UpdateSettingsRequest) (
		*pb.UpdateSettingsResponse, error,
	) {
		settings, err := s.manager.Update(ctx, protoconv.ChangeFromProto(req))
		if err != nil {
			return nil, err
		}
		return &pb.UpdateSettingsResponse{Settings: protoconv.SettingsToProto(&settings)}, nil
	}, pb.MaintenanceServiceClient.UpdateSettings)
}

// Scan reads a snapshot of this node's page file and recommends a page size, or returns the result of the last scan.
func (s *Service) Scan(req *pb.ScanRequest, out grpc.ServerStreamingServer[pb.ScanResponse]) error {
	if req.GetLast() {
		last := s.manager.LastScan()
		return out.Send(&pb.ScanResponse{Result: protoconv.ScanToProto(&last)})
	}
	r, err := stream(out.Context(), func(ctx context.Context, progress func(checkpoint.Progress)) (checkpoint.ScanResult,
		error,
	) {
		return s.manager.Scan(protoconv.Paced(ctx, req), int(req.GetPageSizeMax()), progress)
	}, func(p *pb.Progress) error { return out.Send(&pb.ScanResponse{Progress: p}) })
	if err != nil {
		return apierror.ToStatus(err)
	}
	return out.Send(&pb.ScanResponse{Result: protoconv.ScanToProto(&r)})
}

// Rewrite rewrites this node's page file.
func (s *Service) Rewrite(req *pb.RewriteRequest, out grpc.ServerStreamingServer[pb.RewriteResponse]) error {
	r, err := stream(out.Context(), func(ctx context.Context, progress func(checkpoint.Progress)) (
		maintenance.RewriteResult, error,
	) {
		return s.manager.Rewrite(ctx, maintenance.RewriteRequest{
			PageSize: int(req.GetPageSize()), DryRun: req.GetDryRun(), PlanID: req.GetPlanId(),
		}, progress)
	}, func(p *pb.Progress) error { return out.Send(&pb.RewriteResponse{Progress: p}) })
	if err != nil {
		return apierror.ToStatus(err)
	}
	return out.Send(&pb.RewriteResponse{Result: protoconv.RewriteToProto(&r)})
}

// Shrink releases the free space at the end of this node's page file to the filesystem.
func (s *Service) Shrink(ctx context.Context, req *pb.ShrinkRequest) (*pb.ShrinkResponse, error) {
	r, err := s.manager.Shrink(ctx, req.GetDryRun())
	if err != nil {
		return nil, apierror.ToStatus(err)
	}
	return &pb.ShrinkResponse{FileBytesBefore: r.FileBytesBefore, FileBytesAfter: r.FileBytesAfter}, nil
}

// Backup copies a snapshot of this node to a backup.
func (s *Service) Backup(req *pb.BackupRequest, out grpc.ServerStreamingServer[pb.BackupResponse]) error {
	set, err := stream(out.Context(), func(ctx context.Context, progress func(checkpoint.Progress)) (backup.Set,
		error,
	) {
		return s.manager.Backup(protoconv.Paced(ctx, req), maintenance.BackupRequest{
			Path: req.GetPath(), Keep: int(req.GetKeepGenerations()),
			BytesPerSecond: int64(min(req.GetBytesPerSecond(), 1<<62)),
		}, progress)
	}, func(p *pb.Progress) error { return out.Send(&pb.BackupResponse{Progress: p}) })
	if err != nil {
		return apierror.ToStatus(err)
	}
	return out.Send(&pb.BackupResponse{Set: protoconv.SetToProto(&set)})
}

// ListBackups lists this node's backups, newest first.
func (s *Service) ListBackups(
	ctx context.Context, req *pb.ListBackupsRequest,
) (*pb.ListBackupsResponse, error) {
	sets, err := s.manager.Backups(ctx, req.GetPath())
	if err != nil {
		return nil, apierror.ToStatus(err)
	}
	resp := &pb.ListBackupsResponse{}
	for i := range sets {
		resp.Sets = append(resp.Sets, protoconv.SetToProto(&sets[len(sets)-1-i]))
	}
	return resp, nil
}

// DropOld deletes the page file that the last rewrite or snapshot installation of this node replaced.
func (s *Service) DropOld(ctx context.Context, _ *pb.DropOldRequest) (*pb.DropOldResponse, error) {
	n, err := s.manager.DropOld(ctx)
	if err != nil {
		return nil, apierror.ToStatus(err)
	}
	return &pb.DropOldResponse{Bytes: n}, nil
}

// FlushArchive archives all records that this node has applied before the call.
func (s *Service) FlushArchive(
	ctx context.Context, _ *pb.FlushArchiveRequest,
) (*pb.FlushArchiveResponse, error) {
	dir, st, err := s.manager.FlushArchive(ctx)
	if err != nil {
		return nil, apierror.ToStatus(err)
	}
	resp := &pb.FlushArchiveResponse{Directory: dir, LastLsn: st.Last.LSN, Gap: st.Gap, Former: st.Former}
	if !st.LastTime.IsZero() {
		resp.LastTime = timestamppb.New(st.LastTime)
	}
	return resp, nil
}

// StartPlan starts a rolling operation on the pair.
func (s *Service) StartPlan(ctx context.Context, req *pb.StartPlanRequest) (*pb.StartPlanResponse, error) {
	resp, err := pass(ctx, s, req, func(ctx context.Context, req *pb.StartPlanRequest) (*pb.StartPlanResponse, error) {
		p, err := s.manager.StartPlan(ctx, protoconv.PlanKindFromProto(req.GetKind()), int(req.GetPageSize()),
			req.GetSwitchBack())
		if err != nil {
			return nil, err
		}
		return &pb.StartPlanResponse{Plan: protoconv.PlanToProto(p)}, nil
	}, pb.MaintenanceServiceClient.StartPlan)
	if err == nil {
		s.manager.AwaitPlan(ctx, resp.GetPlan().GetId()) // a later WatchPlan here must not send the old plan
	}
	return resp, err
}

// WatchPlan sends the pair's plan as applied on this node, immediately, after changes and periodically, until the plan
// has ended or the node is about to stop.
func (s *Service) WatchPlan(
	_ *pb.WatchPlanRequest, out grpc.ServerStreamingServer[pb.WatchPlanResponse],
) error {
	ctx, cancel := context.WithCancelCause(out.Context())
	defer cancel(nil)
	stop := context.AfterFunc(out.Context(), func() { cancel(out.Context().Err()) })
	defer stop()
	go func() {
		select {
		case <-s.o.Closing:
			cancel(store.ErrClosed)
		case <-ctx.Done():
		}
	}()
	err := s.manager.WatchPlan(ctx, func(p *maintenance.Plan) error {
		return out.Send(&pb.WatchPlanResponse{Plan: protoconv.PlanToProto(p)})
	})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return apierror.ToStatus(err)
}

// CancelPlan ends the pair's plan.
func (s *Service) CancelPlan(ctx context.Context, req *pb.CancelPlanRequest) (*pb.CancelPlanResponse, error) {
	return pass(ctx, s, req, func(ctx context.Context, _ *pb.CancelPlanRequest) (*pb.CancelPlanResponse, error) {
		p, err := s.manager.CancelPlan(ctx)
		if err != nil {
			return nil, err
		}
		return &pb.CancelPlanResponse{Plan: protoconv.PlanToProto(p)}, nil
	}, pb.MaintenanceServiceClient.CancelPlan)
}

// ListJobs lists the pair's scheduled jobs as applied on this node.
func (s *Service) ListJobs(context.Context, *pb.ListJobsRequest) (*pb.ListJobsResponse, error) {
	jobs, err := s.manager.Jobs()
	if err != nil {
		return nil, apierror.ToStatus(err)
	}
	resp := &pb.ListJobsResponse{}
	for i := range jobs {
		resp.Jobs = append(resp.Jobs, protoconv.JobToProto(&jobs[i]))
	}
	return resp, nil
}

// PutJob adds or replaces a scheduled job.
func (s *Service) PutJob(ctx context.Context, req *pb.PutJobRequest) (*pb.PutJobResponse, error) {
	return pass(ctx, s, req, func(ctx context.Context, req *pb.PutJobRequest) (*pb.PutJobResponse, error) {
		j := req.GetJob()
		info, err := s.manager.PutJob(ctx, maintenance.Job{
			Name: j.GetName(), Schedule: j.GetSchedule(), Kind: j.GetKind(), On: j.GetOn(), Paused: j.GetPaused(),
		})
		if err != nil {
			return nil, err
		}
		return &pb.PutJobResponse{Job: protoconv.JobToProto(&info)}, nil
	}, pb.MaintenanceServiceClient.PutJob)
}

// DeleteJob removes a scheduled job.
func (s *Service) DeleteJob(ctx context.Context, req *pb.DeleteJobRequest) (*pb.DeleteJobResponse, error) {
	return pass(ctx, s, req, func(ctx context.Context, req *pb.DeleteJobRequest) (*pb.DeleteJobResponse, error) {
		if err := s.manager.DeleteJob(ctx, req.GetName()); err != nil {
			return nil, err
		}
		return &pb.DeleteJobResponse{}, nil
	}, pb.MaintenanceServiceClient.DeleteJob)
}

// RunJob runs a job immediately. It responds when the run has ended or, for a compact job, when the plan has
// started.
func (s *Service) RunJob(ctx context.Context, req *pb.RunJobRequest) (*pb.RunJobResponse, error) {
	return pass(ctx, s, req, func(ctx context.Context, req *pb.RunJobRequest) (*pb.RunJobResponse, error) {
		run, err := s.manager.RunJob(ctx, req.GetName())
		if err != nil {
			return nil, err
		}
		return &pb.RunJobResponse{Run: protoconv.RunToProto(&run)}, nil
	}, pb.MaintenanceServiceClient.RunJob)
}

// ReportNode records operations that the other node has completed.
func (s *Service) ReportNode(ctx context.Context, req *pb.ReportNodeRequest) (*pb.ReportNodeResponse, error) {
	return pass(ctx, s, req, func(ctx context.Context, req *pb.ReportNodeRequest) (*pb.ReportNodeResponse, error) {
		r, err := protoconv.ReportFromProto(req)
		if err != nil {
			return nil, err
		}
		if err := s.manager.Report(ctx, r); err != nil {
			return nil, err
		}
		return &pb.ReportNodeResponse{}, nil
	}, pb.MaintenanceServiceClient.ReportNode)
}

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
