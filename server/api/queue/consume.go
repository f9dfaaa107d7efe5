// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/auth/admission"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/server/delivery/filter"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// consumeStream is a Consume call. One goroutine reads requests, and the goroutine of the handler sends messages.
type consumeStream struct {
	service  *Service
	session  *session.Session
	consumer *dispatch.Consumer
	stream   grpc.BidiStreamingServer[pb.ConsumeRequest, pb.ConsumeResponse]
	sending  protoconv.Deliveries
	passed   *admission.Stream
	limit    int  // maximum size of one response, in bytes
	named    bool // the consumer has set limit
}

// defaultResponseBytes is the limit of a response if the consumer sets none. It is the default limit of gRPC
// clients. A single message that is larger is sent alone.
const defaultResponseBytes = 4 << 20

// Consume delivers messages within the consumer's credit, and accepts the consumer's acks, nacks and other requests.
func (s *Service) Consume(stream grpc.BidiStreamingServer[pb.ConsumeRequest, pb.ConsumeResponse]) error {
	return s.status(s.consume(stream))
}

func (s *Service) consume(stream grpc.BidiStreamingServer[pb.ConsumeRequest, pb.ConsumeResponse]) error {
	session, err := s.serving.Session()
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return fmt.Errorf("receive the consumer's first request: %w", err)
	}
	attach := first.GetAttach()
	if attach == nil {
		return fmt.Errorf("%w: first request of a consumer must contain `attach`", apierror.ErrInvalid)
	}
	if err := s.rules.Check(stream.Context(), access.Consume, attach.GetQueue()); err != nil {
		return fmt.Errorf("consume %q: %w", attach.GetQueue(), err)
	}
	queueID, sub, err := s.findSub(attach.GetQueue(), attach.GetSubscription())
	if err == nil {
		err = checkQueueID(queueID, attach.GetQueueId())
	}
	if err != nil {
		return fmt.Errorf("consume %q: %w", attach.GetQueue(), withSubscription(err, attach.GetSubscription()))
	}
	if err := s.checkSiteEpoch(attach.GetSiteEpoch()); err != nil {
		return fmt.Errorf("consume %q: %w", attach.GetQueue(), err)
	}
	accepts, err := s.consumerFilter(session, attach.GetFilter())
	if err != nil {
		return fmt.Errorf("consume %q: %w", attach.GetQueue(), err)
	}
	consumer, err := session.Consumers.Attach(dispatch.Key{Queue: queueID, Sub: sub}, addressOf(stream.Context()), accepts)
	if err != nil {
		return fmt.Errorf("consume %q: %w", attach.GetQueue(), err)
	}
	defer consumer.Close()
	if err := divide(consumer, attach); err != nil {
		return err
	}
	if err := s.checkFence(attach.GetQueue()); err != nil { // WatchMoves ends only consumers that were attached before
		return err
	}
	if attach.GetReportWaiting() {
		consumer.EnablePendingEvents()
	}
	own, err := ackTimeout("ack_timeout", attach.GetAckTimeout())
	if err != nil {
		return fmt.Errorf("consume %q: %w", attach.GetQueue(), err)
	}
	consumer.SetAckTimeout(own)
	identity := s.callerOf(stream.Context())
	identity.begin(access.Consume, consumer.Fail, func(use *admission.Use) {
		use.Subscription = subscriptionName(attach.GetSubscription())
		use.Credit, use.Unacknowledged = consumer.Load()
	})
	defer identity.end()
	if err := identity.use(attach.GetQueue()); err != nil {
		return fmt.Errorf("consume %q: %w", attach.GetQueue(), err)
	}
	// Check again: the rules may have changed before the stream was registered.
	if err := s.rules.Check(stream.Context(), access.Consume, attach.GetQueue()); err != nil {
		return fmt.Errorf("consume %q: %w", attach.GetQueue(), err)
	}
	if err := stream.Send(&pb.ConsumeResponse{
		Attached: true, QueueId: queueID, AckTimeout: optionalDuration(consumer.AckTimeout()),
	}); err != nil {
		return fmt.Errorf("confirm the consumer: %w", err)
	}
	c := &consumeStream{
		service: s, session: session, consumer: consumer, stream: stream, passed: identity.stream,
		limit: defaultResponseBytes,
	}
	if n := attach.GetMaxResponseBytes(); n > 0 {
		c.limit, c.named = int(n), true
	}
	if err := c.handle(stream.Context(), first); err != nil {
		return err
	}
	// The reader ends when this call returns: the context of the stream then ends.
	go c.read(stream.Context())
	err = c.deliver(stream.Context())
	return s.ended(attach.GetQueue(), err)
}

