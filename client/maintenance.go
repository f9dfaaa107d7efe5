// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"iter"

	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// maintain calls a method that answers once on this node.
func maintain[Req, Resp any](
	ctx context.Context, n *Node, op string, req *Req,
	method func(pb.MaintenanceServiceClient, context.Context, *Req, ...grpc.CallOption) (*Resp, error),
) (*Resp, error) {
	resp, err := method(pb.NewMaintenanceServiceClient(n.node.conn()), ctx, req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, asError(ctx, n.node.address, err))
	}
	return resp, nil
}

// progressing is a response of a stream that ends with a result.
type progressing[Result any] interface {
	GetProgress() *pb.Progress
	comparable
}

// follow calls a method that streams progress on this node, until it gives a result. The operation is cancelled, and
// has left everything as it was, when ctx ends.
func follow[Req, Resp any, Result comparable, P interface {
	*Resp
	progressing[Result]
}](
	ctx context.Context, n *Node, op string, req *Req, progress func(*pb.Progress),
	method func(pb.MaintenanceServiceClient, context.Context, *Req, ...grpc.CallOption) (
		grpc.ServerStreamingClient[Resp], error),
	result func(P) Result,
) (none Result, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	fail := func(err error) error {
		return fmt.Errorf("%s: %w", op, asError(ctx, n.node.address, err))
	}
	stream, err := method(pb.NewMaintenanceServiceClient(n.node.conn()), ctx, req)
	if err != nil {
		return none, fail(err)
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return none, fail(err)
		}
		if r := result(P(resp)); r != none {
			return r, nil
		}
		if p := P(resp).GetProgress(); p != nil && progress != nil {
			progress(p)
		}
	}
}

// Scan reads a snapshot of this node's page file and recommends a page size. Nothing waits for it. progress may be nil.
// Errors: ErrBusy, ErrInvalid.
func (n *Node) Scan(ctx context.Context, req *pb.ScanRequest, progress func(*pb.Progress)) (*pb.ScanResult, error) {
	return follow(ctx, n, "scan", req, progress, pb.MaintenanceServiceClient.Scan, (*pb.ScanResponse).GetResult)
}

// Rewrite writes this node's page file anew. It must be a standby; the pair stays in sync meanwhile. When ctx ends the
// page file stays as it was. progress may be nil. Errors: ErrRefused for the active, ErrBusy, ErrRoleChanged,
// ErrNoSpace, ErrDataLoss for a corrupt page.
func (n *Node) Rewrite(
	ctx context.Context, req *pb.RewriteRequest, progress func(*pb.Progress),
) (*pb.RewriteResult, error) {
	return follow(ctx, n, "rewrite", req, progress, pb.MaintenanceServiceClient.Rewrite,
		(*pb.RewriteResponse).GetResult)
}

// Backup copies a snapshot of this node to a save-set on that node. Nothing waits for it. progress may be nil.
// Errors: ErrRefused when there is no path for backups, ErrBusy, ErrNoSpace, ErrDataLoss.
func (n *Node) Backup(ctx context.Context, req *pb.BackupRequest, progress func(*pb.Progress)) (*pb.SaveSet, error) {
	return follow(ctx, n, "backup", req, progress, pb.MaintenanceServiceClient.Backup, (*pb.BackupResponse).GetSet)
}

// Shrink gives the free end of this node's page file back to the filesystem. Nothing waits for it. Errors: ErrBusy.
func (n *Node) Shrink(ctx context.Context, dryRun bool) (*pb.ShrinkResponse, error) {
	return maintain(ctx, n, "shrink", &pb.ShrinkRequest{DryRun: dryRun}, pb.MaintenanceServiceClient.Shrink)
}

// Backups lists the save-sets of this node, newest first, those included that are not complete. path may be empty: the
// one of the settings.
func (n *Node) Backups(ctx context.Context, path string) ([]*pb.SaveSet, error) {
	resp, err := maintain(ctx, n, "list backups", &pb.ListBackupsRequest{Path: path},
		pb.MaintenanceServiceClient.ListBackups)
	return resp.GetSets(), err
}

// VerifyBackup reads a save-set of this node and tells whether it can be restored; that it cannot be is in the result,
// not in the error. Nothing waits for it. progress may be nil. Errors: ErrBackupNotFound, ErrRefused without a backup
// path or for an encrypted backup, ErrBusy.
func (n *Node) VerifyBackup(
	ctx context.Context, req *pb.VerifyBackupRequest, progress func(*pb.Progress),
) (*pb.VerifyBackupResult, error) {
	return follow(ctx, n, "verify a save-set", req, progress, pb.MaintenanceServiceClient.VerifyBackup,
		(*pb.VerifyBackupResponse).GetResult)
}

