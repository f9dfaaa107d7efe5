// SPDX-License-Identifier: Apache-2.0

// Package admin implements lockstep.v1.AdminService, which returns the status of a node and changes the state of the
// pair.
package admin

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/server/observe/history"
	"github.com/lockstep-mq/lockstep/server/observe/nodestatus"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
	"github.com/lockstep-mq/lockstep/server/ops/scrub"
	"github.com/lockstep-mq/lockstep/server/peerclient"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

const (
	switchoverTimeout = 10 * time.Second
	// statusInterval is the interval at which WatchStatus sends the status without a change.
	statusInterval = time.Second
	checkInterval  = 200 * time.Millisecond
)

// Options configures New.
type Options struct {
	Store   *store.Store
	Runner  *failover.Runner
	Manager *maintenance.Manager
	Peers   *peerclient.Peers
	Guard   *scrub.Guard
	State   func() nodestatus.Node
	// Switchover makes the given node active. uuid.Nil selects the node that is not active.
	Switchover func(ctx context.Context, to uuid.UUID) (failover.SwitchoverResult, error)
	Closing    <-chan struct{} // closed when the node is about to stop
	Alone      bool            // the node is standalone
	History    *history.Recorder
	// Site returns the site role of the pair, or nil if the pair has no sites.
	Site func() *pb.SiteInfo
	// NotFound returns the error for a queue that this pair does not have. In a fleet, the error contains the owner if
	// the owner is known. Optional.
	NotFound func(queue string) error
	Logger   *zap.Logger
}

// Service implements lockstep.v1.AdminService.
type Service struct {
	pb.UnimplementedAdminServiceServer

	o     Options
	store *store.Store
}

// New creates the service.
func New(o Options) *Service { return &Service{o: o, store: o.Store} }

// GetStatus returns the status of the node.
func (a *Service) GetStatus(context.Context, *pb.GetStatusRequest) (*pb.GetStatusResponse, error) {
	resp, err := a.status()
	return resp, apierror.ToStatus(err)
}

func (a *Service) status() (*pb.GetStatusResponse, error) {
	stats, err := a.store.Stats()
	if err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	st := a.o.State()
	resp := &pb.GetStatusResponse{
		Node: nodeStatus(&st.Pair, st.Pair.Self), Role: pb.Role(st.Pair.Role), Reason: st.Pair.Reason,
		Store: storeStatus(a.store.Identity(), &stats), Version: st.Version, StartedAt: timestamppb.New(st.StartedAt),
		Maintenance: protoconv.ActivityToProto(st.Maintenance), Plan: protoconv.PlanToProto(st.Plan),
		Damage:     protoconv.DamageToProto(a.store.Repair().Status()),
		Alarms:     protoconv.AlarmsToProto(st.Conditions, st.Pair.Self.ID.String()),
		Conditions: protoconv.ConditionsToProto(st.Conditions, st.Pair.Self.ID.String()), Now: timestamppb.Now(),
		DiskLowWatermark: st.DiskLowWatermark, Activity: activity(&st.Activity, &stats), Console: st.Console,
		Site: a.o.Site(), Fleet: fleetStatus(st.Fleet),
	}
	for _, c := range st.Certificates {
		resp.Certificates = append(resp.Certificates, &pb.CertificateStatus{
			Use: c.Use, File: c.File, Ca: c.CA, Subject: c.Subject, Ends: timestamppb.New(c.Ends),
		})
	}
	resp.Store.UnusedFiles = a.unusedFiles(st.ArchiveDir)
	switch {
	case st.Primary != nil:
		resp.Store.CommitLsn = st.Primary.CommitLSN
		resp.Standby = standbyStatus(st.Primary, &st.Pair)
	case st.Follower != nil:
		resp.Store.CommitLsn = min(st.Follower.ActiveCommitLSN, stats.Durable.LSN)
	}
	if st.Coordinator != "none" && st.Pair.Record != nil {
		resp.Pair = pairStatus(&st)
	}
	return resp, nil
}

// unusedFiles returns the files that an operator may remove, as far as they can be listed.
func (a *Service) unusedFiles(archive string) []*pb.UnusedFile {
	left, err := a.store.LeftBehind()
	if err != nil {
		a.o.Logger.Debug("quarantined stores cannot be listed", zap.Error(err))
	}
	if archive != "" {
		formerPeers, err := backup.PreviousArchives(vfs.OS(), archive)
		if err != nil {
			a.o.Logger.Debug("log archive cannot be listed", zap.Error(err))
		}
		for _, dir := range formerPeers {
			n, err := datadir.SizeOf(vfs.OS(), dir)
			if err != nil {
				continue // the directory was removed in the meantime
			}
			left = append(left, datadir.LeftBehind{Path: dir, Kind: "other-archive", Bytes: n})
		}
	}
	out := make([]*pb.UnusedFile, len(left))
	for i, l := range left {
		out[i] = &pb.UnusedFile{Path: l.Path, Kind: l.Kind, Bytes: l.Bytes}
	}
	return out
}

