// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// CreateQueue creates a queue and its first subscriptions.
func (s *Service) CreateQueue(ctx context.Context, req *pb.CreateQueueRequest) (*pb.CreateQueueResponse, error) {
	resp, err := s.createQueue(ctx, req)
	return resp, s.status(err)
}

// creation is one CreateQueue call.
type creation struct {
	*Service

	req      *pb.CreateQueueRequest
	session  *session.Session
	origin   origin
	config   txn.Config
	explicit txn.ConfigMask
	subs     []string
}

func (s *Service) createQueue(ctx context.Context, req *pb.CreateQueueRequest) (*pb.CreateQueueResponse, error) {
	if err := s.mayConfigure(ctx, req.GetName(), req.GetConfig()); err != nil {
		return nil, fmt.Errorf("create queue %q: %w", req.GetName(), err)
	}
	c := &creation{Service: s, req: req}
	var err error
	if c.session, err = s.serving.Session(); err != nil {
		return nil, err
	}
	if c.subs, err = subscriptionNames(req); err != nil {
		return nil, err
	}
	if err := c.checkNames(); err != nil {
		return nil, err
	}
	if c.origin, err = s.identify(req.GetProducer(), req.GetName()); err != nil {
		return nil, err
	}
	if c.explicit, err = configFields("explicit_fields", req.GetExplicitFields()); err != nil {
		return nil, fmt.Errorf("create queue %q: %w", req.GetName(), err)
	}
	result, err := c.run(ctx)
	switch {
	case err == nil:
		return &pb.CreateQueueResponse{
			Queue: s.describeCreated(c.session, req.GetName(), result.Ops[0].ID), Created: true,
		}, nil
	case !req.GetIfNotExists() || !errors.Is(err, txn.ErrQueueExists):
		return nil, fmt.Errorf("create queue %q: %w", req.GetName(), err)
	}
	described, err := s.describe(c.session, req.GetName())
	if err != nil {
		return nil, err
	}
	return &pb.CreateQueueResponse{Queue: described}, nil
}

// checkNames verifies the names of the queue and of its placement group.
func (c *creation) checkNames() error {
	if err := txn.CheckQueueName(c.req.GetName()); err != nil {
		return err
	}
	if txn.NeedsFeature(c.req.GetName()) {
		if err := c.serving.Require(c.session, failover.FeatureQueues); err != nil {
			return fmt.Errorf("create queue %q: name with braces, or of a partition: %w", c.req.GetName(), err)
		}
	}
	if group := c.req.GetPlacementGroup(); group != "" {
		if err := txn.CheckQueueName(group); err != nil {
			return fmt.Errorf("placement_group: %w", err)
		}
	}
	return nil
}

// run creates the queue, or returns the result of an earlier attempt.
func (c *creation) run(ctx context.Context) (*txn.Result, error) {
	var missing error // the dead-letter queue does not exist at this pair
	var err error
	c.config, _, err = c.Service.config(c.session, c.req.GetConfig(), txn.AllFields)
	switch {
	case c.origin.prior != nil:
		return c.repeat(ctx)
	case c.fleet != nil && isMissing(err):
		missing = err
	case c.origin.mustLog(err): // named queues may have been deleted since an earlier attempt
	case err != nil:
		return nil, err
	}
	if c.fleet != nil {
		return c.runInFleet(ctx, missing)
	}
	if err := c.checkNewQueue(c.req.GetName(), c.origin.retry); err != nil {
		return nil, err
	}
	return c.commitCounted(ctx, 0)
}

// checkNewQueue returns an error if the queue exists, or if a new queue would exceed limits.queues. If retry is set,
// the queue may exist.
func (s *Service) checkNewQueue(name string, retry bool) error {
	names := [1]query.Target{{Queue: name}}
	_, err := query.Lookup(s.store, nil, false, names[:]) // only at this pair: the queue must not exist
	switch {
	case err != nil:
		return err
	case names[0].Found && !retry:
		return txn.ErrQueueExists
	case !names[0].Found:
		return s.checkQueueCount()
	}
	return nil
}

func (s *Service) checkQueueCount() error {
	if query.QueueCount(s.store) >= s.limits.Load().Queues {
		return fmt.Errorf("%w (limits.queues is %d)", txn.ErrTooManyQueues, s.limits.Load().Queues)
	}
	return nil
}