// ended adds the name of the queue to the error of a consumer if the queue or its subscription was deleted, or if the
// queue is moving. It returns other errors unchanged.
func (s *Service) ended(queue string, err error) error {
	switch {
	case errors.Is(err, store.ErrNoQueue):
		return fmt.Errorf("queue %q or its subscription was deleted: %w", queue, err)
	case errors.Is(err, txn.ErrMoved):
		return fmt.Errorf("consume %q: %w", queue, s.movedAway(queue))
	}
	return err
}

func addressOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}

func (s *Service) consumerFilter(
	session *session.Session, text string,
) (accepts func(m *dispatch.Message) bool, err error) {
	if text == "" {
		return nil, nil //nolint:nilnil // no filter: all messages match
	}
	f, err := filter.Compile(text)
	if err != nil {
		return nil, err
	}
	if err := s.serving.Require(session, failover.FeatureQueues); err != nil {
		return nil, err
	}
	return func(m *dispatch.Message) bool { return f.Match(m.Record) }, nil
}

// checkQueueID returns an error if the queue ID in a request (wanted) is not the ID of the queue. In that case, the
// sequences in the request belong to a deleted queue with the same name.
func checkQueueID(id, wanted uint64) error {
	if wanted == 0 || wanted == id {
		return nil
	}
	return fmt.Errorf("%w: deleted and re-created with the same name", txn.ErrQueueNotFound)
}

// checkSiteEpoch returns an error if, after the given epoch, a site was promoted that may lack transactions. The
// client received its messages in that epoch. Epoch 0 means that the epoch is unknown.
func (s *Service) checkSiteEpoch(epoch uint64) error {
	if lossy := s.store.Site().LossyEpoch; epoch != 0 && lossy > epoch {
		return fmt.Errorf("%w: delivered in epoch %d, promoted in epoch %d", apierror.ErrSiteEpoch, epoch, lossy)
	}
	return nil
}

func (c *consumeStream) read(ctx context.Context) {
	for {
		req, err := c.stream.Recv()
		if errors.Is(err, io.EOF) {
			c.consumer.Finish()
			return
		}
		if err == nil && req.GetAttach() != nil {
			err = fmt.Errorf("%w: consumer is already attached; open another stream for another subscription",
				apierror.ErrInvalid)
		}
		if err == nil {
			err = c.handle(ctx, req)
		}
		if err != nil {
			c.consumer.Fail(err)
			return
		}
	}
}

