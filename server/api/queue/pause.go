// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// pauseRequest is a *pb.PauseQueueRequest or a *pb.ResumeQueueRequest.
type pauseRequest interface {
	GetQueue() string
	GetSubscription() string
	GetPublish() bool
	GetDeliver() bool
	GetProducer() *pb.Producer
}

// PauseQueue pauses a queue or one of its subscriptions.
func (s *Service) PauseQueue(ctx context.Context, req *pb.PauseQueueRequest) (*pb.PauseQueueResponse, error) {
	by := access.FromContext(ctx).Principal
	if by == access.Anonymous {
		by = ""
	}
	queue, err := s.changePause(ctx, req, req.GetReason(), func(b *txn.Builder, id uint64, sub uint32, p txn.Pause) {
		p.By, p.Reason = by, req.GetReason()
		b.Pause(id, sub, p)
	})
	if err != nil {
		return nil, s.status(fmt.Errorf("pause %s: %w", pauseTarget(req), err))
	}
	return &pb.PauseQueueResponse{Queue: queue}, nil
}

// ResumeQueue ends the pause of a queue or of one of its subscriptions.
func (s *Service) ResumeQueue(ctx context.Context, req *pb.ResumeQueueRequest) (*pb.ResumeQueueResponse, error) {
	queue, err := s.changePause(ctx, req, "", func(b *txn.Builder, id uint64, sub uint32, p txn.Pause) {
		b.Resume(id, sub, p.Publish, p.Deliver)
	})
	if err != nil {
		return nil, s.status(fmt.Errorf("resume %s: %w", pauseTarget(req), err))
	}
	return &pb.ResumeQueueResponse{Queue: queue}, nil
}

func pauseTarget(req pauseRequest) string {
	if req.GetSubscription() == "" {
		return fmt.Sprintf("queue %q", req.GetQueue())
	}
	return fmt.Sprintf("subscription %q of queue %q", req.GetSubscription(), req.GetQueue())
}

func (s *Service) changePause(
	ctx context.Context, req pauseRequest, reason string, operation func(*txn.Builder, uint64, uint32, txn.Pause),
) (*pb.Queue, error) {
	if err := s.rules.Check(ctx, access.Manage, req.GetQueue()); err != nil {
		return nil, err
	}
	p, err := directions(req)
	if err != nil {
		return nil, err
	}
	if len(reason) > txn.MaxPauseTextBytes || !utf8.ValidString(reason) {
		return nil, fmt.Errorf("%w: reason has %d bytes; it must be UTF-8 of at most %d", apierror.ErrInvalid,
			len(reason), txn.MaxPauseTextBytes)
	}
	if _, err := s.sessionWith(failover.FeatureQueues); err != nil {
		return nil, err
	}
	var paused uint64
	queues := []string{req.GetQueue()}
	session, _, err := s.changeFound(ctx, req.GetProducer(), queues, func() (id uint64, sub uint32, err error) {
		if req.GetSubscription() == "" {
			id, err = s.find(req.GetQueue())
			return id, 0, err
		}
		return s.findSub(req.GetQueue(), req.GetSubscription())
	}, func(b *txn.Builder, id uint64, sub uint32) {
		paused = id
		operation(b, id, sub, p)
	})
	if err != nil {
		return nil, err
	}
	session.Consumers.Altered(paused)
	described, err := s.describe(session, req.GetQueue())
	if err != nil { // the queue was changed and then deleted
		described = &pb.Queue{Name: req.GetQueue()}
	}
	return described, nil
}

// directions returns the directions to pause or resume. A request without directions selects both directions of a
// queue, or the delivery of a subscription.
func directions(req pauseRequest) (p txn.Pause, err error) {
	p.Publish, p.Deliver = req.GetPublish(), req.GetDeliver()
	switch sub := req.GetSubscription() != ""; {
	case sub && p.Publish:
		return p, fmt.Errorf("%w: publishing can only be paused for a queue; omit the subscription", apierror.ErrInvalid)
	case !p.Paused():
		p.Publish, p.Deliver = !sub, true
	}
	return p, nil
}
