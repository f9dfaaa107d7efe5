// SPDX-License-Identifier: Apache-2.0

package historycheck

import (
	"context"
	"sync"

	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// WatchStreams is an interceptor that records each stream on which the client package consumes, because the package
// does not report them. It includes streams that end before their first delivery.
func (h *History) WatchStreams(
	ctx context.Context, d *grpc.StreamDesc, conn *grpc.ClientConn, method string, next grpc.Streamer,
	o ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := next(ctx, d, conn, method, o...)
	if err != nil || method != pb.QueueService_Consume_FullMethodName {
		return s, err
	}
	return &watchedStream{ClientStream: s, h: h}, nil
}

// watchedStream records the start and the end of a stream.
type watchedStream struct {
	grpc.ClientStream

	h     *History
	mu    sync.Mutex // guards ended: one goroutine sends, another one receives
	ended func()     // nil while no stream is open
}

// SendMsg implements grpc.ClientStream. It records the start of the stream before the node receives the request.
func (s *watchedStream) SendMsg(m any) error {
	if r, ok := m.(*pb.ConsumeRequest); ok && r.GetAttach() != nil {
		ended := s.h.AddStream(r.GetAttach().GetQueue(), r.GetAttach().GetSubscription())
		s.mu.Lock()
		s.ended = ended
		s.mu.Unlock()
	}
	return s.ClientStream.SendMsg(m)
}

// RecvMsg implements grpc.ClientStream. It records the end of the stream.
func (s *watchedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.ended != nil {
			s.ended()
			s.ended = nil
		}
	}
	return err
}