func nodeStatus(st *failover.Status, n failover.NodeInfo) *pb.NodeStatus {
	out := &pb.NodeStatus{
		NodeId: n.ID.String(), Name: n.Name, Address: n.Address, Live: st.IsLive(n.ID), Version: n.Version,
	}
	if st.Record != nil {
		_, out.InSync = st.Record.Member(n.ID)
		out.Active = st.Record.Active == n.ID
	}
	return out
}

func pairStatus(st *nodestatus.Node) *pb.PairStatus {
	r := st.Pair.Record
	out := &pb.PairStatus{
		PairId: r.PairID.String(), Config: r.Config, Term: r.Term, MinInSync: uint32(r.MinInSync),
		Coordinator: st.Coordinator, CoordinatorReachable: st.Pair.CoordinatorReachable,
		CoordinatorAddresses: st.CoordinatorAddresses,
	}
	if r.Paused != nil {
		out.Paused = &pb.Pause{Since: timestamppb.New(r.Paused.Since), Reason: r.Paused.Reason}
	}
	if f := r.Forced; f != nil {
		out.Forced = &pb.Forced{
			At: timestamppb.New(f.At), By: f.By, Reason: f.Reason, NodeId: f.Node.String(), Term: f.Term,
			AfterLsn: f.After, Settled: f.Settled,
		}
	}
	if at := st.Pair.FailbackAt; !at.IsZero() {
		out.FailbackAt = timestamppb.New(at)
	}
	for _, n := range knownNodes(&st.Pair) {
		out.Nodes = append(out.Nodes, nodeStatus(&st.Pair, n))
	}
	return out
}

// knownNodes returns the nodes of the pair from the record and the announcements.
func knownNodes(st *failover.Status) []failover.NodeInfo {
	nodes := slices.Clone(st.Record.Nodes)
	add := func(n failover.NodeInfo) {
		at := slices.IndexFunc(nodes, func(o failover.NodeInfo) bool { return o.ID == n.ID })
		switch {
		case at < 0:
			nodes = append(nodes, n)
		case n.Address != "":
			nodes[at] = n
		}
	}
	for _, m := range st.Record.InSync {
		add(failover.NodeInfo{ID: m.Node})
	}
	for _, l := range st.Live {
		add(l.Node)
	}
	return nodes
}

func storeStatus(id datadir.Identity, s *store.Stats) *pb.StoreStatus {
	pair := ""
	if id.PairID != uuid.Nil {
		pair = id.PairID.String()
	}
	return &pb.StoreStatus{
		PairId: pair, FenceConfig: id.Fence.Config, FenceTerm: id.Fence.Term, MayHaveLost: id.MayHaveLost,
		StoreId: id.StoreID.String(),
		LogEnd:  protoconv.PositionToProto(s.End), LogDurable: protoconv.PositionToProto(s.Durable), CommitLsn: s.Applied.LSN,
		AppliedLsn: s.Applied.LSN, LogFirstLsn: s.FirstLSN, CheckpointLsn: s.CheckpointLSN, Checkpoint: s.Checkpoint,
		PageSize: uint32(s.PageSize), Pages: s.Pages, PagesUsed: s.PagesUsed, Queues: s.Queues,
		Messages: s.Messages, MessageBytes: s.MessageBytes, LogBytes: uint64(max(s.LogBytes, 0)), Sync: s.Sync,
		DiskFree: s.DiskFree, DiskSize: s.DiskTotal,
	}
}

func activity(a *nodestatus.Activity, s *store.Stats) *pb.Activity {
	out := &pb.Activity{
		Published: s.Counts.Published, PublishedBytes: s.Counts.PublishedBytes, Delivered: a.Delivered,
		Acknowledged: s.Counts.Acknowledged, Transactions: s.Counts.Transactions,
		Consumers: uint64(a.Consumers), Connections: uint64(a.Connections),
		MemoryBytes: a.Memory, MemoryBudgetBytes: a.MemoryBudget,
	}
	for _, b := range a.Commits {
		out.Commits = append(out.Commits, &pb.LatencyBucket{UpTo: durationpb.New(b.UpTo), Count: b.Count})
	}
	return out
}

func standbyStatus(p *replication.PrimaryStatus, st *failover.Status) *pb.StandbyStatus {
	s := p.Standby
	if s == nil {
		return nil
	}
	out := &pb.StandbyStatus{
		NodeId: s.Member.Node.String(), DurableLsn: s.Durable.LSN, State: "catching-up",
		LagBytes: s.LagBytes, LagTime: durationpb.New(s.LagTime),
	}
	if s.Durable.LSN < p.End.LSN {
		out.LagRecords = p.End.LSN - s.Durable.LSN
	}
	inSync := false
	if st.Record != nil {
		m, ok := st.Record.Member(s.Member.Node)
		inSync = ok && m.Store == s.Member.Store && m.Incarnation == s.Member.Incarnation
	}
	switch {
	case s.Required && inSync:
		out.State = "in-sync"
	case s.Required:
		out.State = "syncing"
	}
	return out
}

