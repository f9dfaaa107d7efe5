// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// CreateQueue creates a queue and its first subscriptions.
func (s *Service) CreateQueue(ctx context.Context, req *pb.CreateQueueRequest) (*pb.CreateQueueResponse, error) {
	resp, err := s.createQueue(ctx, req)
	return resp, s.status(err)
}

func (s *Service) createQueue(ctx context.Context, req *pb.CreateQueueRequest) (*pb.CreateQueueResponse, error) {
	if err := s.mayConfigure(ctx, req.GetName(), req.GetConfig()); err != nil {
		return nil, fmt.Errorf("create queue %q: %w", req.GetName(), err)
	}
	session, err := s.serving.Session()
	if err != nil {
		return nil, err
	}
	names, err := subscriptionNames(req)
	if err != nil {
		return nil, err
	}
	if err := txn.CheckName(req.GetName()); err != nil {
		return nil, err
	}
	o, err := s.identify(req.GetProducer())
	if err != nil {
		return nil, err
	}
	explicit, err := configFields("explicit_fields", req.GetExplicitFields())
	if err != nil {
		return nil, fmt.Errorf("create queue %q: %w", req.GetName(), err)
	}
	config, _, err := s.config(session, req.GetConfig(), txn.AllFields)
	if o.missing(err) || o.prior != nil {
		err = nil // named queues may have been deleted since an earlier attempt
	}
	if err == nil && o.prior == nil {
		err = s.checkNewQueue(req.GetName(), o.retry)
	}
	if err == nil && o.prior == nil && len(s.quotas.Load().of(req.GetName())) > 0 {
		s.createMu.Lock() // held until the queue exists and is counted
		defer s.createMu.Unlock()
		err = s.mayCreate(req.GetName())
	}
	var result *txn.Result
	if err == nil {
		result, err = s.commit(ctx, session, o, func(b *txn.Builder) {
			b.CreateQueueWith(req.GetName(), config, s.explicit(session, &config, explicit), names...)
		})
	}
	switch {
	case err == nil:
		return &pb.CreateQueueResponse{Queue: s.describeCreated(session, req.GetName(), result.Ops[0].ID), Created: true},
			nil
	case !req.GetIfNotExists() || !errors.Is(err, txn.ErrQueueExists):
		return nil, fmt.Errorf("create queue %q: %w", req.GetName(), err)
	}
	described, err := s.describe(session, req.GetName())
	if err != nil {
		return nil, err
	}
	return &pb.CreateQueueResponse{Queue: described}, nil
}

// checkNewQueue rejects a request before it is logged if it would fail when it is applied. It also enforces the
// queue limit of the node. If retry is set, an earlier attempt may have created the queue.
func (s *Service) checkNewQueue(name string, retry bool) error {
	names := [1]query.Target{{Queue: name}}
	_, err := query.Lookup(s.store, nil, false, names[:])
	switch {
	case err != nil:
		return err
	case names[0].Found && !retry:
		return txn.ErrQueueExists
	case !names[0].Found && query.QueueCount(s.store) >= s.limits.Load().Queues:
		return fmt.Errorf("%w (limits.queues is %d)", txn.ErrTooManyQueues, s.limits.Load().Queues)
	}
	return nil
}

// AlterQueue changes the configuration of a queue.
func (s *Service) AlterQueue(ctx context.Context, req *pb.AlterQueueRequest) (*pb.AlterQueueResponse, error) {
	resp, err := s.alterQueue(ctx, req)
	if err != nil {
		return nil, s.status(fmt.Errorf("alter queue %q: %w", req.GetName(), err))
	}
	return resp, nil
}