func (c *consumeStream) handle(ctx context.Context, req *pb.ConsumeRequest) error {
	o := dispatch.Outcomes{Confirm: req.GetConfirm()}
	total := 0
	for _, f := range [...]struct {
		in []*pb.SequenceRange
		to *[]txn.Range
	}{{req.GetAck(), &o.Acks}, {req.GetNack(), &o.Nacks}, {req.GetReject(), &o.Rejects}, {req.GetRelease(), &o.Releases}} {
		var err error
		if *f.to, err = ranges(f.in, maxRequestRanges); err != nil {
			return err
		}
		total += len(f.in)
	}
	if len(o.Rejects) > 0 {
		if err := c.service.serving.Require(c.session, failover.FeatureDeadLetters); err != nil {
			return fmt.Errorf("reject: %w", err)
		}
	}
	if err := c.extend(req.GetExtend()); err != nil {
		return err
	}
	if total > 0 || o.Confirm != 0 {
		var err error
		if o.NackDelay, err = nackDelay(req.GetNackDelay()); err != nil {
			return err
		}
		if err := c.consumer.Settle(ctx, o); err != nil {
			return err
		}
	}
	if req.GetLeave() != nil {
		seen, err := ranges(req.GetLeave().GetSeen(), maxRequestRanges)
		if err != nil {
			return err
		}
		c.consumer.Detach(seen)
		return nil
	}
	if n := req.GetCredit(); n != 0 || total == 0 && o.Confirm == 0 { // an empty request confirms liveness
		if err := c.consumer.AddCredit(n); err != nil {
			return err
		}
	}
	if req.GetDrain() != 0 {
		c.consumer.Drain(req.GetDrain())
	}
	return nil
}

func (c *consumeStream) extend(e *pb.Extend) error {
	if e == nil {
		return nil
	}
	list, err := ranges(e.GetSequences(), maxRequestRanges)
	if err != nil {
		return err
	}
	by, err := ackTimeout("extend.duration", e.GetDuration())
	if err != nil {
		return err
	}
	c.consumer.Extend(list, by)
	return nil
}

// ackTimeout converts an acknowledgement deadline. It returns 0 if in is nil.
func ackTimeout(field string, in *durationpb.Duration) (time.Duration, error) {
	if in == nil {
		return 0, nil
	}
	d := in.AsDuration()
	if !in.IsValid() {
		return 0, fmt.Errorf("%w: %s is not a valid duration", apierror.ErrInvalid, field)
	}
	if err := protoconv.CheckAckTimeout(d); err != nil {
		return 0, fmt.Errorf("%s: %w", field, err)
	}
	return d, nil
}

const maxNackDelay = 24 * time.Hour

func nackDelay(d *durationpb.Duration) (*time.Duration, error) {
	if d == nil {
		return nil, nil //nolint:nilnil // the queue's delay applies
	}
	delay := d.AsDuration()
	if !d.IsValid() || delay < 0 || delay > maxNackDelay {
		return nil, fmt.Errorf("%w: nack_delay is %v, must be 0 to %v", apierror.ErrInvalid, delay, maxNackDelay)
	}
	return &delay, nil
}

func (c *consumeStream) deliver(ctx context.Context) error {
	for {
		event, err := c.consumer.Next(ctx)
		if errors.Is(err, dispatch.ErrFinished) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := c.send(event); err != nil {
			return err
		}
	}
}

func (c *consumeStream) send(event dispatch.Event) error {
	if event.AckTimeout != nil || len(event.Expired)+len(event.Refused) > 0 {
		if err := c.sendDeadlines(&event); err != nil {
			return err
		}
	}
	if len(event.PendingRejects) > 0 || len(event.Moved) > 0 { // sent before Confirmed
		resp := &pb.ConsumeResponse{Waiting: toRanges(event.PendingRejects), Moved: toRanges(event.Moved)}
		if err := c.stream.Send(resp); err != nil {
			return fmt.Errorf("send pending and moved rejects: %w", err)
		}
	}
	if event.Confirmed != 0 || len(event.Messages) > 0 {
		if err := c.sendMessages(event); err != nil {
			return err
		}
	}
	if event.Drained == 0 {
		return nil
	}
	err := c.stream.Send(&pb.ConsumeResponse{Drained: event.Drained, DrainedCredit: event.DrainedCredit})
	if err != nil {
		return fmt.Errorf("send drain response: %w", err)
	}
	return nil
}

