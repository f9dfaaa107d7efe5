// SPDX-License-Identifier: Apache-2.0

package protoconv

import (
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/observe/history"
)

// HistoryToProto converts the history of one queue.
func HistoryToProto(c *history.Copied) *pb.CopyHistoryResponse {
	return &pb.CopyHistoryResponse{
		QueueId: c.Queue, Traffic: c.Traffic, Recent: rangeToProto(c.Recent), Day: rangeToProto(c.Day),
	}
}

func rangeToProto(r history.Range) *pb.HistoryRange {
	return &pb.HistoryRange{First: r.First, Values: r.Values}
}

// HistoryFromProto is the inverse of HistoryToProto.
func HistoryFromProto(c *pb.CopyHistoryResponse) history.Copied {
	return history.Copied{
		Queue: c.GetQueueId(), Traffic: c.GetTraffic(), Recent: rangeFromProto(c.GetRecent()),
		Day: rangeFromProto(c.GetDay()),
	}
}

func rangeFromProto(r *pb.HistoryRange) history.Range {
	return history.Range{First: r.GetFirst(), Values: r.GetValues()}
}
