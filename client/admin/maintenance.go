// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"iter"

	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/client/internal/link"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func maintain[Req, Resp any](
	ctx context.Context, n *Node, op string, req *Req,
	method func(pb.MaintenanceServiceClient, context.Context, *Req, ...grpc.CallOption) (*Resp, error),
) (*Resp, error) {
	resp, err := method(pb.NewMaintenanceServiceClient(n.node.Conn()), ctx, req)
	if err != nil {
		return nil, n.fail(ctx, op, err)
	}
	return resp, nil
}

type progressing[Result any] interface {
	GetProgress() *pb.Progress
	comparable
}

// follow calls a method that streams progress on this node, until the method returns a result. When ctx ends, the call
// is canceled.
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
	stream, err := method(pb.NewMaintenanceServiceClient(n.node.Conn()), ctx, req)
	if err != nil {
		return none, n.fail(ctx, op, err)
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return none, n.fail(ctx, op, err)
		}
		if r := result(P(resp)); r != none {
			return r, nil
		}
		if p := P(resp).GetProgress(); p != nil && progress != nil {
			progress(p)
		}
	}
}

// Scan reads a snapshot of this node's page file and recommends a page size. progress may be nil. Errors include
// [ErrBusy], [client.ErrInvalid].
func (n *Node) Scan(ctx context.Context, req *pb.ScanRequest, progress func(*pb.Progress)) (*pb.ScanResult, error) {
	return follow(ctx, n, "scan", req, progress, pb.MaintenanceServiceClient.Scan, (*pb.ScanResponse).GetResult)
}

// Rewrite rewrites the page file of this node. The node must be a standby, which stays in sync, or a standalone node
// that does not serve clients yet. If ctx ends first, the page file remains unchanged. progress may be nil. Errors
// include [client.ErrRefused] on the active, [ErrBusy], [ErrRoleChanged], [ErrNoSpace], [client.ErrDataLoss] for a
// corrupt page.
func (n *Node) Rewrite(
	ctx context.Context, req *pb.RewriteRequest, progress func(*pb.Progress),
) (*pb.RewriteResult, error) {
	return follow(ctx, n, "rewrite", req, progress, pb.MaintenanceServiceClient.Rewrite,
		(*pb.RewriteResponse).GetResult)
}

// Backup writes a backup of a snapshot of this node to a path on the node. progress may be nil. Errors include
// [client.ErrRefused] if no backup path is configured, [ErrBusy], [ErrNoSpace], [client.ErrDataLoss].
func (n *Node) Backup(ctx context.Context, req *pb.BackupRequest, progress func(*pb.Progress)) (*pb.SaveSet, error) {
	return follow(ctx, n, "backup", req, progress, pb.MaintenanceServiceClient.Backup, (*pb.BackupResponse).GetSet)
}

// Shrink moves a bounded amount of content from the end of the page file of this node into gaps, and truncates the
// file. With dryRun, the file is not changed, and the response contains the expected size. Errors include [ErrBusy].
func (n *Node) Shrink(ctx context.Context, dryRun bool) (*pb.ShrinkResponse, error) {
	return maintain(ctx, n, "shrink", &pb.ShrinkRequest{DryRun: dryRun}, pb.MaintenanceServiceClient.Shrink)
}

// Backups lists the backups of this node in path, or in the configured location if path is empty. The list is sorted
// newest first, and includes incomplete backups.
func (n *Node) Backups(ctx context.Context, path string) ([]*pb.SaveSet, error) {
	resp, err := maintain(ctx, n, "list backups", &pb.ListBackupsRequest{Path: path},
		pb.MaintenanceServiceClient.ListBackups)
	return resp.GetSets(), err
}

// VerifyBackup reads a backup of this node and reports whether it can be restored. A corrupt backup is reported in
// the result, not as an error. progress may be nil. Errors include [ErrBackupNotFound], [client.ErrRefused] if no
// backup path is configured or the backup is encrypted, [ErrBusy].
func (n *Node) VerifyBackup(
	ctx context.Context, req *pb.VerifyBackupRequest, progress func(*pb.Progress),
) (*pb.VerifyBackupResult, error) {
	return follow(ctx, n, "verify a backup", req, progress, pb.MaintenanceServiceClient.VerifyBackup,
		(*pb.VerifyBackupResponse).GetResult)
}