// sendDeadlines sends the expired and the refused sequences, and a changed ack_timeout. The response must precede
// messages and confirmations.
func (c *consumeStream) sendDeadlines(event *dispatch.Event) error {
	resp := &pb.ConsumeResponse{Expired: toRanges(event.Expired)}
	if len(event.Refused) > 0 {
		resp.Refused = &pb.RefusedAnswers{
			Sequences: toRanges(event.Refused), Reason: pb.ErrorReason_ERROR_REASON_ACK_DEADLINE_EXPIRED,
		}
	}
	if event.AckTimeout != nil {
		resp.AckTimeout = durationpb.New(*event.AckTimeout)
	}
	if err := c.stream.Send(resp); err != nil {
		return fmt.Errorf("send expired messages: %w", err)
	}
	return nil
}

func (c *consumeStream) sendMessages(event dispatch.Event) error {
	defer c.sending.Release()
	if n := len(event.Messages); n > 0 {
		c.passed.Passed(n)
	}
	for {
		left, err := c.sending.Set(event, c.limit)
		if err != nil {
			return err
		}
		if c.named && c.sending.TotalBytes() > c.limit && len(event.Messages) > 0 {
			return errResponseTooLarge(event.Messages[0].Sequence, c.sending.TotalBytes(), c.limit)
		}
		if err := c.stream.SendMsg(&c.sending); err != nil { // the response is encoded when SendMsg returns
			return fmt.Errorf("deliver: %w", err)
		}
		if len(left) == 0 {
			return nil
		}
		event = dispatch.Event{Messages: left}
	}
}

func toRanges(sequences []uint64) []*pb.SequenceRange {
	list := make([]*pb.SequenceRange, len(sequences))
	for i, s := range sequences {
		list[i] = &pb.SequenceRange{First: s, Last: s}
	}
	return list
}

func errResponseTooLarge(sequence uint64, bytes, limit int) error {
	return fmt.Errorf("%w: message with sequence %d has %d bytes, max_response_bytes is %d; raise the client's "+
		"gRPC receive limit (default 4 MiB) and max_response_bytes",
		apierror.ErrResponseTooLarge, sequence, bytes, limit)
}

// Browse reads messages without consuming them.
func (s *Service) Browse(req *pb.BrowseRequest, stream grpc.ServerStreamingServer[pb.BrowseResponse]) error {
	return s.status(s.browse(req, stream))
}

func (s *Service) browse(req *pb.BrowseRequest, stream grpc.ServerStreamingServer[pb.BrowseResponse]) error {
	may := func() error {
		if err := s.rules.Check(stream.Context(), access.Browse, req.GetQueue()); err != nil {
			return fmt.Errorf("browse %q: %w", req.GetQueue(), err)
		}
		return nil
	}
	if err := access.EndUnless(stream.Context(), may); err != nil {
		return err
	}
	current, err := s.serving.Session()
	if err != nil {
		return err
	}
	q := search{service: s, session: current, newest: req.GetNewest(), records: true}
	if req.GetSubscription() == "" {
		q.read.Queue, err = s.find(req.GetQueue())
	} else {
		q.read.Queue, q.read.Sub, err = s.findSub(req.GetQueue(), req.GetSubscription())
	}
	if err == nil {
		err = q.begin(&pb.Search{
			Filter: req.GetFilter(), FromSequence: req.GetFromSequence(), BeforeSequence: req.GetBeforeSequence(),
			MaxScanned: req.GetMaxScanned(),
		})
	}
	if err != nil {
		return fmt.Errorf("browse %q: %w", req.GetQueue(), withSubscription(err, req.GetSubscription()))
	}
	left := req.GetLimit()
	if left == 0 {
		left = ^uint64(0)
	}
	room := s.browsing.begin(admission.FromContext(stream.Context()))
	defer room.end()
	out := browseStream{session: current, req: req, stream: stream, sent: time.Now()}
	for left > 0 && !q.done() && !q.exhausted() {
		maxBytes, err := room.reserve(stream.Context())
		if err != nil {
			return fmt.Errorf("browse %q: %w", req.GetQueue(), err)
		}
		if err := may(); err != nil {
			return err
		}
		found, corrupt, err := q.step(stream.Context(), maxBytes, left)
		if err != nil {
			return fmt.Errorf("browse %q: %w", req.GetQueue(), err)
		}
		if len(found) == 0 && len(corrupt) == 0 {
			if err := out.report(q.progress()); err != nil {
				return err
			}
			continue
		}
		left -= uint64(len(found))
		if err := room.fit(stream.Context(), recordBytes(found)); err != nil {
			return fmt.Errorf("browse %q: %w", req.GetQueue(), err)
		}
		if err := out.send(found, corrupt, q.progress()); err != nil {
			return err
		}
	}
	if q.filter != nil {
		if err := out.end(q.progress()); err != nil {
			return err
		}
	}
	return room.waitReceived(stream)
}

