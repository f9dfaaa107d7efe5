// SPDX-License-Identifier: Apache-2.0

package protoconv

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/pager"
	"github.com/lockstep-mq/lockstep/store/throttle"
)

// Uint32 converts a small number, such as a page size. It converts a negative number to 0.
func Uint32(n int) uint32 { return uint32(max(n, 0)) }

func timeToProto(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func intFromProto(v *uint32) *int {
	if v == nil {
		return nil
	}
	return new(int(*v))
}

// SettingsToProto converts the maintenance settings.
func SettingsToProto(s *maintenance.Settings) *pb.MaintenanceSettings {
	return &pb.MaintenanceSettings{
		PageSizeCurrent: Uint32(s.PageSizeCurrent), PageSizeRecommended: Uint32(s.PageSizeRecommended),
		PageSizeMax:     Uint32(s.PageSizeMax),
		ResizeOnStartup: s.ResizeOnStartup, CompactOnStartup: s.CompactOnStartup, BackupPath: s.BackupPath,
		BackupKeepGenerations: Uint32(s.BackupKeep),
	}
}

// ChangeFromProto converts a change of settings. It does not validate the values.
func ChangeFromProto(r *pb.UpdateSettingsRequest) maintenance.Change {
	return maintenance.Change{
		PageSizeMax: intFromProto(r.PageSizeMax), ResizeOnStartup: r.ResizeOnStartup, CompactOnStartup: r.CompactOnStartup,
		BackupPath: r.BackupPath, BackupKeep: intFromProto(r.BackupKeepGenerations),
	}
}

// ProgressToProto converts the progress of an operation.
func ProgressToProto(p *checkpoint.Progress) *pb.Progress {
	if p == nil {
		return nil
	}
	out := &pb.Progress{Phase: p.Phase, DoneBytes: p.Bytes, TotalBytes: p.TotalBytes, Messages: p.Messages}
	if p.Left > 0 {
		out.Eta = durationpb.New(p.Left)
	}
	return out
}

// ProgressFromProto converts the progress of an operation of the other node.
func ProgressFromProto(p *pb.Progress) checkpoint.Progress {
	return checkpoint.Progress{
		Phase: p.GetPhase(), Bytes: p.GetDoneBytes(), TotalBytes: p.GetTotalBytes(), Messages: p.GetMessages(),
		Left: p.GetEta().AsDuration(),
	}
}

// ActivityToProto converts the operation in progress. It returns nil if a is nil.
func ActivityToProto(a *maintenance.Activity) *pb.MaintenanceActivity {
	if a == nil {
		return nil
	}
	return &pb.MaintenanceActivity{
		Operation: a.Operation, Since: timestamppb.New(a.Since), Progress: ProgressToProto(&a.Progress), PlanId: a.PlanID,
	}
}

// ActivityFromProto converts the operation in progress on the other node. It returns nil if a is nil.
func ActivityFromProto(a *pb.MaintenanceActivity) *maintenance.Activity {
	if a == nil {
		return nil
	}
	return &maintenance.Activity{
		Operation: a.GetOperation(), Since: a.GetSince().AsTime(), Progress: ProgressFromProto(a.GetProgress()),
		PlanID: a.GetPlanId(),
	}
}

// ScanToProto converts the result of a scan.
func ScanToProto(r *checkpoint.ScanResult) *pb.ScanResult {
	out := &pb.ScanResult{
		Recommended: Uint32(r.Recommended), Current: Uint32(r.PageSize), FileBytes: r.FileBytes,
		GainBytes: uint64(max(r.GainBytes, 0)), Messages: r.Messages, MessageBytes: r.MessageBytes, Note: r.Note,
		Time: timeToProto(r.Time),
	}
	for _, b := range r.Histogram {
		out.Histogram = append(out.Histogram, &pb.SizeBucket{
			FromBytes: uint64(max(b.FromBytes, 0)), ToBytes: uint64(max(b.ToBytes, 0)), Messages: b.Messages, Bytes: b.Bytes,
		})
	}
	for _, c := range r.Candidates {
		out.Candidates = append(out.Candidates, &pb.PageSizeCandidate{
			PageSize: Uint32(c.PageSize), FileBytes: c.FileBytes, Pages: c.Pages, WasteBytes: c.WasteBytes, Runs: c.Extents,
		})
	}
	if len(r.Problems) > 0 {
		out.Note += fmt.Sprintf(" %d messages are corrupt; first problem: %s", r.DamagedMessages, r.Problems[0])
	}
	return out
}

// ScanFromProto converts the fields of a scan result that jobs use.
func ScanFromProto(r *pb.ScanResult) checkpoint.ScanResult {
	out := checkpoint.ScanResult{
		Recommended: int(r.GetRecommended()), PageSize: int(r.GetCurrent()), FileBytes: r.GetFileBytes(),
		GainBytes: int64(min(r.GetGainBytes(), 1<<62)),
		Messages:  r.GetMessages(), MessageBytes: r.GetMessageBytes(), Note: r.GetNote(),
	}
	for _, c := range r.GetCandidates() {
		out.Candidates = append(out.Candidates, checkpoint.Candidate{
			PageSize: int(c.GetPageSize()), FileBytes: c.GetFileBytes(), Pages: c.GetPages(),
			WasteBytes: c.GetWasteBytes(), Extents: c.GetRuns(),
		})
	}
	return out
}

// RewriteToProto converts the actual or the expected result of a rewrite.
func RewriteToProto(r *maintenance.RewriteResult) *pb.RewriteResult {
	return &pb.RewriteResult{
		PageSizeBefore: Uint32(r.PageSizeBefore), PageSizeAfter: Uint32(r.PageSizeAfter), FileBytesBefore: r.FileBytesBefore,
		FileBytesAfter: r.FileBytesAfter, NeededBytes: r.NeededBytes, AvailableBytes: r.AvailableBytes, Messages: r.Messages,
		Took: durationpb.New(r.Duration),
	}
}

// RewriteFromProto converts the result of a rewrite of the other node.
func RewriteFromProto(r *pb.RewriteResult) maintenance.RewriteResult {
	return maintenance.RewriteResult{
		PageSizeBefore: int(r.GetPageSizeBefore()), PageSizeAfter: int(r.GetPageSizeAfter()),
		FileBytesBefore: r.GetFileBytesBefore(),
		FileBytesAfter:  r.GetFileBytesAfter(), NeededBytes: r.GetNeededBytes(), AvailableBytes: r.GetAvailableBytes(),
		Messages: r.GetMessages(), Duration: r.GetTook().AsDuration(),
	}
}

// SetToProto converts the description of a backup.
func SetToProto(s *backup.Set) *pb.SaveSet {
	out := &pb.SaveSet{Name: s.Name, Path: s.Path, Complete: s.Complete}
	if s.Problem != nil {
		out.Problem = s.Problem.Error()
	}
	if !s.Complete {
		return out
	}
	m := &s.Manifest
	out.CreatedAt, out.Position, out.PageSize = timeToProto(m.Created), PositionToProto(m.Position), Uint32(m.PageSize)
	if m.Encryption != nil {
		out.Recipients = m.Encryption.Recipients
	}
	for _, f := range m.Files {
		out.Bytes += uint64(max(f.Bytes, 0))
	}
	return out
}

// SetFromProto converts the fields of a backup that jobs use.
func SetFromProto(s *pb.SaveSet) backup.Set {
	return backup.Set{Name: s.GetName(), Path: s.GetPath(), Complete: s.GetComplete()}
}

// PlanKindFromProto converts the kind of a plan. It returns "" for a kind that this release does not support.
func PlanKindFromProto(k pb.PlanKind) maintenance.PlanKind {
	for _, kind := range []maintenance.PlanKind{maintenance.PlanResize, maintenance.PlanCompact, maintenance.PlanRestart} {
		if planKindToProto(kind) == k {
			return kind
		}
	}
	return ""
}

func planKindToProto(k maintenance.PlanKind) pb.PlanKind {
	return pb.PlanKind(pb.PlanKind_value["PLAN_KIND_"+enumName(string(k))])
}

func planStateToProto(s maintenance.PlanState) pb.PlanState {
	return pb.PlanState(pb.PlanState_value["PLAN_STATE_"+enumName(string(s))])
}

func enumName(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "-", "_")) }

