package server

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// outcome is how a request of a stream ended.
type outcome struct {
	result *txn.Result
	err    error
}

// streamCall is one request of a publish stream on its way. They are answered in the order in which they were sent.
type streamCall struct {
	correlation uint64
	queue       string
	producer    *pb.Producer
	weight      int64
	done        chan outcome // capacity 1: the applier must not wait
}

// publishStream is one PublishStream call: a goroutine reads and submits, the handler's own one answers.
type publishStream struct {
	server  *QueueServer
	session *Session
	stream  grpc.BidiStreamingServer[pb.PublishStreamRequest, pb.PublishStreamResponse]
	calls   chan *streamCall // in order; its capacity is limits.stream-in-flight
	room    *semaphore.Weighted
	failed  chan error // why reading ended; capacity 1
}

// PublishStream pipelines publishes. Requests of one stream are submitted in order, so they commit in order.
func (s *QueueServer) PublishStream(stream grpc.BidiStreamingServer[pb.PublishStreamRequest, pb.PublishStreamResponse]) error {
	session, err := s.node.Session()
	if err != nil {
		return s.status(err)
	}
	p := &publishStream{
		server: s, session: session, stream: stream,
		calls:  make(chan *streamCall, s.limits.StreamInFlight),
		room:   semaphore.NewWeighted(int64(s.limits.StreamInFlightBytes)),
		failed: make(chan error, 1),
	}
	// The reader ends when this call returns: that ends the stream's context and with it Recv, Acquire and Submit.
	go p.read(stream.Context())
	return s.status(p.answer())
}

// read submits the requests as they come. What is wrong with one request is its answer; what is wrong with the node ends
// the stream, since the client has to find the active first.
func (p *publishStream) read(ctx context.Context) {
	defer close(p.calls)
	for {
		req, err := p.stream.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				p.failed <- err
			}
			return
		}
		call, err := p.accept(ctx, req)
		if err != nil {
			p.failed <- err
			return
		}
		select {
		case p.calls <- call:
		case <-ctx.Done():
			return
		}
	}
}

// accept submits one request. The error ends the stream.
func (p *publishStream) accept(ctx context.Context, req *pb.PublishStreamRequest) (*streamCall, error) {
	publish := req.GetPublish()
	call := &streamCall{
		correlation: req.GetCorrelation(), queue: publish.GetQueue(), producer: publish.GetProducer(), done: make(chan outcome, 1),
	}
	if publish == nil {
		call.done <- outcome{err: fmt.Errorf("%w: the request has no `publish`", ErrInvalid)}
		return call, nil
	}
	buf := p.server.buffer()
	defer p.server.release(buf)
	prior, err := p.server.encodePublish(buf, publish)
	if err != nil || prior != nil {
		call.done <- outcome{result: prior, err: err}
		return call, nil
	}
	weight := min(int64(len(*buf)), int64(p.server.limits.StreamInFlightBytes))
	if err := p.room.Acquire(ctx, weight); err != nil {
		return nil, fmt.Errorf("wait for earlier requests of the stream: %w", err)
	}
	call.weight = weight
	err = p.session.Primary.Submit(ctx, *buf, func(r *txn.Result, err error) { call.done <- outcome{r, err} })
	if err != nil {
		return nil, err
	}
	p.session.Consumers.Published(len(publish.GetMessages()), len(*buf))
	return call, nil
}

// answer sends the answers in order until the client has no more requests and all are answered.
func (p *publishStream) answer() error {
	for {
		select {
		case call, more := <-p.calls:
			if !more {
				return p.whyEnded()
			}
			if err := p.answerOne(call); err != nil {
				return err
			}
		case <-p.session.Ended():
			return p.session.Reason()
		}
	}
}

// whyEnded returns why reading ended; nil when the client was done.
func (p *publishStream) whyEnded() error {
	select {
	case err := <-p.failed:
		return err
	default:
		return nil
	}
}

// outcome waits for the outcome of a request.
func (p *publishStream) outcome(call *streamCall) (outcome, error) {
	primary := p.session.Primary
	for {
		select {
		case o := <-call.done:
			return o, nil
		case <-primary.ApplyTurns():
			primary.TakeApplyTurn()
		case <-p.stream.Context().Done():
			return outcome{}, fmt.Errorf("publish stream: %w", p.stream.Context().Err())
		}
	}
}

func (p *publishStream) answerOne(call *streamCall) error {
	o, err := p.outcome(call)
	if err != nil {
		return err
	}
	p.room.Release(call.weight)
	resp := &pb.PublishStreamResponse{Correlation: call.correlation}
	if err = o.err; err == nil {
		resp.Published, err = published(&pb.PublishRequest{Queue: call.queue, Producer: call.producer}, o.result)
	}
	if err != nil {
		if concernsNode(err) {
			return err
		}
		resp.Error = ToRequestError(err)
	}
	if err := p.stream.Send(resp); err != nil {
		return fmt.Errorf("answer a publish: %w", err)
	}
	return nil
}