func (s *Service) alterQueue(ctx context.Context, req *pb.AlterQueueRequest) (*pb.AlterQueueResponse, error) {
	if err := s.mayConfigure(ctx, req.GetName(), req.GetConfig()); err != nil {
		return nil, err
	}
	fields, err := alteredBy(req)
	if err != nil {
		return nil, err
	}
	session, err := s.serving.Session()
	if err != nil {
		return nil, err
	}
	if fields.reset != 0 {
		if err := s.serving.Require(session, failover.FeatureQueues); err != nil {
			return nil, err
		}
	}
	config, mask, configErr := s.config(session, req.GetConfig(), fields.set)
	if configErr == nil && s.serving.Require(session, failover.FeatureDeadLetters) != nil {
		config, mask, configErr = s.bothLimits(req.GetName(), config, mask)
	}
	var altered uint64
	session, _, err = s.changeFound(ctx, req.GetProducer(), func() (uint64, uint32, error) {
		if configErr != nil {
			return txn.NoQueue, txn.NoSub, configErr
		}
		id, err := s.find(req.GetName())
		return id, txn.NoSub, err
	}, func(b *txn.Builder, id uint64, _ uint32) {
		altered = id
		b.AlterQueueWith(id, config, mask|fields.reset, s.explicit(session, &config, fields.explicit))
	})
	if err != nil {
		return nil, err
	}
	session.Consumers.Altered(altered)
	described, err := s.describe(session, req.GetName())
	if err != nil { // the queue was altered and then deleted
		described = &pb.Queue{Name: req.GetName(), Config: req.GetConfig()}
	}
	return &pb.AlterQueueResponse{Queue: described}, nil
}

// DeleteQueue deletes a queue with all of its messages and subscriptions.
func (s *Service) DeleteQueue(ctx context.Context, req *pb.DeleteQueueRequest) (*pb.DeleteQueueResponse, error) {
	if err := s.rules.Check(ctx, access.Manage, req.GetName()); err != nil {
		return nil, s.status(fmt.Errorf("delete queue %q: %w", req.GetName(), err))
	}
	_, result, err := s.change(ctx, req.GetName(), req.GetProducer(), func(b *txn.Builder, id uint64) {
		b.DeleteQueue(id, req.GetIfEmpty())
	})
	if err != nil {
		return nil, s.status(fmt.Errorf("delete queue %q: %w", req.GetName(), err))
	}
	return &pb.DeleteQueueResponse{Messages: result.Ops[0].Changed}, nil
}

func (s *Service) change(
	ctx context.Context, name string, producer *pb.Producer, operation func(*txn.Builder, uint64),
) (*session.Session, *txn.Result, error) {
	return s.changeFound(ctx, producer, func() (uint64, uint32, error) {
		id, err := s.find(name)
		return id, txn.NoSub, err
	}, func(b *txn.Builder, id uint64, _ uint32) { operation(b, id) })
}

func (s *Service) changeFound(
	ctx context.Context, producer *pb.Producer, find func() (uint64, uint32, error),
	operation func(*txn.Builder, uint64, uint32),
) (*session.Session, *txn.Result, error) {
	session, err := s.serving.Session()
	if err != nil {
		return nil, nil, err
	}
	o, err := s.identify(producer)
	if err != nil {
		return nil, nil, err
	}
	var id uint64
	var sub uint32
	if o.prior == nil {
		if id, sub, err = find(); err != nil && !o.missing(err) {
			return nil, nil, err
		}
	}
	result, err := s.commit(ctx, session, o, func(b *txn.Builder) { operation(b, id, sub) })
	return session, result, err
}

