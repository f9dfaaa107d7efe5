// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"fmt"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

type operation struct {
	queue    string
	sub      string
	messages []*pb.Message // messages to publish
	size     int           // size of messages in bytes
	delayMS  int64         // delay of messages without a delivery time
	acks     []txn.Range
	required bool // the operation fails if one of acks is already acknowledged
	releases []txn.Range
	queueID  uint64        // expected ID of the queue; 0 matches any ID
	epoch    uint64        // epoch of the site that delivered the messages; 0 if unknown
	key      dispatch.Key  // set by resolve
	forwards []txn.Forward // forwarding rules of the queue; set by resolve
}

// Commit applies a transaction on one or more queues. All operations are applied, or none.
func (s *Service) Commit(ctx context.Context, req *pb.CommitRequest) (*pb.CommitResponse, error) {
	resp, err := s.commitTransaction(ctx, req)
	return resp, s.status(err)
}

func (s *Service) commitTransaction(ctx context.Context, req *pb.CommitRequest) (*pb.CommitResponse, error) {
	session, err := s.serving.Session()
	if err != nil {
		return nil, err
	}
	producer, err := protoconv.Producer(req.GetProducer())
	if err != nil {
		return nil, err
	}
	ops, err := s.checkOperations(session, req.GetOperations())
	if err != nil {
		return nil, err
	}
	retry := req.GetProducer().GetRetry()
	if !retry { // for a retry, a stored result takes precedence and is looked up first
		if err := s.mayUse(ctx, ops); err != nil {
			return nil, err
		}
	}
	prior, missing, err := s.resolveAll(producer, retry, ops)
	if err != nil {
		return nil, err
	}
	if prior != nil {
		if err := s.checkSame(producer, prior, func(b *txn.Builder) { s.appendOperations(b, 0, ops) }); err != nil {
			return nil, err
		}
		return s.committed(req, ops, &prior.Result, nil)
	}
	if err := s.checkSiteEpochs(ops); err != nil {
		return nil, err
	}
	wait, err := s.mayTransact(ctx, ops)
	if err != nil {
		return nil, err
	}
	defer hold(ctx, wait, session.Ended())
	buf := s.buffer()
	defer s.release(buf)
	if err := s.encodeOperations(buf, producer, ops); err != nil {
		return nil, err
	}
	result, err := s.commitInOrder(ctx, session, *buf)
	if err != nil {
		return nil, err
	}
	resp, err := s.committed(req, ops, result, missing)
	if err == nil && !result.Duplicate {
		for i := range ops {
			if o := &ops[i]; o.messages == nil {
				session.Consumers.Settled(o.key, o.acks, o.releases)
			} else {
				session.Consumers.Published(len(o.messages), o.size)
			}
		}
	}
	return resp, err
}

func (s *Service) committed(
	req *pb.CommitRequest, ops []operation, r *txn.Result, missing error,
) (*pb.CommitResponse, error) {
	if err := s.refusal(r, req.GetProducer() != nil, missing, queuesOf(ops)...); err != nil {
		return nil, fmt.Errorf("commit: %w", err)
	}
	if len(r.Ops) != len(req.GetOperations()) {
		return nil, errOtherTransaction(req.GetProducer())
	}
	resp := &pb.CommitResponse{Lsn: r.LSN, Duplicate: r.Duplicate, Results: make([]*pb.OperationResult, 0, len(r.Ops))}
	for i := range r.Ops {
		result := &pb.OperationResult{
			FirstSequence: r.Ops[i].FirstSequence, Duplicates: protoconv.Duplicates(r.Ops[i].Duplicates),
		}
		if req.GetOperations()[i].GetPublish() == nil {
			result.Changed = r.Ops[i].Changed
		}
		resp.Results = append(resp.Results, result)
	}
	return resp, nil
}

// checkOperations converts and checks operations. It performs only the checks that do not need the store.
func (s *Service) checkOperations(session *session.Session, in []*pb.Operation) ([]operation, error) {
	if len(in) == 0 || len(in) > txn.MaxOps {
		return nil, fmt.Errorf("%w: transaction has %d operations; must be 1 to %d", apierror.ErrInvalid, len(in), txn.MaxOps)
	}
	ops := make([]operation, 0, len(in))
	sizeBytes := 0
	for i, op := range in {
		o, err := s.checkOperation(session, op)
		if err == nil {
			err = txn.CheckQueueName(o.queue)
		}
		if err != nil {
			return nil, fmt.Errorf("operation %d: %w", i, err)
		}
		sizeBytes += o.size
		ops = append(ops, o)
	}
	return ops, s.checkTransactionBytes(sizeBytes)
}

