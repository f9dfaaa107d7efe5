// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/observe/history"
)

// SetHistory sets the recorder of the values that GetHistory returns. It must be called before the service is used.
func (s *Service) SetHistory(h *history.Recorder) { s.history = h }

// GetHistory returns the recorded values of a queue or of the pair.
func (s *Service) GetHistory(ctx context.Context, req *pb.GetHistoryRequest) (*pb.GetHistoryResponse, error) {
	resp, err := s.getHistory(ctx, req)
	return resp, s.status(err)
}

func (s *Service) getHistory(ctx context.Context, req *pb.GetHistoryRequest) (*pb.GetHistoryResponse, error) {
	if req.GetQueue() != "" {
		if err := s.maySee(ctx, req.GetQueue()); err != nil {
			return nil, err
		}
	}
	if _, err := s.serving.Session(); err != nil {
		return nil, err
	}
	since := history.Recent
	if req.GetSince() != nil {
		since = req.GetSince().AsDuration()
	}
	if req.GetSince().CheckValid() != nil && req.GetSince() != nil || since <= 0 || since > history.Day {
		return nil, fmt.Errorf("%w: `since` must be more than 0 and at most %s", apierror.ErrInvalid, history.Day)
	}
	id := uint64(0)
	if req.GetQueue() != "" {
		var err error
		if id, err = s.find(req.GetQueue()); err != nil {
			return nil, err
		}
	}
	interval, points := s.history.Points(id, since, time.Now())
	resp := &pb.GetHistoryResponse{
		Interval: durationpb.New(interval), Points: make([]*pb.HistoryPoint, len(points)),
	}
	for i := range points {
		resp.Points[i] = pointToProto(&points[i])
	}
	return resp, nil
}

func pointToProto(p *history.Point) *pb.HistoryPoint {
	out := &pb.HistoryPoint{At: timestamppb.New(p.At), Messages: uint64(p.Messages), Bytes: uint64(p.Bytes)}
	for _, v := range []struct {
		to   **float64
		from float64
	}{
		{&out.PublishedPerSecond, p.Published},
		{&out.DeliveredPerSecond, p.Delivered},
		{&out.AcknowledgedPerSecond, p.Acknowledged},
	} {
		if !math.IsNaN(v.from) {
			*v.to = new(v.from)
		}
	}
	if p.OldestAge > 0 { // false for NaN
		out.OldestAge = durationpb.New(time.Duration(p.OldestAge * float64(time.Second)).Round(time.Millisecond))
	}
	return out
}
