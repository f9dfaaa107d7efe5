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
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/server/observe/tracing"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// streamCall is a pending request. Requests are answered in the order of their arrival.
type streamCall struct {
	stream      *publishStream
	correlation uint64
	queue       string
	producer    *pb.Producer
	weight      int64                         // weight of all requests of a batch; set only in its last request
	done        chan replication.CommitResult // capacity 1: the applier must not block
	span        *tracing.Span                 // nil if the request is not traced
	missing     error                         // error if the request is refused in the log because its queue is missing
}

// end passes on the outcome of the request. If the outcome requires that, it also marks the stream as broken or the
// queue as fenced. It does not block.
func (c *streamCall) end(r *txn.Result, err error) {
	if err != nil && apierror.ConcernsNode(err) {
		// Set broken before a later request of the stream can be submitted to the recovered node.
		c.stream.broken.Store(true)
	}
	if r != nil && (r.Code == txn.ErrMoved || r.Duplicate && r.Code == txn.ErrQueueNotFound && c.missing == nil) {
		c.stream.fenced.add(c.queue)
	}
	c.trace(r, err)
	c.done <- replication.CommitResult{Result: r, Err: err}
}

func (c *streamCall) trace(r *txn.Result, err error) {
	if c.span == nil {
		return
	}
	if err == nil {
		c.span.Number(lsnAttribute, r.LSN)
		err = apierror.Refusal(r, false)
	}
	c.span.End(time.Now(), err)
}

// publishStream is a PublishStream call. One goroutine reads and submits requests, and the goroutine of the
// handler responds.
type publishStream struct {
	server  *Service
	session *session.Session
	stream  grpc.BidiStreamingServer[pb.PublishStreamRequest, pb.PublishStreamResponse]
	// calls contains the pending requests in order; its capacity is inFlight. It is created for the first request,
	// before began is closed.
	calls       chan *streamCall
	began       chan struct{}
	inFlight    int
	room        *semaphore.Weighted
	bytes       int64       // capacity of room
	failed      chan error  // error that ended the reader; capacity 1
	acceptsMore atomic.Bool // the client accepts several responses in one message
	held        *streamCall // received from calls and not yet answered
	// queued is the number of requests that are in calls, or that were submitted and will be added to calls.
	queued atomic.Int64
	caller caller
	// lost is closed when the caller has lost its right. lostErr is set before.
	lost          chan struct{}
	disconnecting sync.Once
	lostErr       error
	// broken is set when a request fails with an error that ends the stream. Later requests are not submitted.
	broken atomic.Bool
	// refused contains the errors of queues of other pairs. Only the reader uses it.
	refused refusedQueues
	fenced  fencedQueues

	submitMu   sync.Mutex // held while requests are submitted; guards the fields below
	ended      bool       // no more requests are submitted
	through    uint64     // correlation of the last submitted request
	unnumbered bool       // a request without a correlation was submitted, so through is invalid
}

// PublishStream pipelines publishes. Requests of one stream commit in order.
func (s *Service) PublishStream(
	stream grpc.BidiStreamingServer[pb.PublishStreamRequest, pb.PublishStreamResponse],
) error {
	session, err := s.serving.Session()
	if err != nil {
		return apierror.WithSubmitted(s.status(err), 0)
	}
	limits := s.limits.Load()
	p := &publishStream{
		server: s, session: session, stream: stream, began: make(chan struct{}), inFlight: limits.StreamInFlight,
		room: semaphore.NewWeighted(int64(limits.StreamInFlightBytes)), bytes: int64(limits.StreamInFlightBytes),
		failed: make(chan error, 1), lost: make(chan struct{}), caller: s.callerOf(stream.Context()),
	}
	p.caller.begin(access.Publish, p.lose, nil)
	defer p.caller.end()
	// The reader ends when this call returns: the context of the stream then ends.
	go p.read(stream.Context())
	return p.end(p.answer())
}

