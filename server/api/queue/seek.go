// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// SeekSubscription moves a subscription to another position in its queue.
func (s *Service) SeekSubscription(
	ctx context.Context, req *pb.SeekSubscriptionRequest,
) (*pb.SeekSubscriptionResponse, error) {
	resp, err := s.seekSubscription(ctx, req)
	if err != nil {
		return nil, s.status(fmt.Errorf("move subscription %q of queue %q: %w", subscriptionName(req.GetSubscription()),
			req.GetQueue(), err))
	}
	return resp, nil
}

func (s *Service) seekSubscription(
	ctx context.Context, req *pb.SeekSubscriptionRequest,
) (*pb.SeekSubscriptionResponse, error) {
	if err := s.rules.Check(ctx, access.Manage, req.GetQueue()); err != nil {
		return nil, err
	}
	session, err := s.sessionWith(failover.FeatureQueues)
	if err != nil {
		return nil, err
	}
	if err := checkPosition(req); err != nil {
		return nil, err
	}
	o, err := s.identify(req.GetProducer(), req.GetQueue())
	if err != nil {
		return nil, err
	}
	key, sequence := dispatch.Key{Queue: txn.NoQueue, Sub: txn.NoSub}, uint64(1)
	if o.prior == nil {
		key.Queue, key.Sub, err = s.findSub(req.GetQueue(), req.GetSubscription())
		if err == nil {
			sequence, err = s.seekPosition(ctx, key.Queue, req)
		}
		if err != nil && !o.mustLog(err) {
			return nil, err
		}
	}
	var result *txn.Result
	commit := func() (err error) {
		// Wait for the outcome even if the caller cancels the call: no consumer may attach before the outcome is known.
		result, err = s.commit(context.WithoutCancel(ctx), session, o, func(b *txn.Builder) {
			b.Seek(key.Queue, key.Sub, sequence)
		})
		return err
	}
	if o.prior != nil {
		err = commit() // the earlier attempt was committed, and has notified the consumers
	} else {
		err = session.Consumers.Seek(key, commit)
	}
	if err != nil {
		return nil, err
	}
	return &pb.SeekSubscriptionResponse{Sequence: result.Ops[0].FirstSequence, Backlog: result.Ops[0].Changed}, nil
}

// checkPosition returns an error for a position that is invalid in every queue.
func checkPosition(req *pb.SeekSubscriptionRequest) error {
	switch to := req.GetTo().(type) {
	case *pb.SeekSubscriptionRequest_Position:
		if to.Position != pb.StartPosition_START_POSITION_EARLIEST &&
			to.Position != pb.StartPosition_START_POSITION_LATEST {
			return fmt.Errorf("%w: position %d, must be EARLIEST or LATEST", apierror.ErrInvalid, to.Position)
		}
	case *pb.SeekSubscriptionRequest_Sequence:
		if to.Sequence == 0 {
			return fmt.Errorf("%w: sequence is 0, must be at least 1", apierror.ErrInvalid)
		}
	case *pb.SeekSubscriptionRequest_Time:
		return checkPast("time", to.Time)
	default:
		return fmt.Errorf("%w: missing position, sequence or time", apierror.ErrInvalid)
	}
	return nil
}

func checkPast(name string, t *timestamppb.Timestamp) error {
	if err := t.CheckValid(); err != nil {
		return fmt.Errorf("%w: %s: %w", apierror.ErrInvalid, name, err)
	}
	if at, now := t.AsTime(), time.Now(); at.After(now) {
		return fmt.Errorf("%w: %s is %s, in the future (node clock %s); use LATEST for new messages",
			apierror.ErrInvalid, name, at.Format(time.RFC3339Nano), now.UTC().Format(time.RFC3339Nano))
	}
	return nil
}

func (s *Service) seekPosition(ctx context.Context, queueID uint64, req *pb.SeekSubscriptionRequest) (uint64, error) {
	if at, ok := req.GetTo().(*pb.SeekSubscriptionRequest_Time); ok {
		return s.since(ctx, queueID, at.Time)
	}
	next, ok := query.NextSequence(s.store, queueID)
	switch {
	case !ok:
		return 0, txn.ErrQueueNotFound
	case req.GetPosition() == pb.StartPosition_START_POSITION_LATEST:
		return next, nil
	case req.GetPosition() == pb.StartPosition_START_POSITION_EARLIEST:
		return 1, nil
	}
	return req.GetSequence(), checkSequence(req.GetSequence(), next)
}

// checkSequence returns an error if a sequence is greater than next, the sequence of the queue's next message.
func checkSequence(sequence, next uint64) error {
	if sequence > next {
		return fmt.Errorf("%w: %d; next sequence of the queue is %d", txn.ErrBeyondEnd, sequence, next)
	}
	return nil
}

// since returns the sequence of the first message published at t or later. Messages published earlier in the same
// millisecond are included.
func (s *Service) since(ctx context.Context, queueID uint64, t *timestamppb.Timestamp) (uint64, error) {
	sequence, _, _, err := query.FirstSince(ctx, s.store, queueID, 1, t.AsTime().UnixMilli())
	return sequence, err
}

// startPosition returns the start position of a new subscription. sequence is set only for txn.StartSequence.
func (s *Service) startPosition(
	ctx context.Context, session *session.Session, req *pb.CreateSubscriptionRequest, retry bool,
) (start txn.Start, sequence uint64, err error) {
	if start, err = startPosition(req.GetStart()); err != nil {
		return 0, 0, err
	}
	named := 0
	for _, is := range [...]bool{
		req.GetStart() != pb.StartPosition_START_POSITION_UNSPECIFIED, req.GetStartSequence() != 0, req.StartTime != nil,
	} {
		if is {
			named++
		}
	}
	switch {
	case named > 1:
		return 0, 0, fmt.Errorf("%w: set only one of start, start_sequence and start_time", apierror.ErrInvalid)
	case req.GetStartSequence() == 0 && req.StartTime == nil:
		return start, 0, nil
	}
	if err := s.serving.Require(session, failover.FeatureQueues); err != nil {
		return 0, 0, err
	}
	if req.StartTime != nil {
		if err := checkPast("start_time", req.GetStartTime()); err != nil {
			return 0, 0, err
		}
	}
	id, err := s.find(req.GetQueue())
	if err != nil {
		if retry {
			return txn.StartSequence, 1, nil // an earlier attempt may have determined the sequence
		}
		return 0, 0, err
	}
	if req.StartTime != nil {
		sequence, err = s.since(ctx, id, req.GetStartTime())
		return txn.StartSequence, sequence, err
	}
	next, _ := query.NextSequence(s.store, id)
	return txn.StartSequence, req.GetStartSequence(), checkSequence(req.GetStartSequence(), next)
}
