// SPDX-License-Identifier: Apache-2.0

package wire

import (
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
	"github.com/lockstep-mq/lockstep/store/pager"
)

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

// PageMapToProto converts a page map.
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
