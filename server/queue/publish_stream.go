// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/proto/codec"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/access"
	"github.com/lockstep-mq/lockstep/server/serving"
	"github.com/lockstep-mq/lockstep/server/tracing"
	"github.com/lockstep-mq/lockstep/server/wire"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// streamCall is one request of a publish stream on its way. They are answered in the order in which they were sent.
type streamCall struct {
	stream      *publishStream
	correlation uint64
	queue       string
	producer    *pb.Producer
	weight      int64                         // of the requests that came together, with the last of them
	done        chan replication.CommitResult // capacity 1: the applier must not wait
	span        *tracing.Span                 // nil if the request is not traced
}

// end takes the outcome of the request's transaction. It does not block.
func (c *streamCall) end(r *txn.Result, err error) {
	if err != nil && wire.ConcernsNode(err) {
		// before a later request of the stream can be submitted to a node that has recovered
		c.stream.broken.Store(true)
	}
	if c.span != nil {
		c.trace(r, err)
	}
	c.done <- replication.CommitResult{Result: r, Err: err}
}

// trace ends the span of the request, with its outcome.
func (c *streamCall) trace(r *txn.Result, err error) {
	if err == nil {
		c.span.Number(lsnAttribute, r.LSN)
		err = wire.Refusal(r, false)
	}
	c.span.End(time.Now(), err)
}

// traceEarly ends the span, if there is one, of a request that goes no further.
func (c *streamCall) traceEarly(r *txn.Result, err error) {
	if c.span != nil {
		c.trace(r, err)
	}
}

// publishStream is one PublishStream call: a goroutine reads and submits, the handler's own one answers.
type publishStream struct {
	server  *Service
	session *serving.Session
	stream  grpc.BidiStreamingServer[pb.PublishStreamRequest, pb.PublishStreamResponse]
	// calls, in order, of the capacity inFlight. It is made before began is closed, when there is something to receive: a
	// stream that sends nothing, or is cancelled at once, costs little.
	calls    chan *streamCall
	began    chan struct{}
	inFlight int
	room     *semaphore.Weighted
	bytes    int64      // of room
	failed   chan error // why reading ended; capacity 1
	// takesMore: the client takes several answers in one message.
	takesMore atomic.Bool
	held      *streamCall // was received from calls and is not answered
	// promised is how many requests are in calls, or are submitted and on their way there.
	promised atomic.Int64
	caller   caller
	// lost is closed when the caller may not go on.
	lost    chan struct{}
	losing  sync.Once
	lostErr error // set before lost is closed
	// broken: a request has ended with what ends the stream, which the client hears when its turn comes. What comes
	// after it is not submitted: the client sends both again, and they must be committed in its order.
	broken atomic.Bool

	submitMu sync.Mutex // is held while requests are submitted; guards all below
	// ended: nothing more is submitted.
	ended bool
	// through is the correlation of the last request that was submitted.
	through uint64
	// unnumbered: a request was submitted that has no correlation, so that through says nothing.
	unnumbered bool
}

// PublishStream pipelines publishes. Requests of one stream are submitted in order, so they commit in order.
func (s *Service) PublishStream(
	stream grpc.BidiStreamingServer[pb.PublishStreamRequest, pb.PublishStreamResponse],
) error {
	session, err := s.serving.Session()
	if err != nil {
		return wire.WithSubmitted(s.status(err), 0)
	}
	limits := s.limits.Load()
	p := &publishStream{
		server: s, session: session, stream: stream,
		began: make(chan struct{}), inFlight: limits.StreamInFlight,
		room:   semaphore.NewWeighted(int64(limits.StreamInFlightBytes)),
		bytes:  int64(limits.StreamInFlightBytes),
		failed: make(chan error, 1), lost: make(chan struct{}),
		caller: s.callerOf(stream.Context()),
	}
	p.caller.begin(access.Publish, p.lose, nil)
	defer p.caller.end()
	// The reader ends when this call returns: that ends the stream's context and with it Recv, Acquire and Submit.
	go p.read(stream.Context())
	return p.end(p.answer())
}