// PurgeQueue acknowledges all messages of a queue for one subscription or for all subscriptions.
func (s *Service) PurgeQueue(ctx context.Context, req *pb.PurgeQueueRequest) (*pb.PurgeQueueResponse, error) {
	if err := s.rules.Check(ctx, access.Manage, req.GetName()); err != nil {
		return nil, s.status(fmt.Errorf("purge queue %q: %w", req.GetName(), err))
	}
	var key dispatch.Key
	var next uint64 // all messages with a lower sequence are purged
	session, result, err := s.changeFound(ctx, req.GetProducer(), func() (id uint64, sub uint32, err error) {
		if req.GetSubscription() == "" {
			id, err = s.find(req.GetName())
			return id, 0, err
		}
		id, sub, err = s.findSub(req.GetName(), req.GetSubscription())
		return id, sub, withSubscription(err, req.GetSubscription())
	}, func(b *txn.Builder, id uint64, sub uint32) {
		key = dispatch.Key{Queue: id, Sub: sub}
		next, _ = query.NextSequence(s.store, id)
		b.Purge(id, sub)
	})
	if err != nil {
		return nil, s.status(fmt.Errorf("purge queue %q: %w", req.GetName(), err))
	}
	if next > 1 && !result.Duplicate { // an earlier attempt may have purged fewer messages
		purged := []txn.Range{{First: 1, Last: next - 1}}
		if key.Sub == 0 {
			session.Consumers.Acknowledged(key.Queue, purged)
		} else {
			session.Consumers.Settled(key, purged, nil)
		}
	}
	return &pb.PurgeQueueResponse{Messages: result.Ops[0].Changed}, nil
}

// GetQueue returns the description of a queue.
func (s *Service) GetQueue(ctx context.Context, req *pb.GetQueueRequest) (*pb.GetQueueResponse, error) {
	if err := s.maySee(ctx, req.GetName()); err != nil {
		return nil, s.status(err)
	}
	session, err := s.serving.Session()
	if err != nil {
		return nil, s.status(err)
	}
	described, err := s.describe(session, req.GetName())
	if err != nil {
		return nil, s.status(err)
	}
	if req.GetActivity() {
		s.describeActivity(ctx, session, []*pb.Queue{described})
	}
	return &pb.GetQueueResponse{Queue: described}, nil
}

// ListQueues returns the descriptions of the queues on which the caller has any right, ordered by name unless the
// request selects another order.
func (s *Service) ListQueues(ctx context.Context, req *pb.ListQueuesRequest) (*pb.ListQueuesResponse, error) {
	session, err := s.serving.Session()
	if err != nil {
		return nil, s.status(err)
	}
	if len(req.GetPrefix()) > txn.MaxNameBytes {
		return nil, s.status(fmt.Errorf("%w: prefix has %d bytes, maximum is %d", apierror.ErrInvalid,
			len(req.GetPrefix()), txn.MaxNameBytes))
	}
	if ordered(req) {
		resp, err := s.listOrdered(ctx, session, req)
		return resp, s.status(err)
	}
	after, err := decodePageToken(req.GetPageToken())
	if err != nil {
		return nil, s.status(err)
	}
	size := pageSize(req.GetPageSize(), maxPageSize)
	resp := &pb.ListQueuesResponse{}
	for samples, more := 0, true; more && len(resp.GetQueues()) < size && samples < maxListScans; samples++ {
		var infos []query.QueueInfo
		infos, more, err = query.Queues(s.store, query.QueueRange{
			Prefix: req.GetPrefix(), After: after, MaxQueues: size - len(resp.GetQueues()),
			MaxSubscriptions: maxPageSubscriptions,
		})
		if err != nil {
			return nil, s.status(err)
		}
		for i := range infos {
			if s.maySee(ctx, infos[i].Name) == nil {
				resp.Queues = append(resp.Queues, queueToProto(&infos[i], session))
			}
		}
		resp.NextPageToken = ""
		if more {
			after = infos[len(infos)-1].Name
			resp.NextPageToken = encodePageToken(after)
		}
	}
	return resp, nil
}

// maxListScans limits the number of pages that are read to fill one page with queues that the caller may see. A page
// that could not be filled nevertheless has a token for the next page.
const maxListScans = 20

func encodePageToken(after string) string { return base64.RawURLEncoding.EncodeToString([]byte(after)) }

func decodePageToken(token string) (string, error) {
	after, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(after) > txn.MaxNameBytes {
		return "", fmt.Errorf("%w: unknown page_token", apierror.ErrInvalid)
	}
	return string(after), nil
}