// end returns the status that ends the stream. The status contains the progress of the stream, unless requests are
// being submitted.
func (p *publishStream) end(err error) error {
	st := p.server.status(err)
	switch {
	case st == nil:
		return nil
	case errors.Is(err, apierror.ErrSplit):
		p.submitMu.Lock() // held only briefly, because no requests follow the refused request
	case !p.submitMu.TryLock():
		return st
	}
	defer p.submitMu.Unlock()
	p.ended = true
	if p.unnumbered {
		return st
	}
	return apierror.WithSubmitted(st, p.through)
}

var errStreamBroken = fmt.Errorf("%w: an earlier request of this stream failed", replication.ErrBlocked)

// maxMore limits the number of additional requests or responses in one message.
const maxMore = 256

// read submits the requests in the order of their arrival. An error that concerns only one request becomes the
// response to that request. An error that concerns the node ends the stream.
func (p *publishStream) read(ctx context.Context) {
	var b publishBatch
	var received codec.ReceivedPublish
	err := p.stream.RecvMsg(&received)
	if err != nil {
		p.inFlight = 0 // the stream has no requests
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

// waitForRoom waits if one request has used the whole limit, until that request is answered. It returns false if ctx
// ends first.
func (p *publishStream) waitForRoom(ctx context.Context, b *publishBatch) bool {
	limit := p.bytes
	if len(b.calls) == 0 || b.calls[len(b.calls)-1].weight < limit {
		return true
	}
	if p.room.Acquire(ctx, limit) != nil {
		return false
	}
	p.room.Release(limit)
	p.server.awaitRoom(ctx, b.bytes) // before another request of this size is received
	return true
}

type publishBatch struct { // contains the requests of one message; reused
	calls []*streamCall
	// items contains the transactions to submit, which are concatenated in a buffer. ends contains their end offsets
	// in the buffer.
	items []replication.Item
	ends  []int
	// refs contains the large bodies of items, which remain in the receive buffer. refEnds contains the end index in
	// refs for each item.
	refs            []txn.Ref
	refEnds         []int
	messages, bytes int           // number and size of the messages in items
	wait            time.Duration // delay before the next requests
}

func (b *publishBatch) endTraces(err error) {
	for _, call := range b.calls {
		call.trace(nil, err)
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

// accept submits the requests of one message. It returns an error only if the stream must end.
func (p *publishStream) accept(ctx context.Context, b *publishBatch, req *pb.PublishStreamRequest) error {
	if req.GetAcceptsMore() {
		p.acceptsMore.Store(true)
	}
	if n := len(req.GetMore()); n > maxMore {
		return fmt.Errorf("%w: `more` has %d requests, maximum is %d", apierror.ErrInvalid, n, maxMore)
	}
	buf := p.server.buffer()
	defer p.server.release(buf)
	b.reset()
	last := p.prepare(ctx, b, buf, req)
	for _, r := range req.GetMore() {
		if len(r.GetMore()) > 0 {
			return fmt.Errorf("%w: requests in `more` cannot contain `more`", apierror.ErrInvalid)
		}
		if last {
			break // the later requests are not executed
		}
		last = p.prepare(ctx, b, buf, r)
	}
	if last {
		defer p.broken.Store(true) // after the preceding requests were submitted
	}
	if len(b.items) == 0 {
		p.queued.Add(int64(len(b.calls)))
		return nil
	}
	b.bytes = b.join(*buf)
	weight := min(int64(b.bytes), p.bytes)
	if err := p.room.Acquire(ctx, weight); err != nil {
		b.endTraces(err)
		return fmt.Errorf("wait for earlier requests of the stream: %w", err)
	}
	b.calls[len(b.calls)-1].weight = weight // the last request is answered last
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

// join assigns to each item its parts of buf and refs. It returns their total size.
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

// submit submits all items of b to the primary. After an error, none was submitted.
func (p *publishStream) submit(ctx context.Context, b *publishBatch) error {
	p.submitMu.Lock()
	defer p.submitMu.Unlock()
	if p.ended || p.broken.Load() {
		return errStreamBroken
	}
	err := p.session.Primary.SubmitAll(ctx, b.items)
	clear(b.items) // do not retain the buffers, because the next request may arrive much later
	clear(b.refs)
	b.items, b.refs = b.items[:0], b.refs[:0]
	if err != nil {
		return err
	}
	p.queued.Add(int64(len(b.calls)))
	for _, call := range b.calls {
		p.through = call.correlation
		p.unnumbered = p.unnumbered || p.through == 0
	}
	return nil
}

// prepare creates the call for a request and encodes the transaction of the request. If last is true, the stream must
// end, and the client must resend the request. After apierror.ErrSplit, the client must resend it in parts.
func (p *publishStream) prepare(
	ctx context.Context, b *publishBatch, buf *[]byte, req *pb.PublishStreamRequest,
) (last bool) {
	publish := req.GetPublish()
	call := &streamCall{
		stream: p, correlation: req.GetCorrelation(), queue: publish.GetQueue(), producer: publish.GetProducer(),
		done: make(chan replication.CommitResult, 1),
	}
	b.calls = append(b.calls, call)
	if publish == nil {
		call.done <- replication.CommitResult{Err: fmt.Errorf("%w: missing `publish`", apierror.ErrInvalid)}
		return false
	}
	if t := p.server.tracing; t != nil {
		call.span = t.Publish(ctx, publish.GetQueue(), publish.GetMessages())
	}
	if req.GetResumes() {
		p.refused.resume(publish.GetQueue())
		p.fenced.remove(publish.GetQueue())
	}
	e, err := p.server.encodePublish(
		p.session, buf, &b.refs, publish, &p.caller, p.refusedFor(publish.GetQueue()))
	b.wait, call.missing = max(b.wait, e.wait), e.missing
	if full := p.refused.add(publish.GetQueue(), e.missing); full != nil {
		e.prior, err, last = nil, full, true
	}
	switch {
	case err != nil:
		// Do not split a retry: the first attempt may have been executed as a whole, with one outcome.
		if publish.GetSplits() && !publish.GetProducer().GetRetry() && splittable(err) {
			err, last = fmt.Errorf("%w: %w", apierror.ErrSplit, err), true
		}
		call.done <- replication.CommitResult{Err: err}
		call.trace(nil, err)
		return last
	case e.prior != nil:
		call.done <- replication.CommitResult{Result: &e.prior.Result}
		call.trace(&e.prior.Result, nil)
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
		resp.AcceptsMore, first = first, false
		if p.acceptsMore.Load() {
			if err := p.addReady(resp); err != nil {
				return err
			}
		}
		if err := p.stream.Send(resp); err != nil {
			return fmt.Errorf("send publish response: %w", err)
		}
	}
}

// nextCall waits for the next request to answer. At the end of the stream, it returns nil and the reason.
func (p *publishStream) nextCall() (*streamCall, error) {
	if call := p.held; call != nil {
		p.held = nil
		return call, nil
	}
	if !p.waitForFirst() {
		return nil, p.session.Reason()
	}
	select {
	case call, more := <-p.calls:
		if !more {
			return nil, p.endReason()
		}
		p.queued.Add(-1)
		return call, nil
	case <-p.session.Ended():
		return p.answered(), p.session.Reason()
	case <-p.lost:
		return p.submitted(), p.lostErr
	}
}

func (p *publishStream) addReady(resp *pb.PublishStreamResponse) error {
	for len(resp.GetMore()) < maxMore {
		select {
		case call, more := <-p.calls:
			if !more {
				return nil // nextCall returns the reason
			}
			p.queued.Add(-1)
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

func (p *publishStream) endReason() error {
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

// response waits for the outcome of a request and returns the response. It returns an error only if the stream
// must end.
func (p *publishStream) response(call *streamCall) (*pb.PublishStreamResponse, error) {
	var o replication.CommitResult
	select {
	case o = <-call.done:
	case <-p.stream.Context().Done():
		return nil, fmt.Errorf("publish stream: %w", p.stream.Context().Err())
	}
	if call.weight > 0 {
		p.room.Release(call.weight)
	}
	resp, err := &pb.PublishStreamResponse{Correlation: call.correlation}, o.Err
	if err == nil {
		resp.Published, err = p.server.published(call.queue, call.producer, o.Result, call.missing)
	}
	if err != nil {
		if apierror.ConcernsNode(err) {
			return nil, err
		}
		resp.Error = apierror.ToRequestError(err)
	}
	return resp, nil
}