// end makes the status that the stream ends with. It says how far the stream has come, unless requests are being
// submitted at this moment.
func (p *publishStream) end(err error) error {
	st := p.server.status(err)
	switch {
	case st == nil:
		return nil
	case errors.Is(err, wire.ErrSplit):
		p.submitMu.Lock() // nothing is submitted behind the request: it is held for a moment only
	case !p.submitMu.TryLock():
		return st
	}
	defer p.submitMu.Unlock()
	p.ended = true
	if p.unnumbered {
		return st
	}
	return wire.WithSubmitted(st, p.through)
}

// errStreamBroken ends reading after a request whose own error ends the stream.
var errStreamBroken = fmt.Errorf("%w: an earlier request of this stream was not carried out", replication.ErrBlocked)

// maxMore is how many requests may come with another one, and how many answers go with another one.
const maxMore = 256

// read submits the requests as they come. What is wrong with one request is its answer; what is wrong with the node
// ends the stream, since the client has to find the active first.
func (p *publishStream) read(ctx context.Context) {
	var b publishBatch
	var received codec.ReceivedPublish
	err := p.stream.RecvMsg(&received)
	if err != nil {
		p.inFlight = 0 // nothing comes
	}
	p.calls = make(chan *streamCall, p.inFlight)
	defer close(p.calls)
	close(p.began)
	for ; ; err = p.stream.RecvMsg(&received) {
		if err == nil {
			err = p.accept(ctx, &b, &received.Request)
			received.Reset()
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				p.failed <- err
			}
			return
		}
		for _, call := range b.calls {
			select {
			case p.calls <- call:
			case <-ctx.Done():
				return
			}
		}
		if !p.waitForRoom(ctx, &b) {
			return
		}
		hold(ctx, b.wait, p.session.Ended())
	}
}

// waitForRoom waits, when a request has taken all of the stream's room, until there is some: the next one would have to
// wait all the same, and would be in memory meanwhile. It returns false when the stream has ended.
func (p *publishStream) waitForRoom(ctx context.Context, b *publishBatch) bool {
	limit := p.bytes
	if len(b.calls) == 0 || b.calls[len(b.calls)-1].weight < limit {
		return true
	}
	if p.room.Acquire(ctx, limit) != nil {
		return false
	}
	p.room.Release(limit)
	p.server.awaitRoom(ctx, b.bytes) // before there is as much again
	return true
}

// publishBatch is requests that came together. It is used again for the next ones.
type publishBatch struct {
	calls []*streamCall
	// items are the transactions of some of them, one behind the other in buf; ends is where each ends.
	items []replication.Item
	ends  []int
	// refs are the large bodies of items, which are where they were received; refEnds is where those of each end.
	refs    []txn.Ref
	refEnds []int
	// messages is how many there are in items, and bytes how long those are.
	messages, bytes int
	// wait is how long the next ones are to be held back.
	wait time.Duration
}

// endTraces ends the spans of requests that were not submitted.
func (b *publishBatch) endTraces(err error) {
	for _, call := range b.calls {
		call.traceEarly(nil, err)
	}
}

func (b *publishBatch) reset() {
	clear(b.calls)
	clear(b.items)
	clear(b.refs)
	b.refs, b.refEnds = b.refs[:0], b.refEnds[:0]
	b.calls, b.items, b.ends = b.calls[:0], b.items[:0], b.ends[:0]
	b.messages, b.bytes, b.wait = 0, 0, 0
}

