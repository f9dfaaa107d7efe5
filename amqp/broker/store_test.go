// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
)

// store is a node that stores the bodies of published messages in memory.
type store struct {
	node

	called chan struct{} // capacity 1: a call waits for hold
	hold   chan struct{} // publishes and confirmations wait until it is closed

	commitErrors []error // errors of the first commits
	createError  error   // error of CreateQueue

	mu      sync.Mutex // guards the fields below
	queues  map[string][]string
	created []string
	acked   []uint64
	credits []uint32
	commits []*pb.CommitRequest
}

func newStore(queues ...string) *store {
	s := &store{called: make(chan struct{}, 1), hold: make(chan struct{}), queues: map[string][]string{}}
	for _, q := range queues {
		s.queues[q] = nil
	}
	return s
}

// open makes the store respond without waiting.
func (s *store) open() *store {
	close(s.hold)
	return s
}

func (s *store) wait(ctx context.Context) error {
	poke(s.called)
	select {
	case <-s.hold:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *store) stored(queue string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.queues[queue]...)
}

func (s *store) remove(queue string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.queues, queue)
}

func refused(code codes.Code, why string) error {
	st, err := status.New(code, why).WithDetails(&errdetails.ErrorInfo{Domain: reason.Domain, Reason: why})
	if err != nil {
		return err
	}
	return st.Err()
}

func (s *store) GetQueue(_ context.Context, req *pb.GetQueueRequest) (*pb.GetQueueResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.queues[req.GetName()]; !ok {
		return nil, refused(codes.NotFound, "QUEUE_NOT_FOUND")
	}
	return &pb.GetQueueResponse{Queue: &pb.Queue{Name: req.GetName()}}, nil
}

func (s *store) CreateQueue(_ context.Context, req *pb.CreateQueueRequest) (*pb.CreateQueueResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.createError != nil {
		return nil, s.createError
	}
	s.created = append(s.created, req.GetName())
	if _, ok := s.queues[req.GetName()]; !ok {
		s.queues[req.GetName()] = nil
	}
	return &pb.CreateQueueResponse{}, nil
}

func (s *store) PublishStream(
	stream grpc.BidiStreamingServer[pb.PublishStreamRequest, pb.PublishStreamResponse],
) error {
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, one := range append([]*pb.PublishStreamRequest{req}, req.GetMore()...) {
			if err := s.wait(stream.Context()); err != nil {
				return err
			}
			resp := s.publish(one.GetPublish())
			resp.Correlation = one.GetCorrelation()
			if err := stream.Send(resp); err != nil {
				return err
			}
		}
	}
}

func (s *store) publish(req *pb.PublishRequest) *pb.PublishStreamResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	list, ok := s.queues[req.GetQueue()]
	if !ok {
		return &pb.PublishStreamResponse{Error: &pb.RequestError{
			Code: uint32(codes.NotFound), Reason: "QUEUE_NOT_FOUND", Message: "queue not found",
		}}
	}
	for _, m := range req.GetMessages() {
		list = append(list, string(m.GetBody()))
	}
	s.queues[req.GetQueue()] = list
	return &pb.PublishStreamResponse{Published: &pb.PublishResponse{}}
}

// Consume delivers each message of the queue once, and records acknowledgements before it confirms them.
func (s *store) Consume(stream grpc.BidiStreamingServer[pb.ConsumeRequest, pb.ConsumeResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := stream.Send(&pb.ConsumeResponse{Attached: true, QueueId: 1}); err != nil {
		return err
	}
	next, credit := 0, uint32(0)
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		resp := &pb.ConsumeResponse{}
		if credit += req.GetCredit(); req.GetCredit() > 0 {
			s.mu.Lock()
			s.credits = append(s.credits, req.GetCredit())
			s.mu.Unlock()
		}
		for _, body := range s.stored(first.GetAttach().GetQueue())[next:] {
			if credit == 0 {
				break
			}
			next, credit = next+1, credit-1
			resp.Messages = append(resp.Messages, &pb.StoredMessage{
				Sequence: uint64(next), Message: &pb.Message{Body: []byte(body)},
			})
		}
		if len(resp.GetMessages()) > 0 {
			if err := stream.Send(resp); err != nil {
				return err
			}
		}
		if err := s.settle(stream, req); err != nil {
			return err
		}
		if req.GetDrain() == 0 {
			continue
		}
		if err := s.wait(stream.Context()); err != nil {
			return err
		}
		if err := stream.Send(&pb.ConsumeResponse{Drained: req.GetDrain(), DrainedCredit: credit}); err != nil {
			return err
		}
		credit = 0
	}
}

func (s *store) settle(
	stream grpc.BidiStreamingServer[pb.ConsumeRequest, pb.ConsumeResponse], req *pb.ConsumeRequest,
) error {
	if req.GetConfirm() == 0 && len(req.GetAck()) == 0 {
		return nil
	}
	if err := s.wait(stream.Context()); err != nil {
		return err
	}
	s.mu.Lock()
	for _, r := range req.GetAck() {
		for n := r.GetFirst(); n <= r.GetLast(); n++ {
			s.acked = append(s.acked, n)
		}
	}
	s.mu.Unlock()
	if req.GetConfirm() == 0 {
		return nil
	}
	return stream.Send(&pb.ConsumeResponse{Confirmed: req.GetConfirm()})
}

func (s *store) Commit(ctx context.Context, req *pb.CommitRequest) (*pb.CommitResponse, error) {
	if err := s.wait(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commits = append(s.commits, req)
	if n := len(s.commits); n <= len(s.commitErrors) {
		return nil, s.commitErrors[n-1]
	}
	for _, op := range req.GetOperations() {
		if p := op.GetPublish(); p != nil {
			if _, ok := s.queues[p.GetQueue()]; !ok {
				return nil, refused(codes.NotFound, "QUEUE_NOT_FOUND")
			}
		}
	}
	for _, op := range req.GetOperations() {
		for _, m := range op.GetPublish().GetMessages() {
			q := op.GetPublish().GetQueue()
			s.queues[q] = append(s.queues[q], string(m.GetBody()))
		}
	}
	return &pb.CommitResponse{}, nil
}
