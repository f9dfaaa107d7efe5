// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/units"
)

// Publish stores a batch of messages in one queue. All messages are stored, or none.
func (s *Service) Publish(ctx context.Context, req *pb.PublishRequest) (*pb.PublishResponse, error) {
	if s.tracing == nil {
		resp, err := s.publish(ctx, req)
		return resp, s.status(err)
	}
	span := s.tracing.Publish(ctx, req.GetQueue(), req.GetMessages())
	if span != nil {
		ctx = span.Into(ctx)
	}
	resp, err := s.publish(ctx, req)
	if span != nil {
		span.Number(lsnAttribute, resp.GetLsn())
		span.End(time.Now(), err)
	}
	return resp, s.status(err)
}

const lsnAttribute = "lockstep.lsn"

func (s *Service) publish(ctx context.Context, req *pb.PublishRequest) (*pb.PublishResponse, error) {
	session, err := s.serving.Session()
	if err != nil {
		return nil, err
	}
	buf := s.buffer()
	defer s.release(buf)
	identity := s.callerOf(ctx)
	e, err := s.encodePublish(session, buf, nil, req, &identity, nil)
	if err != nil {
		return nil, err
	}
	defer hold(ctx, e.wait, session.Ended())
	if e.prior != nil {
		return s.published(req.GetQueue(), req.GetProducer(), &e.prior.Result, e.missing)
	}
	result, err := s.commitInOrder(ctx, session, *buf)
	if err != nil {
		return nil, err
	}
	session.Consumers.Published(len(req.GetMessages()), len(*buf))
	return s.published(req.GetQueue(), req.GetProducer(), result, e.missing)
}

// published returns the response to a publish. missing is that of encodedPublish.
func (s *Service) published(
	queue string, producer *pb.Producer, r *txn.Result, missing error,
) (*pb.PublishResponse, error) {
	if err := s.refusal(r, producer != nil, missing, queue); err != nil {
		return nil, fmt.Errorf("publish to %q: %w", queue, err)
	}
	if len(r.Ops) != 1 {
		return nil, errOtherTransaction(producer)
	}
	return &pb.PublishResponse{
		FirstSequence: r.Ops[0].FirstSequence, Lsn: r.LSN, Duplicate: r.Duplicate,
		Duplicates: protoconv.Duplicates(r.Ops[0].Duplicates),
	}, nil
}

// errOtherTransaction returns the error for a request that differs from an earlier request with the same producer
// sequence.
func errOtherTransaction(p *pb.Producer) error {
	return fmt.Errorf("%w: sequence %d of producer %q was used for another transaction; a retry must send "+
		"the same request, a new request must use the next sequence, and each producer requires a unique id or epoch",
		apierror.ErrSequenceReused, p.GetSequence(), p.GetId())
}

// checkSame returns an error if a different request has used the producer's sequence. It compares the fingerprints
// of the two requests. It returns nil if the fingerprint of the earlier request is no longer stored. encode appends
// the transaction of the request.
func (s *Service) checkSame(p *txn.Producer, prior *query.Prior, encode func(*txn.Builder)) error {
	known := prior.Fingerprint
	if known == 0 && prior.Result.Code == txn.OK {
		known = query.LoggedFingerprint(s.store, prior.Result.LSN)
	}
	if known == 0 {
		return nil
	}
	buf := s.buffer()
	defer s.release(buf)
	var b txn.Builder
	b.Begin(*buf, 0, nil)
	encode(&b)
	encoded, err := b.Finish()
	if err != nil {
		return fmt.Errorf("encode the request: %w", err)
	}
	*buf = encoded
	got, err := txn.Fingerprint(encoded, crc32.MakeTable(crc32.Castagnoli))
	if err == nil && got != known {
		err = errOtherTransaction(&pb.Producer{Id: string(p.ID), Sequence: p.Sequence})
	}
	return err
}

type encodedPublish struct {
	prior *query.Prior  // stored result of a retry; nil if the request was not executed before
	wait  time.Duration // delay before the caller's next request
	// missing is the error for a retry if its queue does not exist at this pair, or if an earlier request of the stream
	// to the queue was refused. Without a stored result, the retry is logged, and refused when it is applied.
	missing error
}

// encodePublish checks a request and appends its transaction to *buf. For a retry with a stored result, it returns
// that result instead (INV-10) and skips all further checks. If refused is not nil, it is the error for the queue,
// even if the queue exists.
func (s *Service) encodePublish(
	session *session.Session, buf *[]byte, refs *[]txn.Ref, req *pb.PublishRequest, identity *caller, refused error,
) (e encodedPublish, err error) {
	producer, err := protoconv.Producer(req.GetProducer())
	if err != nil {
		return e, err
	}
	sizeBytes, err := s.checkMessages(session, req.GetMessages())
	if err != nil {
		return e, err
	}
	if err := s.checkTransactionBytes(sizeBytes); err != nil {
		return e, err
	}
	if err := txn.CheckQueueName(req.GetQueue()); err != nil {
		return e, err
	}
	names := [1]query.Target{{Queue: req.GetQueue()}}
	retry := req.GetProducer().GetRetry()
	e.prior, e.missing, err = s.resolve(producer, retry, names[:])
	if err != nil {
		return e, err
	}
	if e.prior != nil {
		if code := e.prior.Result.Code; code == txn.ErrQueueNotFound || code == txn.ErrMoved {
			if e.missing = refused; refused == nil {
				e.missing = s.missingBefore(req.GetQueue())
			}
		}
		return e, s.checkSame(producer, e.prior, func(b *txn.Builder) {
			appendPublish(b, txn.NoQueue, 0, 0, req.GetMessages())
		})
	}
	if refused != nil {
		e.missing, names[0].Found = refused, false
	}
	if e.wait, err = identity.mayPublish(req.GetQueue(), len(req.GetMessages()), sizeBytes); err != nil {
		return e, fmt.Errorf("publish to %q: %w", req.GetQueue(), err)
	}
	// An earlier attempt may be in the log. Therefore the outcome of a retry is decided only when it is applied.
	if found := &names[0]; !retry {
		if e.missing != nil {
			return e, named(e.missing, req.GetQueue())
		}
		if err := checkRoom(found, len(req.GetMessages()), sizeBytes); err != nil {
			return e, err
		}
		if req.GetSplits() && mayNotFit(found, len(req.GetMessages()), sizeBytes) {
			return e, fmt.Errorf("%w: queue %q is nearly full", txn.ErrQueueFull, found.Queue)
		}
	}
	if s.serving.DiskLow() {
		return e, apierror.ErrDiskLow
	}
	return e, s.appendRequest(buf, refs, req, producer, &names[0])
}