// accept submits a request and those that came with it. The error ends the stream.
func (p *publishStream) accept(ctx context.Context, b *publishBatch, req *pb.PublishStreamRequest) error {
	if req.GetTakesMore() {
		p.takesMore.Store(true)
	}
	if n := len(req.GetMore()); n > maxMore {
		return fmt.Errorf("%w: %d requests with another one; %d are possible", wire.ErrInvalid, n, maxMore)
	}
	buf := p.server.buffer()
	defer p.server.release(buf)
	b.reset()
	split := p.prepare(ctx, b, buf, req)
	for _, r := range req.GetMore() {
		if len(r.GetMore()) > 0 {
			return fmt.Errorf("%w: a request that came with another one has requests with it", wire.ErrInvalid)
		}
		if split {
			break // nothing behind it is carried out
		}
		split = p.prepare(ctx, b, buf, r)
	}
	if split {
		defer p.broken.Store(true) // when those before it are submitted
	}
	if len(b.items) == 0 {
		p.promised.Add(int64(len(b.calls)))
		return nil
	}
	b.bytes = b.join(*buf)
	weight := min(int64(b.bytes), p.bytes)
	if err := p.room.Acquire(ctx, weight); err != nil {
		b.endTraces(err)
		return fmt.Errorf("wait for earlier requests of the stream: %w", err)
	}
	b.calls[len(b.calls)-1].weight = weight // is answered last
	submit := p.submit
	if weight == p.bytes {
		submit = p.submitLarge
	}
	if err := submit(ctx, b); err != nil {
		b.endTraces(err)
		return err
	}
	p.session.Consumers.Published(b.messages, b.bytes)
	return nil
}

// submitLarge is submit for what takes turns.
func (p *publishStream) submitLarge(ctx context.Context, b *publishBatch) error {
	done, err := p.server.beginLarge(ctx, b.bytes)
	if err != nil {
		return err
	}
	last := &b.items[len(b.items)-1]
	end := last.Done
	last.Done = func(r *txn.Result, err error) {
		done()
		end(r, err)
	}
	if err := p.submit(ctx, b); err != nil {
		done()
		return err
	}
	return nil
}

// join gives the items their parts of buf and of refs, and returns how many bytes they have.
func (b *publishBatch) join(buf []byte) (bytes int) {
	from, fromRef := 0, 0
	for i, end := range b.ends {
		refs := b.refs[fromRef:b.refEnds[i]]
		for k := range refs {
			refs[k].At -= from
			bytes += len(refs[k].Data)
		}
		b.items[i].Payload, b.items[i].Refs = buf[from:end], refs
		from, fromRef = end, b.refEnds[i]
	}
	return bytes + len(buf)
}

// submit gives the primary what is in b, all or nothing.
func (p *publishStream) submit(ctx context.Context, b *publishBatch) error {
	p.submitMu.Lock()
	defer p.submitMu.Unlock()
	if p.ended || p.broken.Load() {
		return errStreamBroken
	}
	err := p.session.Primary.SubmitAll(ctx, b.items)
	clear(b.items) // the buffer goes with them; the next request may be long in coming
	clear(b.refs)
	b.items, b.refs = b.items[:0], b.refs[:0]
	if err != nil {
		return err
	}
	p.promised.Add(int64(len(b.calls)))
	for _, call := range b.calls {
		p.through = call.correlation
		p.unnumbered = p.unnumbered || p.through == 0
	}
	return nil
}