func recordBytes(batch []store.Delivery) (total int64) {
	for i := range batch {
		total += int64(len(batch[i].Record))
	}
	return total
}

// withoutCorrupt returns the messages of a batch, or the sequences if the messages are corrupt. The store returns
// corrupt messages in separate batches.
func withoutCorrupt(batch []store.Delivery) (rest []store.Delivery, corrupt []uint64) {
	if len(batch) == 0 || batch[0].Record != nil {
		return batch, nil
	}
	for i := range batch {
		corrupt = append(corrupt, batch[i].Sequence)
	}
	return batch[:0], corrupt
}

// browseStream sends the responses of one Browse call.
type browseStream struct {
	session  *session.Session
	req      *pb.BrowseRequest
	stream   grpc.ServerStreamingServer[pb.BrowseResponse]
	sent     time.Time          // time of the last response, initially the start
	reported *pb.SearchProgress // last progress sent
}

const browseProgressInterval = time.Second

func (b *browseStream) send(batch []store.Delivery, corrupt []uint64, p *pb.SearchProgress) error {
	select {
	case <-b.session.Ended():
		return b.session.Reason()
	default:
	}
	messages, err := protoconv.StoredMessages(batch, b.req.GetHeadersOnly())
	if err != nil {
		return err
	}
	resp := &pb.BrowseResponse{Damaged: corrupt}
	for {
		n := len(messages)
		limit := int(b.req.GetMaxResponseBytes())
		if limit > 0 {
			if n, err = fittingPrefix(messages, limit); err != nil {
				return err
			}
		}
		resp.Messages, messages = messages[:n], messages[n:]
		fits := len(messages) == 0
		if fits {
			resp.Progress = p
			if fits = limit == 0 || proto.Size(resp) <= limit; !fits {
				resp.Progress = nil
			}
		}
		if err := b.stream.Send(resp); err != nil {
			return fmt.Errorf("browse: %w", err)
		}
		switch {
		case fits:
			b.sent, b.reported = time.Now(), p
			return nil
		case len(messages) == 0:
			return b.sendProgress(p)
		}
		resp = &pb.BrowseResponse{}
	}
}

// report sends the progress of a search that has no new results, if a report is due.
func (b *browseStream) report(p *pb.SearchProgress) error {
	if time.Since(b.sent) < browseProgressInterval {
		return nil
	}
	return b.sendProgress(p)
}

// end sends the final progress, unless the last response already contained it.
func (b *browseStream) end(p *pb.SearchProgress) error {
	if proto.Equal(b.reported, p) {
		return nil
	}
	return b.sendProgress(p)
}

func (b *browseStream) sendProgress(p *pb.SearchProgress) error {
	b.sent, b.reported = time.Now(), p
	if err := b.stream.Send(&pb.BrowseResponse{Progress: p}); err != nil {
		return fmt.Errorf("browse: %w", err)
	}
	return nil
}

func fittingPrefix(messages []*pb.StoredMessage, limit int) (n int, err error) {
	total := 0
	for n < len(messages) {
		size := tagBytes + protowire.SizeBytes(proto.Size(messages[n]))
		if n == 0 && size > limit {
			return 0, errResponseTooLarge(messages[n].GetSequence(), size, limit)
		}
		if total += size; total > limit {
			break
		}
		n++
	}
	return n, nil
}

const tagBytes = 1 // size of the tag of BrowseResponse.messages
