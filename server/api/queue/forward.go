// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/delivery/filter"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// SetForwards replaces the forwarding rules of a queue.
func (s *Service) SetForwards(ctx context.Context, req *pb.SetForwardsRequest) (*pb.SetForwardsResponse, error) {
	resp, err := s.setForwards(ctx, req)
	if err != nil {
		return nil, s.status(fmt.Errorf("forwards of queue %q: %w", req.GetQueue(), err))
	}
	return resp, nil
}

func (s *Service) setForwards(ctx context.Context, req *pb.SetForwardsRequest) (*pb.SetForwardsResponse, error) {
	if n := len(req.GetForwards()); n > txn.MaxForwards {
		return nil, fmt.Errorf("%w: %d forwards, maximum is %d", apierror.ErrInvalid, n, txn.MaxForwards)
	}
	if err := s.mayForward(ctx, req.GetQueue(), req.GetForwards()); err != nil {
		return nil, err
	}
	if _, err := s.sessionWith(failover.FeatureQueues); err != nil {
		return nil, err
	}
	rules, rulesErr := s.forwards(req.GetForwards())
	queues := []string{req.GetQueue()}
	for _, f := range req.GetForwards() {
		queues = append(queues, f.GetTo())
	}
	session, _, err := s.changeFound(ctx, req.GetProducer(), queues, func() (uint64, uint32, error) {
		if rulesErr != nil {
			return txn.NoQueue, txn.NoSub, rulesErr
		}
		id, err := s.find(req.GetQueue())
		return id, txn.NoSub, err
	}, func(b *txn.Builder, id uint64, _ uint32) { b.SetForwards(id, rules) })
	if err != nil {
		return nil, err
	}
	described, err := s.describe(session, req.GetQueue())
	if err != nil { // the queue was changed and then deleted
		described = &pb.Queue{Name: req.GetQueue(), Forwards: req.GetForwards()}
	}
	return &pb.SetForwardsResponse{Queue: described}, nil
}

// forwards converts forwarding rules. If a target does not exist at this pair, it returns the error (isMissing) and
// valid rules that reference noSuchQueue.
func (s *Service) forwards(in []*pb.Forward) (rules []txn.Forward, err error) {
	for i, f := range in {
		rule := txn.Forward{Target: noSuchQueue, Move: f.GetMove(), Filter: f.GetFilter()}
		if rule.Filter != "" {
			if _, err := s.filters.get(rule.Filter); err != nil {
				return nil, fmt.Errorf("forward %d: %w", i, err)
			}
		}
		id, findErr := s.find(f.GetTo())
		switch {
		case findErr == nil:
			rule.Target = id
		case errors.Is(findErr, txn.ErrQueueNotFound):
			err = errors.Join(err, fmt.Errorf("forward %d: %w: %q; create it first", i, findErr, f.GetTo()))
		case isMissing(findErr):
			err = errors.Join(err, fmt.Errorf("forward %d: %w", i, findErr))
		default:
			return nil, fmt.Errorf("forward %d: %w", i, findErr)
		}
		rules = append(rules, rule)
	}
	return rules, err
}

// appendForwards adds the forwards of the last encoded publish to a transaction.
func (s *Service) appendForwards(b *txn.Builder, queue uint64, rules []txn.Forward) {
	for i := range rules {
		rule := &rules[i]
		indexes, all := s.matching(b, rule)
		if all || len(indexes) > 0 {
			b.Forward(queue, rule.Target, rule.Move, indexes)
		}
	}
}

// matching returns the indexes of the published messages that match a rule. all is true if the rule has no filter or if
// all messages match; indexes is then nil.
func (s *Service) matching(b *txn.Builder, rule *txn.Forward) (indexes []int, all bool) {
	if rule.Filter == "" {
		return nil, true
	}
	f, err := s.filters.get(rule.Filter)
	if err != nil {
		return nil, false // the filter was written by another release and cannot be evaluated
	}
	n := 0
	for rec := range b.Published {
		if f.Match(rec) {
			indexes = append(indexes, n)
		}
		n++
	}
	if len(indexes) == n {
		return nil, true
	}
	return indexes, false
}

const maxFilters = 1024

type filterCache struct { // of the filters of forwarding rules
	mu       sync.RWMutex // guards compiled
	compiled map[string]*filter.Filter
}

func (c *filterCache) get(text string) (*filter.Filter, error) {
	c.mu.RLock()
	f := c.compiled[text]
	c.mu.RUnlock()
	if f != nil {
		return f, nil
	}
	f, err := filter.Compile(text)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.compiled == nil || len(c.compiled) >= maxFilters {
		c.compiled = make(map[string]*filter.Filter)
	}
	c.compiled[text] = f
	return f, nil
}
