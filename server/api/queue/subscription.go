// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/delivery/filter"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// CreateSubscription creates a subscription of a queue.
func (s *Service) CreateSubscription(
	ctx context.Context, req *pb.CreateSubscriptionRequest,
) (*pb.CreateSubscriptionResponse, error) {
	resp, err := s.createSubscription(ctx, req)
	if err != nil {
		return nil, s.status(fmt.Errorf("create subscription %q of queue %q: %w", req.GetName(), req.GetQueue(), err))
	}
	return resp, nil
}

func (s *Service) createSubscription(
	ctx context.Context, req *pb.CreateSubscriptionRequest,
) (*pb.CreateSubscriptionResponse, error) {
	if err := s.mayConfigure(ctx, req.GetQueue(), req.GetRedelivery()); err != nil {
		return nil, err
	}
	if err := txn.CheckName(req.GetName()); err != nil {
		return nil, err
	}
	session, err := s.serving.Session()
	if err != nil {
		return nil, err
	}
	options, optionsErr := s.subscriptionOptions(session, req.GetFilter(), req.GetRedelivery())
	if optionsErr != nil && !isMissing(optionsErr) {
		return nil, optionsErr
	}
	start, sequence, err := s.startPosition(ctx, session, req, req.GetProducer().GetRetry())
	if err != nil {
		return nil, err
	}
	queues := []string{req.GetQueue(), req.GetRedelivery().GetDeadLetter()}
	session, _, err = s.changeFound(ctx, req.GetProducer(), queues, func() (uint64, uint32, error) {
		if optionsErr != nil { // named queues may have been deleted since an earlier attempt
			return txn.NoQueue, txn.NoSub, optionsErr
		}
		id, err := s.find(req.GetQueue())
		return id, txn.NoSub, err
	}, func(b *txn.Builder, id uint64, _ uint32) {
		if start == txn.StartSequence {
			b.CreateSubscriptionAt(id, req.GetName(), sequence, options)
			return
		}
		b.CreateSubscriptionWith(id, req.GetName(), start, options)
	})
	created := err == nil
	if err != nil && (!req.GetIfNotExists() || !errors.Is(err, txn.ErrSubscriptionExists)) {
		return nil, err
	}
	described, err := s.describe(session, req.GetQueue())
	for _, sub := range described.GetSubscriptions() {
		if sub.GetName() == req.GetName() {
			return &pb.CreateSubscriptionResponse{Subscription: sub, Created: created}, nil
		}
	}
	if created { // the subscription was deleted in the meantime, perhaps with its queue
		return &pb.CreateSubscriptionResponse{Subscription: &pb.Subscription{Name: req.GetName()}, Created: true}, nil
	}
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%w: deleted concurrently", txn.ErrSubscriptionNotFound)
}

// subscriptionOptions converts the options of a subscription. It rejects options that are invalid or that a node
// of the pair does not support. If the dead-letter queue does not exist at this pair, it returns the error (isMissing)
// together with valid options that reference noSuchQueue.
func (s *Service) subscriptionOptions(
	session *session.Session, filter string, policy *pb.RedeliveryPolicy,
) (o txn.SubscriptionOptions, err error) {
	if err := s.checkFilter(filter); err != nil {
		return o, err
	}
	o.Filter = filter
	if o.Own, o.Policy, err = protoconv.Policy(policy); err != nil || o.Own == 0 {
		return o, err
	}
	if err := s.serving.Require(session, failover.FeatureQueues); err != nil {
		return o, err
	}
	if name := policy.GetDeadLetter(); name != "" {
		o.Policy.DeadLetter, err = s.findDeadLetter("redelivery.dead_letter", name)
	}
	return o, err
}

// AlterSubscription changes the filter of a subscription and its overrides of the queue's configuration.
func (s *Service) AlterSubscription(
	ctx context.Context, req *pb.AlterSubscriptionRequest,
) (*pb.AlterSubscriptionResponse, error) {
	resp, err := s.alterSubscription(ctx, req)
	if err != nil {
		return nil, s.status(fmt.Errorf("alter subscription %q of queue %q: %w", subscriptionName(req.GetName()),
			req.GetQueue(), err))
	}
	return resp, nil
}

func (s *Service) alterSubscription(
	ctx context.Context, req *pb.AlterSubscriptionRequest,
) (*pb.AlterSubscriptionResponse, error) {
	if err := s.mayConfigure(ctx, req.GetQueue(), req.GetRedelivery()); err != nil {
		return nil, err
	}
	change, err := subscriptionChange(req)
	if err != nil {
		return nil, err
	}
	session, err := s.sessionWith(failover.FeatureQueues)
	if err != nil {
		return nil, err
	}
	options, optionsErr := s.subscriptionOptions(session, change.Options.Filter, req.GetRedelivery())
	if optionsErr != nil && !isMissing(optionsErr) {
		return nil, optionsErr
	}
	// Fields outside the mask remain unchanged.
	options.Own &= change.Fields
	options.Policy = txn.Config{}.With(options.Policy, options.Own)
	change.Options = options
	var altered uint64
	queues := []string{req.GetQueue(), req.GetRedelivery().GetDeadLetter()}
	session, _, err = s.changeFound(ctx, req.GetProducer(), queues, func() (uint64, uint32, error) {
		if optionsErr != nil { // named queues may have been deleted since an earlier attempt
			return txn.NoQueue, txn.NoSub, optionsErr
		}
		return s.findSub(req.GetQueue(), req.GetName())
	}, func(b *txn.Builder, id uint64, sub uint32) {
		altered = id
		b.AlterSubscription(id, sub, change)
	})
	if err != nil {
		return nil, err
	}
	session.Consumers.Altered(altered)
	name := subscriptionName(req.GetName())
	described, err := s.describe(session, req.GetQueue())
	for _, sub := range described.GetSubscriptions() {
		if err == nil && sub.GetName() == name {
			return &pb.AlterSubscriptionResponse{Subscription: sub}, nil
		}
	}
	// The subscription was altered and then deleted, perhaps with its queue.
	return &pb.AlterSubscriptionResponse{Subscription: &pb.Subscription{Name: name}}, nil
}

func subscriptionChange(req *pb.AlterSubscriptionRequest) (c txn.SubscriptionChange, err error) {
	if c.Filter, c.Fields, err = protoconv.SubscriptionMask(req.GetUpdateMask()); c.Filter {
		c.Options.Filter = req.GetFilter()
	}
	return c, err
}

func (s *Service) checkFilter(text string) error {
	if text == "" {
		return nil
	}
	if _, err := filter.Compile(text); err != nil {
		return err
	}
	_, err := s.sessionWith(failover.FeatureQueues)
	return err
}

// DeleteSubscription deletes a subscription. Messages that only this subscription has not acknowledged are deleted,
// unless the queue retains them.
func (s *Service) DeleteSubscription(
	ctx context.Context, req *pb.DeleteSubscriptionRequest,
) (*pb.DeleteSubscriptionResponse, error) {
	err := s.rules.Check(ctx, access.Manage, req.GetQueue())
	if err == nil {
		err = txn.CheckName(req.GetName())
	}
	if err == nil {
		_, _, err = s.changeFound(ctx, req.GetProducer(), []string{req.GetQueue()}, func() (uint64, uint32, error) {
			return s.findSub(req.GetQueue(), req.GetName())
		}, (*txn.Builder).DeleteSubscription)
	}
	if err != nil {
		return nil, s.status(fmt.Errorf("delete subscription %q of queue %q: %w", req.GetName(), req.GetQueue(), err))
	}
	return &pb.DeleteSubscriptionResponse{}, nil
}