// WatchStatus sends the status immediately, after each change of the failover state, and once per second. It ends
// when the client cancels it or the node stops.
func (a *Service) WatchStatus(
	_ *pb.WatchStatusRequest, stream grpc.ServerStreamingServer[pb.WatchStatusResponse],
) error {
	ticker := time.NewTicker(statusInterval)
	defer ticker.Stop()
	for {
		changed := a.o.Runner.Changed() // read before the status, so that no change is missed
		st, err := a.status()
		if err != nil {
			return apierror.ToStatus(err)
		}
		if err := stream.Send(&pb.WatchStatusResponse{Status: st}); err != nil {
			return apierror.ToStatus(fmt.Errorf("watch status: %w", err))
		}
		select {
		case <-changed:
		case <-ticker.C:
		case <-a.o.Closing:
			return apierror.ToStatus(fmt.Errorf("watch status: node is stopping: %w", store.ErrClosed))
		case <-stream.Context().Done():
			return apierror.ToStatus(stream.Context().Err())
		}
	}
}

// SetPaused pauses or resumes automatic failover.
func (a *Service) SetPaused(ctx context.Context, req *pb.SetPausedRequest) (*pb.SetPausedResponse, error) {
	if len(req.GetReason()) > maxTextBytes {
		return nil, apierror.ToStatus(fmt.Errorf("%w: reason has %d bytes, maximum is %d", apierror.ErrInvalid,
			len(req.GetReason()), maxTextBytes))
	}
	resp := &pb.SetPausedResponse{}
	var p *failover.Pause
	if req.GetPaused() {
		p = &failover.Pause{Since: time.Now().UTC().Truncate(time.Second), Reason: req.GetReason()}
		resp.Paused = &pb.Pause{Since: timestamppb.New(p.Since), Reason: p.Reason}
	}
	if a.o.Alone {
		return nil, apierror.ToStatus(fmt.Errorf("%w: node is standalone, without a standby", failover.ErrPause))
	}
	if err := a.o.Runner.SetPaused(ctx, p); err != nil {
		return nil, apierror.ToStatus(err)
	}
	return resp, nil
}

// Checkpoint writes a checkpoint of this node's page file.
func (a *Service) Checkpoint(ctx context.Context, _ *pb.CheckpointRequest) (*pb.CheckpointResponse, error) {
	info, err := a.store.Checkpoint(ctx)
	if err != nil {
		return nil, apierror.ToStatus(fmt.Errorf("checkpoint: %w", err))
	}
	return &pb.CheckpointResponse{Checkpoint: info.Checkpoint, Lsn: info.Position.LSN}, nil
}

// Check writes a checkpoint of this node's store and verifies it. It sends its progress and its findings.
func (a *Service) Check(req *pb.CheckRequest, stream grpc.ServerStreamingServer[pb.CheckResponse]) error {
	var sendErr error
	var reported time.Time
	ctx, cancel := context.WithCancel(protoconv.Paced(stream.Context(), req))
	defer cancel()
	progress := func(done, total uint64) {
		if sendErr != nil || time.Since(reported) < checkInterval {
			return
		}
		reported = time.Now()
		if sendErr = stream.Send(&pb.CheckResponse{PagesDone: done, PagesTotal: total}); sendErr != nil {
			cancel()
		}
	}
	var report checkpoint.Report
	err := a.store.ReadCheckpoint(ctx, store.ReadOptions{}, func(c *checkpoint.Checkpoint) (err error) {
		report, err = c.Check(ctx, progress)
		return err
	})
	if err := errors.Join(sendErr, err); err != nil {
		return apierror.ToStatus(fmt.Errorf("check: %w", err))
	}
	err = stream.Send(&pb.CheckResponse{
		PagesDone: report.Pages, PagesTotal: report.Pages, Finished: true, Problems: report.Problems,
		Messages: report.Messages,
	})
	if err != nil {
		return apierror.ToStatus(fmt.Errorf("check: %w", err))
	}
	return nil
}

// GetDigest returns a digest of the logical content of this node's store at a record. It reads the whole store.
func (a *Service) GetDigest(ctx context.Context, req *pb.GetDigestRequest) (*pb.GetDigestResponse, error) {
	d, err := a.o.Manager.Digest(ctx, req.GetAtLsn())
	if err != nil {
		return nil, apierror.ToStatus(fmt.Errorf("digest: %w", err))
	}
	return &pb.GetDigestResponse{Lsn: d.Position.LSN, Content: hex.EncodeToString(d.Content[:]), Messages: d.Messages},
		nil
}

// CopyHistory sends the recorded history of this node from the requested time on, or all of it if the request has no
// time.
func (a *Service) CopyHistory(
	req *pb.CopyHistoryRequest, stream grpc.ServerStreamingServer[pb.CopyHistoryResponse],
) error {
	since := time.Time{}
	if req.GetSince() != nil {
		since = req.GetSince().AsTime()
	}
	for _, c := range a.o.History.Copy(since) {
		if err := stream.Send(protoconv.HistoryToProto(&c)); err != nil {
			return apierror.ToStatus(fmt.Errorf("copy the history: %w", err))
		}
	}
	return nil
}