// PageMap tells what the pages of this node's page file are used for, in at most that many regions; 0 means 256.
// Nothing waits for it. Errors: ErrInvalid for more than 4096.
func (n *Node) PageMap(ctx context.Context, regions uint32) (*pb.GetPageMapResponse, error) {
	return maintain(ctx, n, "page map", &pb.GetPageMapRequest{Regions: regions},
		pb.MaintenanceServiceClient.GetPageMap)
}

// DropOld removes what the last rewrite or installed snapshot of this node replaced, and returns how many bytes that
// were. Errors: ErrBusy.
func (n *Node) DropOld(ctx context.Context) (uint64, error) {
	resp, err := maintain(ctx, n, "drop old files", &pb.DropOldRequest{}, pb.MaintenanceServiceClient.DropOld)
	return resp.GetBytes(), err
}

// FlushArchive archives the log of this node up to now, and tells how far the archive reaches. Errors: ErrRefused when
// this node has no archive.
func (n *Node) FlushArchive(ctx context.Context) (*pb.FlushArchiveResponse, error) {
	return maintain(ctx, n, "flush archive", &pb.FlushArchiveRequest{}, pb.MaintenanceServiceClient.FlushArchive)
}

// Settings reads the pair's maintenance settings as this node knows them, with this node's page size.
func (n *Node) Settings(ctx context.Context) (*pb.MaintenanceSettings, error) {
	resp, err := maintain(ctx, n, "settings", &pb.GetSettingsRequest{}, pb.MaintenanceServiceClient.GetSettings)
	return resp.GetSettings(), err
}

// onActive calls a method on the active node, until it is answered.
func onActive[Req, Resp any](
	ctx context.Context, c *Client, op string, req *Req,
	method func(pb.MaintenanceServiceClient, context.Context, *Req, ...grpc.CallOption) (*Resp, error),
) (resp *Resp, err error) {
	err = c.do(ctx, op, &doubt{}, func(ctx context.Context, cc *grpc.ClientConn) (err error) {
		resp, err = method(pb.NewMaintenanceServiceClient(cc), ctx, req)
		return err
	})
	return resp, err
}

// MaintenanceSettings reads the pair's maintenance settings. Errors: ErrUnavailable.
func (c *Client) MaintenanceSettings(ctx context.Context) (*pb.MaintenanceSettings, error) {
	resp, err := onActive(ctx, c, "settings", &pb.GetSettingsRequest{}, pb.MaintenanceServiceClient.GetSettings)
	return resp.GetSettings(), err
}

// UpdateMaintenanceSettings changes those settings that are present in the request; they are durable on both nodes when
// it returns. Errors: ErrInvalid, ErrUnavailable.
func (c *Client) UpdateMaintenanceSettings(
	ctx context.Context, req *pb.UpdateSettingsRequest,
) (*pb.MaintenanceSettings, error) {
	resp, err := onActive(ctx, c, "change settings", req, pb.MaintenanceServiceClient.UpdateSettings)
	return resp.GetSettings(), err
}

// StartPlan begins a rolling operation: standby, switchover, the other node. The pair goes through with it whether
// a client watches or not; see WatchPlan. If the connection broke meanwhile, ErrBusy may mean that it began all the
// same. Errors: ErrBusy while another one is under way, ErrRefused, ErrInvalid, ErrUnavailable.
func (c *Client) StartPlan(ctx context.Context, req *pb.StartPlanRequest) (*pb.Plan, error) {
	resp, err := onActive(ctx, c, "start the plan", req, pb.MaintenanceServiceClient.StartPlan)
	return resp.GetPlan(), err
}

// CancelPlan stops the pair's plan at the next safe point. Errors: ErrNoPlan when none is under way, ErrUnavailable.
func (c *Client) CancelPlan(ctx context.Context) (*pb.Plan, error) {
	resp, err := onActive(ctx, c, "cancel the plan", &pb.CancelPlanRequest{}, pb.MaintenanceServiceClient.CancelPlan)
	return resp.GetPlan(), err
}

// Plan returns the pair's last plan, running or ended; nil if there never was one. Errors: ErrUnavailable.
func (c *Client) Plan(ctx context.Context) (plan *pb.Plan, err error) {
	for p, err := range c.WatchPlan(ctx) {
		return p, err
	}
	return nil, nil
}

