// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// fencedQueues contains the queues for which a request of a stream was refused when it was applied, because the queue
// is fenced or has moved. As with refusedQueues, later requests to these queues must not be executed, even if the
// fence is removed.
type fencedQueues struct {
	any    atomic.Bool
	byName sync.Map
}

func (f *fencedQueues) add(queue string) {
	f.byName.Store(queue, true)
	f.any.Store(true)
}

func (f *fencedQueues) has(queue string) bool {
	if !f.any.Load() {
		return false
	}
	_, has := f.byName.Load(queue)
	return has
}

func (f *fencedQueues) remove(queue string) {
	if f.any.Load() {
		f.byName.Delete(queue)
	}
}

// refusedFor returns the error for requests to a queue, or nil.
func (p *publishStream) refusedFor(queue string) error {
	if err := p.refused.of(queue); err != nil || !p.fenced.has(queue) {
		return err
	}
	return p.server.movedAway(queue)
}

// movedAway returns the error for a queue that was fenced when a request was applied. If the directory names another
// owner, the error contains that owner.
func (s *Service) movedAway(queue string) error {
	if s.fleet == nil {
		return fmt.Errorf("queue %q: %w", queue, txn.ErrMoved)
	}
	if err := s.missingOf(queue); err != nil && !errors.Is(err, txn.ErrQueueNotFound) {
		return err
	}
	return fmt.Errorf("queue %q: %w", queue, txn.ErrMoved)
}

// checkFence returns an error if a queue is fenced.
func (s *Service) checkFence(queue string) error {
	if _, _, fenced := query.Fence(s.store, queue); fenced {
		return fmt.Errorf("consume %q: %w", queue, s.movedAway(queue))
	}
	return nil
}

// WatchMoves ends the consumers of queues that are fenced for a move to another pair, until ctx ends.
func (s *Service) WatchMoves(ctx context.Context) {
	changed, cancel := query.WatchFleet(s.store)
	defer cancel()
	for {
		if session := s.serving.Get(); session != nil && s.fleet != nil {
			s.endFenced(session)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (s *Service) endFenced(session *session.Session) {
	for _, m := range query.Moves(s.store) {
		if m.State != queue.MoveFenced {
			continue
		}
		for _, q := range m.Queues {
			session.Consumers.EndQueue(q.ID, fmt.Errorf("consume %q: %w", q.Name, s.movedAway(q.Name)))
		}
	}
}