// PageMap returns the usage of the page file of this node, in at most the given number of regions; 0 means 256.
// Errors include [client.ErrInvalid] for more than 4,096 regions.
func (n *Node) PageMap(ctx context.Context, regions uint32) (*pb.GetPageMapResponse, error) {
	return maintain(ctx, n, "page map", &pb.GetPageMapRequest{Regions: regions},
		pb.MaintenanceServiceClient.GetPageMap)
}

// DropOld deletes the files replaced by the last rewrite or installed snapshot, and returns their size in bytes.
// Errors include [ErrBusy].
func (n *Node) DropOld(ctx context.Context) (uint64, error) {
	resp, err := maintain(ctx, n, "drop old files", &pb.DropOldRequest{}, pb.MaintenanceServiceClient.DropOld)
	return resp.GetBytes(), err
}

// FlushArchive archives the log of this node up to its current end, and returns the position of the archive. Errors
// include [client.ErrRefused] if this node has no archive.
func (n *Node) FlushArchive(ctx context.Context) (*pb.FlushArchiveResponse, error) {
	return maintain(ctx, n, "flush archive", &pb.FlushArchiveRequest{}, pb.MaintenanceServiceClient.FlushArchive)
}

// Settings returns the maintenance settings of the pair as known to this node, with the page size of this node.
func (n *Node) Settings(ctx context.Context) (*pb.MaintenanceSettings, error) {
	resp, err := maintain(ctx, n, "settings", &pb.GetSettingsRequest{}, pb.MaintenanceServiceClient.GetSettings)
	return resp.GetSettings(), err
}

func onActive[Req, Resp any](
	ctx context.Context, c *Client, op string, req *Req,
	method func(pb.MaintenanceServiceClient, context.Context, *Req, ...grpc.CallOption) (*Resp, error),
) (*Resp, error) {
	return call(ctx, c.conns.Repeat, op, req, maintenanceService, method)
}

func maintenanceService(cc *grpc.ClientConn) pb.MaintenanceServiceClient {
	return pb.NewMaintenanceServiceClient(cc)
}

// MaintenanceSettings returns the maintenance settings of the pair, with the page size of the active node.
func (c *Client) MaintenanceSettings(ctx context.Context) (*pb.MaintenanceSettings, error) {
	resp, err := onActive(ctx, c, "settings", &pb.GetSettingsRequest{}, pb.MaintenanceServiceClient.GetSettings)
	return resp.GetSettings(), err
}

// UpdateMaintenanceSettings changes the settings of the pair that are present in the request. Errors include
// [client.ErrInvalid].
func (c *Client) UpdateMaintenanceSettings(
	ctx context.Context, req *pb.UpdateSettingsRequest,
) (*pb.MaintenanceSettings, error) {
	resp, err := onActive(ctx, c, "change settings", req, pb.MaintenanceServiceClient.UpdateSettings)
	return resp.GetSettings(), err
}

// StartPlan starts a rolling operation, which runs on the standby first and, after a switchover, on the other node.
// It returns when the plan has started; see [Client.WatchPlan]. If the connection broke during the call, [ErrBusy]
// may mean that the plan was started. Errors include ErrBusy while another plan runs, [client.ErrRefused],
// [client.ErrInvalid].
func (c *Client) StartPlan(ctx context.Context, req *pb.StartPlanRequest) (*pb.Plan, error) {
	resp, err := onActive(ctx, c, "start the plan", req, pb.MaintenanceServiceClient.StartPlan)
	return resp.GetPlan(), err
}

// CancelPlan stops the pair's plan at the next safe point. Errors include [ErrNoPlan].
func (c *Client) CancelPlan(ctx context.Context) (*pb.Plan, error) {
	resp, err := onActive(ctx, c, "cancel the plan", &pb.CancelPlanRequest{}, pb.MaintenanceServiceClient.CancelPlan)
	return resp.GetPlan(), err
}

// Plan returns the last plan of the pair, which may be running or ended. It returns nil if no plan was ever started.
func (c *Client) Plan(ctx context.Context) (plan *pb.Plan, err error) {
	for p, err := range c.WatchPlan(ctx) {
		return p, err
	}
	return nil, nil
}