// WatchPlan gives the pair's plan now and after each change, through all failovers, until it has ended: the last one is
// the outcome. It gives nil and ends if there never was a plan. It ends after the first error. Errors: ErrUnavailable.
func (c *Client) WatchPlan(ctx context.Context) iter.Seq2[*pb.Plan, error] {
	return func(yield func(*pb.Plan, error) bool) {
		err := c.do(ctx, "watch the plan", nil, func(ctx context.Context, cc *grpc.ClientConn) error {
			stream, err := pb.NewMaintenanceServiceClient(cc).WatchPlan(ctx, &pb.WatchPlanRequest{})
			for err == nil {
				var resp *pb.WatchPlanResponse
				if resp, err = stream.Recv(); err != nil {
					break
				}
				p := resp.GetPlan()
				if !yield(p, nil) || p == nil || PlanEnded(p) {
					return nil
				}
			}
			return err //nolint:wrapcheck // asError needs it as it is
		})
		if err != nil {
			yield(nil, err)
		}
	}
}

// PlanEnded tells whether a plan is done, failed or cancelled.
func PlanEnded(p *pb.Plan) bool {
	switch p.GetState() {
	case pb.PlanState_PLAN_STATE_DONE, pb.PlanState_PLAN_STATE_FAILED, pb.PlanState_PLAN_STATE_CANCELLED:
		return true
	default:
		return false
	}
}

// Jobs lists the pair's scheduled jobs by name, each with its last runs. Errors: ErrUnavailable.
func (c *Client) Jobs(ctx context.Context) ([]*pb.Job, error) {
	resp, err := onActive(ctx, c, "list jobs", &pb.ListJobsRequest{}, pb.MaintenanceServiceClient.ListJobs)
	return resp.GetJobs(), err
}

// PutJob adds a job, or replaces the one of that name. Errors: ErrInvalid, ErrLimit when there are as many as there may
// be, ErrUnavailable.
func (c *Client) PutJob(ctx context.Context, job *pb.Job) (*pb.Job, error) {
	resp, err := onActive(ctx, c, "put job "+job.GetName(), &pb.PutJobRequest{Job: job},
		pb.MaintenanceServiceClient.PutJob)
	return resp.GetJob(), err
}

// DeleteJob removes a job and its history. Errors: ErrNoJob, ErrUnavailable.
func (c *Client) DeleteJob(ctx context.Context, name string) error {
	_, err := onActive(ctx, c, "delete job "+name, &pb.DeleteJobRequest{Name: name},
		pb.MaintenanceServiceClient.DeleteJob)
	return err
}

// RunJob runs a job now and returns when it is done; it is not repeated when the connection breaks. A run that failed
// is no error of this call: see its outcome. Errors: ErrNoJob, ErrBusy while it runs already, ErrUnavailable.
func (c *Client) RunJob(ctx context.Context, name string) (*pb.JobRun, error) {
	t, err := c.locator.wait(ctx)
	if err != nil {
		return nil, c.giveUp("run job "+name, err, nil, false)
	}
	resp, err := maintain(ctx, &Node{node: t.node}, "run job "+name, &pb.RunJobRequest{Name: name},
		pb.MaintenanceServiceClient.RunJob)
	return resp.GetRun(), err
}

// RunningSettings tells which settings can be changed while the nodes run, and what they are on this node.
func (n *Node) RunningSettings(ctx context.Context) ([]*pb.RunningSetting, error) {
	resp, err := maintain(ctx, n, "list the settings", &pb.ListSettingsRequest{},
		pb.MaintenanceServiceClient.ListSettings)
	return resp.GetSettings(), err
}

// ChangeRunningSettings is that of the client, asked of this node: for min-in-sync any node will do, also while none is
// active.
func (n *Node) ChangeRunningSettings(ctx context.Context, req *pb.ChangeSettingsRequest) ([]*pb.RunningSetting, error) {
	resp, err := maintain(ctx, n, "change the settings", req, pb.MaintenanceServiceClient.ChangeSettings)
	return resp.GetSettings(), err
}

// ChangeRunningSettings changes settings while the nodes run, and returns what they are then on the active node.
// Errors: ErrInvalid when there is no such setting or a value cannot be used, ErrRefused when the state of the pair
// does not allow it now.
func (c *Client) ChangeRunningSettings(
	ctx context.Context, req *pb.ChangeSettingsRequest,
) ([]*pb.RunningSetting, error) {
	resp, err := onActive(ctx, c, "change the settings", req, pb.MaintenanceServiceClient.ChangeSettings)
	return resp.GetSettings(), err
}