// PlanToProto converts a plan. It returns nil if p is nil.
func PlanToProto(p *maintenance.Plan) *pb.Plan {
	if p == nil {
		return nil
	}
	out := &pb.Plan{
		Id: p.ID, Kind: planKindToProto(p.Kind), PageSize: Uint32(p.PageSize), SwitchBack: p.SwitchBack,
		State:  planStateToProto(p.State),
		Reason: p.Reason, FirstActive: p.FirstActive.String(), Progress: ProgressToProto(p.Progress),
		StartedAt: timeToProto(p.StartedAt), EndedAt: timeToProto(p.EndedAt), Retries: Uint32(p.Retries),
	}
	for _, n := range p.Done {
		out.DoneNodes = append(out.DoneNodes, n.Node.String())
	}
	if p.Node != uuid.Nil {
		out.Node = p.Node.String()
	}
	return out
}

// JobToProto converts a job and its history.
func JobToProto(j *maintenance.JobInfo) *pb.Job {
	out := &pb.Job{
		Name: j.Name, Schedule: j.Schedule, Kind: j.Kind, On: j.On, Paused: j.Paused, NextRun: timeToProto(j.NextRun),
	}
	for i := range j.History {
		out.History = append(out.History, RunToProto(&j.History[i]))
	}
	return out
}