func (s *Service) checkOperation(session *session.Session, op *pb.Operation) (o operation, err error) {
	switch kind := op.GetKind().(type) {
	case *pb.Operation_Publish:
		o = operation{queue: kind.Publish.GetQueue(), messages: kind.Publish.GetMessages()}
		o.size, err = s.checkMessages(session, o.messages)
	case *pb.Operation_Ack:
		o = operation{
			queue: kind.Ack.GetQueue(), sub: subscriptionName(kind.Ack.GetSubscription()),
			queueID: kind.Ack.GetQueueId(), epoch: kind.Ack.GetSiteEpoch(), required: kind.Ack.GetRequired(),
		}
		if o.acks, err = positive(kind.Ack.GetRanges()); err == nil && o.required {
			err = s.serving.Require(session, failover.FeatureQueues)
		}
	case *pb.Operation_Release:
		o = operation{
			queue: kind.Release.GetQueue(), sub: subscriptionName(kind.Release.GetSubscription()),
			queueID: kind.Release.GetQueueId(), epoch: kind.Release.GetSiteEpoch(),
		}
		o.releases, err = positive(kind.Release.GetRanges())
	default:
		err = fmt.Errorf("%w: operation must be publish, ack or release", apierror.ErrInvalid)
	}
	return o, err
}

// checkSiteEpochs calls checkSiteEpoch for each operation.
func (s *Service) checkSiteEpochs(ops []operation) error {
	for i := range ops {
		if err := s.checkSiteEpoch(ops[i].epoch); err != nil {
			return fmt.Errorf("operation %d: %w", i, err)
		}
	}
	return nil
}

func positive(in []*pb.SequenceRange) ([]txn.Range, error) {
	if len(in) == 0 {
		return nil, fmt.Errorf("%w: no ranges", apierror.ErrInvalid)
	}
	return ranges(in, txn.MaxRanges)
}

func queuesOf(ops []operation) []string {
	names := make([]string, len(ops))
	for i := range ops {
		names[i] = ops[i].queue
	}
	return names
}

// resolveAll resolves all names and looks up the stored result of a retry (INV-10) in one atomic step. prior is nil if
// there is no stored result. missing is the error of resolve, if the request must be logged nevertheless.
func (s *Service) resolveAll(
	producer *txn.Producer, retry bool, ops []operation,
) (prior *query.Prior, missing, err error) {
	names := make([]query.Target, len(ops))
	for i := range ops {
		names[i].Queue, names[i].Subscription = ops[i].queue, ops[i].sub
	}
	prior, missing, err = s.resolve(producer, retry, names)
	if err != nil || prior != nil {
		return prior, nil, err
	}
	publishes := false
	for i := range ops {
		// An earlier attempt may be in the log. Therefore the outcome of a retry is decided only when it is applied.
		if err := ops[i].resolve(&names[i], missing); err != nil && !retry {
			return nil, nil, fmt.Errorf("operation %d: %w", i, err)
		}
		publishes = publishes || ops[i].messages != nil
	}
	if publishes && s.serving.DiskLow() {
		return nil, nil, apierror.ErrDiskLow
	}
	return nil, missing, nil
}

// resolve resolves the names of one operation. missing is the error if its queue does not exist.
func (o *operation) resolve(found *query.Target, missing error) error {
	o.key = dispatch.Key{Queue: txn.NoQueue, Sub: txn.NoSub}
	if !found.Found {
		return named(missing, o.queue)
	}
	if err := checkQueueID(found.QueueID, o.queueID); err != nil {
		return fmt.Errorf("queue %q: %w", o.queue, err)
	}
	o.key.Queue, o.forwards = found.QueueID, found.Forwards
	o.delayMS = int64(found.Config.Delay)
	if o.messages != nil {
		return checkRoom(found, len(o.messages), o.size)
	}
	if found.SubID == txn.NoSub {
		return fmt.Errorf("%w: %q of queue %q", txn.ErrSubscriptionNotFound, o.sub, o.queue)
	}
	o.key.Sub = found.SubID
	return nil
}

func (s *Service) encodeOperations(buf *[]byte, producer *txn.Producer, ops []operation) error {
	timeMS := now()
	var b txn.Builder
	b.Begin(*buf, timeMS, producer)
	s.appendOperations(&b, timeMS, ops)
	var err error
	*buf, err = b.Finish()
	if err != nil {
		return fmt.Errorf("encode the transaction: %w", err)
	}
	return nil
}

func (s *Service) appendOperations(b *txn.Builder, timeMS int64, ops []operation) {
	for i := range ops {
		switch o := &ops[i]; {
		case o.messages != nil:
			appendPublish(b, o.key.Queue, timeMS, o.delayMS, o.messages)
			s.appendForwards(b, o.key.Queue, o.forwards)
		case o.required:
			b.Take(o.key.Queue, o.key.Sub, o.acks...)
		case o.acks != nil:
			b.Ack(o.key.Queue, o.key.Sub, o.acks...)
		default:
			b.Release(o.key.Queue, o.key.Sub, o.releases...)
		}
	}
}
