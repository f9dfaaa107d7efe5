// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const responseRecords = 100 // maximum number of records in a response

// Service implements lockstep.v1.AuditService with the audit log of a node.
type Service struct {
	pb.UnimplementedAuditServiceServer

	log     *Log
	closing <-chan struct{}
}

// NewService creates the service. Streams end when closing is closed.
func NewService(l *Log, closing <-chan struct{}) *Service { return &Service{log: l, closing: closing} }

// TailAudit sends the newest records. If requested, it also sends new records as they are added.
func (s *Service) TailAudit(req *pb.TailAuditRequest, stream grpc.ServerStreamingServer[pb.TailAuditResponse]) error {
	next := s.log.Newest(uint64(req.GetLast()))
	for {
		records, now, missed, more := s.log.Read(next)
		next = now
		if err := send(stream, req, records, missed); err != nil || !req.GetFollow() {
			return err
		}
		select {
		case <-more:
		case <-s.closing:
			return nil
		case <-stream.Context().Done():
			return nil
		}
	}
}

func send(
	stream grpc.ServerStreamingServer[pb.TailAuditResponse], req *pb.TailAuditRequest, records []Record, missed uint64,
) error {
	resp := &pb.TailAuditResponse{Missed: missed}
	for i := range records {
		if r := &records[i]; wanted(req, r) {
			resp.Records = append(resp.Records, toProto(r))
		}
		if len(resp.GetRecords()) < responseRecords && i < len(records)-1 {
			continue
		}
		if len(resp.GetRecords()) == 0 && resp.GetMissed() == 0 {
			continue
		}
		if err := stream.Send(resp); err != nil {
			return fmt.Errorf("send records: %w", err)
		}
		resp = &pb.TailAuditResponse{}
	}
	return nil
}

func wanted(req *pb.TailAuditRequest, r *Record) bool {
	if p := req.GetPrincipal(); p != "" && !txn.MatchGlob(p, r.Principal) {
		return false
	}
	m := strings.TrimPrefix(req.GetMethod(), "/")
	return m == "" || txn.MatchGlob(m, r.Method) || txn.MatchGlob(m, path.Base(r.Method))
}

// FromProto converts a record of the API.
func FromProto(r *pb.AuditRecord) Record {
	return Record{
		Time: r.GetTime().AsTime(), Node: r.GetNode(), Principal: r.GetPrincipal(), Groups: r.GetGroups(),
		Shown: r.GetAuthentication(), Address: r.GetAddress(), Method: r.GetMethod(), Object: r.GetObject(),
		Arguments: json.RawMessage(r.GetArguments()),
		Outcome:   strings.ToLower(strings.TrimPrefix(r.GetOutcome().String(), "AUDIT_OUTCOME_")),
		Code:      r.GetCode(), Error: r.GetError(), LSN: r.GetLsn(),
		DurationMS: float64(r.GetTook().AsDuration().Microseconds()) / 1000, Repeated: r.GetRepeated(),
	}
}

func toProto(r *Record) *pb.AuditRecord {
	outcome := pb.AuditOutcome(pb.AuditOutcome_value["AUDIT_OUTCOME_"+strings.ToUpper(r.Outcome)])
	return &pb.AuditRecord{
		Time: timestamppb.New(r.Time), Node: r.Node, Principal: r.Principal, Groups: r.Groups, Authentication: r.Shown,
		Address: r.Address, Method: r.Method, Object: r.Object, Arguments: string(r.Arguments), Outcome: outcome,
		Code: r.Code, Error: r.Error, Lsn: r.LSN,
		Took: durationpb.New(time.Duration(r.DurationMS * float64(time.Millisecond))), Repeated: r.Repeated,
	}
}