// prepare makes a call of a request and encodes its transaction, if it needs one. split: the client must send the
// request again in parts, and the stream ends with it.
func (p *publishStream) prepare(
	ctx context.Context, b *publishBatch, buf *[]byte, req *pb.PublishStreamRequest,
) (split bool) {
	publish := req.GetPublish()
	call := &streamCall{
		stream: p, correlation: req.GetCorrelation(), queue: publish.GetQueue(), producer: publish.GetProducer(),
		done: make(chan replication.CommitResult, 1),
	}
	b.calls = append(b.calls, call)
	if publish == nil {
		call.done <- replication.CommitResult{Err: fmt.Errorf("%w: the request has no `publish`", wire.ErrInvalid)}
		return false
	}
	if t := p.server.tracing; t != nil {
		call.span = t.Publish(ctx, publish.GetQueue(), publish.GetMessages())
	}
	prior, wait, err := p.server.encodePublish(p.session, buf, &b.refs, publish, &p.caller)
	b.wait = max(b.wait, wait)
	switch {
	case err != nil:
		// Of a retry, the first attempt may have been carried out: it has one outcome.
		if split = publish.GetSplits() && !publish.GetProducer().GetRetry() && splittable(err); split {
			err = fmt.Errorf("%w: %w", wire.ErrSplit, err)
		}
		call.done <- replication.CommitResult{Err: err}
		call.traceEarly(nil, err)
		return split
	case prior != nil:
		call.done <- replication.CommitResult{Result: &prior.Result}
		call.traceEarly(&prior.Result, nil)
		return false
	}
	item := replication.Item{Done: call.end}
	if call.span != nil {
		item.Span = call.span
	}
	b.items = append(b.items, item)
	b.ends, b.refEnds = append(b.ends, len(*buf)), append(b.refEnds, len(b.refs))
	b.messages += len(publish.GetMessages())
	return false
}

// answer sends the answers in order until the client has no more requests and all are answered.
func (p *publishStream) answer() error {
	first := true
	for {
		call, err := p.nextCall()
		if call == nil {
			return err
		}
		resp, err := p.response(call)
		if err != nil {
			return err
		}
		resp.TakesMore, first = first, false
		if p.takesMore.Load() {
			if err := p.addReady(resp); err != nil {
				return err
			}
		}
		if err := p.stream.Send(resp); err != nil {
			return fmt.Errorf("answer a publish: %w", err)
		}
	}
}

// nextCall waits for the next request; nil and why when there is none any more.
func (p *publishStream) nextCall() (*streamCall, error) {
	if call := p.held; call != nil {
		p.held = nil
		return call, nil
	}
	if !p.hasBegun() {
		return nil, p.session.Reason()
	}
	select {
	case call, more := <-p.calls:
		if !more {
			return nil, p.whyEnded()
		}
		p.promised.Add(-1)
		return call, nil
	case <-p.session.Ended():
		return p.answered(), p.session.Reason()
	case <-p.lost:
		return p.submitted(), p.lostErr
	}
}

// addReady adds the next answers, as far as they are known.
func (p *publishStream) addReady(resp *pb.PublishStreamResponse) error {
	for len(resp.GetMore()) < maxMore {
		select {
		case call, more := <-p.calls:
			if !more {
				return nil // nextCall finds out
			}
			p.promised.Add(-1)
			if len(call.done) == 0 {
				p.held = call
				return nil
			}
			next, err := p.response(call)
			if err != nil {
				return err
			}
			resp.More = append(resp.More, next)
		default:
			return nil
		}
	}
	return nil
}

// whyEnded returns why reading ended; nil when the client was done.
func (p *publishStream) whyEnded() error {
	select {
	case <-p.lost:
		return p.lostErr
	default:
	}
	select {
	case err := <-p.failed:
		return err
	default:
		return nil
	}
}

// response waits for the outcome of a request and makes its answer. The error ends the stream.
func (p *publishStream) response(call *streamCall) (*pb.PublishStreamResponse, error) {
	o, err := p.session.Primary.Await(p.stream.Context(), call.done)
	if err != nil {
		return nil, fmt.Errorf("publish stream: %w", err)
	}
	if call.weight > 0 {
		p.room.Release(call.weight)
	}
	resp := &pb.PublishStreamResponse{Correlation: call.correlation}
	if err = o.Err; err == nil {
		resp.Published, err = published(call.queue, call.producer, o.Result)
	}
	if err != nil {
		if wire.ConcernsNode(err) {
			return nil, err
		}
		resp.Error = wire.ToRequestError(err)
	}
	return resp, nil
}