// RunToProto converts a run of a job.
func RunToProto(r *maintenance.Run) *pb.JobRun {
	out := &pb.JobRun{StartedAt: timeToProto(r.StartedAt), Outcome: r.Outcome, Detail: r.Detail, Node: r.Node}
	if r.Outcome != maintenance.RunRunning {
		out.Took = durationpb.New(r.Duration)
	}
	return out
}

// ReportFromProto converts the report of the other node.
func ReportFromProto(r *pb.ReportNodeRequest) (maintenance.Report, error) {
	id, err := uuid.Parse(r.GetNodeId())
	if err != nil {
		return maintenance.Report{}, fmt.Errorf("%w: node_id: %w", apierror.ErrInvalid, err)
	}
	return maintenance.Report{Node: id, Recommended: int(r.GetPageSizeRecommended()), StartupID: r.GetStartupId()}, nil
}

// Paced returns ctx. If the request disables throttling, the returned context also disables it.
func Paced(ctx context.Context, req interface{ GetFullSpeed() bool }) context.Context {
	if req.GetFullSpeed() {
		return throttle.FullSpeed(ctx)
	}
	return ctx
}

// VerifiedToProto converts the result of a backup verification.
func VerifiedToProto(r *maintenance.VerifyReport) *pb.VerifyBackupResult {
	out := &pb.VerifyBackupResult{Set: SetToProto(&r.Set), Restorable: r.Problem == nil, Archive: r.Archive}
	if r.Problem != nil {
		out.Problem, out.Archive = r.Problem.Error(), ""
		return out
	}
	out.Messages, out.Pages, out.Bytes = r.Verified.Messages, r.Verified.Pages, r.Verified.Bytes
	out.NeededBytes, out.Reach, out.ReachTime = r.NeededBytes, PositionToProto(r.End), timeToProto(r.EndTime)
	if r.ArchiveProblem != nil {
		out.ArchiveProblem = r.ArchiveProblem.Error()
	}
	return out
}

// PageMapToProto converts the page map of a page file.
func PageMapToProto(m *pager.PageMap) *pb.GetPageMapResponse {
	out := &pb.GetPageMapResponse{
		PageSize: Uint32(m.PageSize), Total: regionToProto(&m.Total), FreeTail: m.FreeTail, Readers: Uint32(m.Readers),
	}
	for i := range m.Regions {
		out.Regions = append(out.Regions, regionToProto(&m.Regions[i]))
	}
	return out
}

func regionToProto(r *pager.PageRegion) *pb.PageRegion {
	return &pb.PageRegion{
		FirstPage: uint64(r.First), Pages: r.Pages, Messages: r.Messages(), Index: r.Index, Bitmap: r.Bitmap,
		HeldCheckpoint: r.Held - r.HeldByReaders, HeldReader: r.HeldByReaders, Free: r.Free(),
	}
}