// WatchPlan returns an iterator over the states of the plan: the current one, and then each change until the plan has
// ended. A state may be repeated. The iteration continues after a failover and ends after the first error. If no plan
// was ever started, the only element is nil.
func (c *Client) WatchPlan(ctx context.Context) iter.Seq2[*pb.Plan, error] {
	return func(yield func(*pb.Plan, error) bool) {
		err := c.conns.Read(ctx, "watch the plan", link.Target{}, func(ctx context.Context, cc *grpc.ClientConn) error {
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
			return err //nolint:wrapcheck // asError reads it
		})
		if err != nil {
			yield(nil, err)
		}
	}
}

// PlanEnded reports whether a plan is done, failed or canceled.
func PlanEnded(p *pb.Plan) bool {
	switch p.GetState() {
	case pb.PlanState_PLAN_STATE_DONE, pb.PlanState_PLAN_STATE_FAILED, pb.PlanState_PLAN_STATE_CANCELLED:
		return true
	default:
		return false
	}
}

// Jobs returns the pair's scheduled jobs, sorted by name, each with its last runs.
func (c *Client) Jobs(ctx context.Context) ([]*pb.Job, error) {
	resp, err := onActive(ctx, c, "list jobs", &pb.ListJobsRequest{}, pb.MaintenanceServiceClient.ListJobs)
	return resp.GetJobs(), err
}

// PutJob creates a job, or replaces the job with the same name. Errors include [client.ErrInvalid], [client.ErrLimit]
// if the maximum number of jobs exists.
func (c *Client) PutJob(ctx context.Context, job *pb.Job) (*pb.Job, error) {
	resp, err := onActive(ctx, c, "put job "+job.GetName(), &pb.PutJobRequest{Job: job},
		pb.MaintenanceServiceClient.PutJob)
	return resp.GetJob(), err
}

// DeleteJob deletes a job and its history. A run in progress continues. Errors include [ErrNoJob].
func (c *Client) DeleteJob(ctx context.Context, name string) error {
	_, err := onActive(ctx, c, "delete job "+name, &pb.DeleteJobRequest{Name: name},
		pb.MaintenanceServiceClient.DeleteJob)
	return err
}

// RunJob runs a job now and returns when the run has finished. For a job of the kind compact, it returns when the
// plan has started. The call is not retried when the connection breaks. The failure of the job is not an error of
// this call: check the outcome of the run. Errors include [ErrNoJob], [ErrBusy] while the job runs.
func (c *Client) RunJob(ctx context.Context, name string) (*pb.JobRun, error) {
	n, err := c.conns.Active(ctx, "run job "+name)
	if err != nil {
		return nil, err
	}
	resp, err := pb.NewMaintenanceServiceClient(n.Conn()).RunJob(ctx, &pb.RunJobRequest{Name: name})
	return resp.GetRun(), (&Node{node: n}).failChange(ctx, "run job "+name, err)
}

// RunningSettings returns the settings that can be changed at run time, with their values on this node.
func (n *Node) RunningSettings(ctx context.Context) ([]*pb.RunningSetting, error) {
	resp, err := maintain(ctx, n, "list the settings", &pb.ListSettingsRequest{},
		pb.MaintenanceServiceClient.ListSettings)
	return resp.GetSettings(), err
}

// ChangeRunningSettings is like [Client.ChangeRunningSettings], but sends the request to this node, which forwards it
// to the active. min-in-sync can be changed even while no node is active.
func (n *Node) ChangeRunningSettings(ctx context.Context, req *pb.ChangeSettingsRequest) ([]*pb.RunningSetting, error) {
	resp, err := pb.NewMaintenanceServiceClient(n.node.Conn()).ChangeSettings(ctx, req)
	return resp.GetSettings(), n.failChange(ctx, "change the settings", err)
}

// ChangeRunningSettings changes settings at run time, on both nodes or on the node in the request, and returns their
// values on the active node. Errors include [client.ErrInvalid] for an unknown setting or an invalid value,
// [client.ErrRefused] if the state of the pair does not allow the change.
func (c *Client) ChangeRunningSettings(
	ctx context.Context, req *pb.ChangeSettingsRequest,
) ([]*pb.RunningSetting, error) {
	resp, err := onActive(ctx, c, "change the settings", req, pb.MaintenanceServiceClient.ChangeSettings)
	return resp.GetSettings(), err
}