// appendRequest appends the transaction of a publish to *buf.
func (s *Service) appendRequest(
	buf *[]byte, refs *[]txn.Ref, req *pb.PublishRequest, producer *txn.Producer, to *query.Target,
) error {
	timeMS, referred := now(), 0
	if refs != nil {
		referred = len(*refs)
	}
	var b txn.Builder
	b.Begin(*buf, timeMS, producer)
	if !to.Found {
		b.Purge(txn.NoQueue, 0) // refused when applied, unless an earlier attempt was applied
	} else {
		if len(to.Forwards) == 0 { // forwards read the encoded messages
			b.Refer(refs)
		}
		appendPublish(&b, to.QueueID, timeMS, int64(to.Config.Delay), req.GetMessages())
		s.appendForwards(&b, to.QueueID, to.Forwards)
	}
	encoded, err := b.Finish()
	if err != nil {
		if refs != nil {
			*refs = (*refs)[:referred]
		}
		return fmt.Errorf("publish to %q: %w", req.GetQueue(), err)
	}
	*buf = encoded
	return nil
}

// appendPublish adds a publish to a transaction. The delay of the queue applies to messages with neither a delivery
// time nor a delay. The builder fails at the first invalid message.
func appendPublish(b *txn.Builder, id uint64, timeMS, delayMS int64, messages []*pb.Message) {
	b.BeginPublish(id)
	for i, m := range messages {
		props := txn.Properties(m.GetProperties())
		delayed := delayMS > 0 && m.GetDeliverAt() == nil && m.GetDelay() == nil
		if !delayed && !protoconv.HasAttributes(m) {
			b.Message(timeMS, props, m.GetBody())
			continue
		}
		a, err := protoconv.Attributes(m, timeMS)
		if err != nil {
			b.Fail(fmt.Errorf("message %d: %w", i, err))
			return
		}
		if delayed {
			a.DeliverAtMS = timeMS + delayMS
		}
		b.MessageWith(timeMS, &a, props, m.GetBody())
	}
	b.EndPublish()
}

// recordOverhead is the approximate size of a stored message without its body.
const recordOverhead = 64

// mayNotFit reports whether a queue may refuse the messages when they are applied.
func mayNotFit(q *query.Target, messages, sizeBytes int) bool {
	c := q.Config
	if !c.Limited() || q.Subscriptions == 0 && !c.Retains() {
		return false
	}
	heldMessages, heldBytes := q.Messages+q.Messages/16, q.Bytes+q.Bytes/16
	if c.Overflow != txn.OverflowReject {
		heldMessages, heldBytes = 0, 0
	}
	return c.MaxMessages > 0 && heldMessages+uint64(messages) > c.MaxMessages ||
		c.MaxBytes > 0 && heldBytes+uint64(sizeBytes+messages*recordOverhead) > c.MaxBytes
}

// splittable reports whether an error may concern only some of the publishes in a request.
func splittable(err error) bool {
	if errors.Is(err, apierror.ErrDiskLow) {
		return false
	}
	switch apierror.Code(err) {
	case codes.ResourceExhausted, codes.InvalidArgument, codes.OutOfRange:
		return true
	default:
		return false
	}
}

// checkRoom returns an error if the queue is full or paused. The final decision is made when the request is applied.
func checkRoom(q *query.Target, messages, sizeBytes int) error {
	if q.Paused {
		return fmt.Errorf("%w: %q", txn.ErrQueuePaused, q.Queue)
	}
	c := q.Config
	if q.Subscriptions == 0 && !c.Retains() {
		return nil // no message will be stored
	}
	if c.Overflow != txn.OverflowReject {
		return nil // the store discards old messages if necessary
	}
	if c.MaxMessages > 0 && q.Messages+uint64(messages) > c.MaxMessages {
		return fmt.Errorf("%w: queue %q has %s messages, its max_messages is %s", txn.ErrQueueFull, q.Queue,
			units.Count(q.Messages), units.Count(c.MaxMessages))
	}
	if c.MaxBytes > 0 && q.Bytes+uint64(sizeBytes) > c.MaxBytes {
		return fmt.Errorf("%w: queue %q has %s, its max_bytes is %s", txn.ErrQueueFull, q.Queue,
			units.Bytes(q.Bytes), units.Bytes(c.MaxBytes))
	}
	return nil
}
