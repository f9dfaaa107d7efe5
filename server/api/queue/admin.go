// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"encoding/base64"
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
	queues := []string{req.GetName(), req.GetConfig().GetDeadLetter()}
	session, _, err = s.changeFound(ctx, req.GetProducer(), queues, func() (uint64, uint32, error) {
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
	epoch := uint64(0)
	_, result, err := s.change(ctx, req.GetName(), req.GetProducer(), func(b *txn.Builder, id uint64) {
		epoch, _ = query.OwnershipEpochOf(s.store, id)
		b.DeleteQueue(id, req.GetIfEmpty())
	})
	if err != nil {
		return nil, s.status(fmt.Errorf("delete queue %q: %w", req.GetName(), err))
	}
	if s.fleet != nil && epoch > 0 {
		s.fleet.Deleted(req.GetName(), epoch)
	}
	return &pb.DeleteQueueResponse{Messages: result.Ops[0].Changed}, nil
}

func (s *Service) change(
	ctx context.Context, name string, producer *pb.Producer, operation func(*txn.Builder, uint64),
) (*session.Session, *txn.Result, error) {
	return s.changeFound(ctx, producer, []string{name}, func() (uint64, uint32, error) {
		id, err := s.find(name)
		return id, txn.NoSub, err
	}, func(b *txn.Builder, id uint64, _ uint32) { operation(b, id) })
}

// changeFound commits one operation on a queue or subscription. queues are the names of the queues in the request.
func (s *Service) changeFound(
	ctx context.Context, producer *pb.Producer, queues []string, find func() (uint64, uint32, error),
	operation func(*txn.Builder, uint64, uint32),
) (*session.Session, *txn.Result, error) {
	session, err := s.serving.Session()
	if err != nil {
		return nil, nil, err
	}
	o, err := s.identify(producer, queues...)
	if err != nil {
		return nil, nil, err
	}
	var id uint64
	var sub uint32
	if o.prior == nil {
		id, sub, err = find()
		if err = s.withOthers(err, queues); err != nil && !o.mustLog(err) {
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
	queues := []string{req.GetName()}
	session, result, err := s.changeFound(ctx, req.GetProducer(), queues, func() (id uint64, sub uint32, err error) {
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