// commitCounted is like commit, and enforces the quotas for the number of queues.
func (c *creation) commitCounted(ctx context.Context, epoch uint64) (*txn.Result, error) {
	if len(c.quotas.Load().of(c.req.GetName())) > 0 {
		c.createMu.Lock() // held until the queue exists and is counted
		defer c.createMu.Unlock()
		if err := c.mayCreate(c.req.GetName()); err != nil {
			return nil, err
		}
	}
	return c.commit(ctx, epoch)
}

// commit commits the creation under an ownership epoch, or without one if epoch is 0.
func (c *creation) commit(ctx context.Context, epoch uint64) (*txn.Result, error) {
	return c.Service.commit(ctx, c.session, c.origin, func(b *txn.Builder) {
		if epoch > 0 {
			b.OwnQueue(c.req.GetName(), epoch)
		}
		explicit := c.Service.explicit(c.session, &c.config, c.explicit)
		b.CreateQueueWith(c.req.GetName(), c.config, explicit, c.subs...)
	})
}

// runInFleet creates the queue if the directory assigns the name to this pair. missing is the error for the
// dead-letter queue.
func (c *creation) runInFleet(ctx context.Context, missing error) (*txn.Result, error) {
	name := c.req.GetName()
	found := [1]query.Target{{Queue: name}}
	prior, absent, err := c.resolve(c.origin.producer, c.origin.retry, found[:])
	switch {
	case err != nil:
		return nil, err
	case prior != nil: // it was applied in the meantime
		c.origin.prior = prior
		return c.repeat(ctx)
	case found[0].Found && c.origin.retry:
		return c.commit(ctx, 0)
	case found[0].Found:
		return nil, txn.ErrQueueExists
	case errors.Is(absent, apierror.ErrNotOwner):
		return c.refuse(ctx, absent)
	case missing != nil && !errors.Is(missing, apierror.ErrNotOwner):
		return c.refuse(ctx, missing)
	}
	if err := c.serving.Require(c.session, failover.FeatureQueues); err != nil {
		return nil, err
	}
	var result *txn.Result
	assigned := false
	err = c.fleet.Create(ctx, c.session.Primary, name, c.req.GetPlacementGroup(), func(epoch uint64) (err error) {
		assigned = true
		result, err = c.commitAssigned(ctx, epoch, missing)
		return err
	})
	if !assigned && errors.Is(err, apierror.ErrNotOwner) {
		return c.refuse(ctx, err)
	}
	return result, err
}

// commitAssigned commits the creation after the directory has assigned the name to this pair, or without an epoch if
// the queue exists. It returns when the outcome is known.
func (c *creation) commitAssigned(ctx context.Context, epoch uint64, missing error) (*txn.Result, error) {
	ctx = context.WithoutCancel(ctx)
	if epoch == 0 && !c.origin.retry {
		return nil, txn.ErrQueueExists
	}
	if epoch == 0 {
		return c.commit(ctx, 0)
	}
	if missing != nil {
		return nil, crossPair(missing)
	}
	if err := c.checkQueueCount(); err != nil {
		return nil, err
	}
	result, err := c.commitCounted(ctx, epoch)
	if err == nil && result.Duplicate {
		if _, exists := query.OwnershipEpoch(c.store, c.req.GetName()); !exists { // deleted since the first attempt
			c.fleet.Deleted(c.req.GetName(), epoch)
		}
	}
	return result, err
}

// repeat returns the result of an earlier attempt. If refuse logged it, the name belonged to another pair, or the
// dead-letter queue was missing. Either can have changed since, so the client must repeat the request under a new
// sequence.
func (c *creation) repeat(ctx context.Context) (*txn.Result, error) {
	if c.fleet != nil && c.origin.prior.Result.Code == txn.ErrQueueNotFound {
		if missing := c.missingOf(c.req.GetName()); !replaces(missing) {
			c.origin.absent = fmt.Errorf("queue %q: %w", c.req.GetName(), txn.ErrMoved)
		}
	}
	return c.commit(ctx, 0)
}

// refuse returns an error for a queue that does not exist at this pair. For a retry, the log decides the outcome:
// refuse logs a purge without a queue, which is refused unless an earlier attempt was committed. If the owner is
// unknown, a retry is not logged.
func (c *creation) refuse(ctx context.Context, because error) (*txn.Result, error) {
	if !c.origin.retry || !errors.Is(because, apierror.ErrNotOwner) && !errors.Is(because, txn.ErrQueueNotFound) {
		return nil, because
	}
	c.origin.absent = because
	return c.Service.commit(ctx, c.session, c.origin, func(b *txn.Builder) { b.Purge(txn.NoQueue, 0) })
}
