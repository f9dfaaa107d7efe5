// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/access"
	"github.com/lockstep-mq/lockstep/server/admission"
	"github.com/lockstep-mq/lockstep/server/prepared"
)

// This file says who may do what with which queue. What the pair does by itself (dead letters, forwards, expiry) is
// decided by who manages the queues, and not looked at again.

// maxUsed is how many queues of one stream are remembered. Of one that uses more, each request is looked at after a
// change of the rules, and the stream itself does not end.
const maxUsed = 1000

// caller is who sends the requests of a stream, and what was found out about it. Its methods are for one goroutine, but
// for those that say so.
type caller struct {
	service *Service
	id      *access.Identity
	conn    *admission.Conn
	stream  *admission.Stream // nil if it is no stream

	// The queue that was published to last, at a generation of the rules, with its quotas.
	queue      string
	generation uint64
	quotas     *quotas
	meters     []*meter

	mu    sync.Mutex // guards what follows
	right access.Right
	used  map[string]struct{} // queues of a stream
	lose  func(error)         // ends the stream; does not block
}

// callerOf a request.
func (s *Service) callerOf(ctx context.Context) caller {
	return caller{service: s, id: access.FromContext(ctx), conn: admission.Of(ctx)}
}

// mayPublish tells whether messages may be published to a queue, and counts them. wait is how long the node is to take
// no other request of the caller.
func (c *caller) mayPublish(name string, messages, sizeBytes int) (wait time.Duration, err error) {
	s := c.service
	if generation, now := s.rules.Generation(), s.quotas.Load(); c.queue != name || c.generation != generation ||
		c.quotas != now {
		if err := s.rules.May(c.id, access.Publish, name); err != nil {
			return 0, err
		}
		c.meters = now.of(name)
		if err := c.use(name); err != nil {
			return 0, err
		}
		c.queue, c.generation, c.quotas = name, generation, now
	}
	for _, m := range c.meters {
		if err := m.mayPublish(sizeBytes); err != nil {
			return 0, err
		}
	}
	for _, m := range c.meters {
		wait = max(wait, m.published(messages, sizeBytes))
	}
	if c.stream != nil {
		c.stream.Passed(messages)
	} else {
		c.conn.Published(messages)
	}
	return wait, nil
}

// use remembers that a stream uses a queue, if the quotas of it leave room for one more.
func (c *caller) use(name string) error {
	if c.lose == nil {
		return nil // no stream
	}
	c.mu.Lock()
	_, known := c.used[name]
	if !known && len(c.used) < maxUsed {
		c.used[name] = struct{}{}
	}
	c.mu.Unlock()
	if known {
		return nil
	}
	err := c.service.checkConnections(name)
	if err != nil {
		c.mu.Lock()
		delete(c.used, name)
		c.mu.Unlock()
	}
	return err
}

// uses tells whether a stream uses a queue that a pattern stands for. It may be called from any goroutine.
func (c *caller) uses(pattern string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.used {
		if access.MatchGlob(pattern, name) {
			return true
		}
	}
	return false
}

// queues gives some of those that a stream uses, by name. It may be called from any goroutine.
func (c *caller) queues() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.used))
}

// lost tells why a stream may not go on under the rules as they are now; nil if it may. It may be called from any
// goroutine.
func (c *caller) lost() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.used {
		if err := c.service.rules.May(c.id, c.right, name); err != nil {
			return fmt.Errorf("the rules were changed: %w", err)
		}
	}
	return nil
}

// begin makes the caller one of a stream, which needs a right on the queues that it uses. load adds what is known of a
// consumer; nil for a stream that publishes. end must be called.
func (c *caller) begin(right access.Right, lose func(error), load func(*admission.Use)) {
	c.right, c.lose, c.used = right, lose, make(map[string]struct{})
	c.stream = c.conn.Open(load != nil, func() admission.Use {
		use := admission.Use{Queues: c.queues()}
		if load != nil {
			load(&use)
		}
		return use
	})
	s := c.service
	s.runningMu.Lock()
	defer s.runningMu.Unlock()
	s.running[c] = struct{}{}
}

func (c *caller) end() {
	c.stream.Close()
	s := c.service
	s.runningMu.Lock()
	defer s.runningMu.Unlock()
	delete(s.running, c)
}

// callers are those of the streams that run.
func (s *Service) callers() []*caller {
	s.runningMu.Lock()
	defer s.runningMu.Unlock()
	list := make([]*caller, 0, len(s.running))
	for c := range s.running {
		list = append(list, c)
	}
	return list
}

// RulesChanged has the service take the rules as they are now: streams that lost a right that they use end.
func (s *Service) RulesChanged() {
	s.loadQuotas()
	for _, c := range s.callers() {
		if err := c.lost(); err != nil {
			c.lose(err)
		}
	}
}

// mayConfigure tells whether the caller may give a queue, or a subscription of it, a configuration: who sends the dead
// letters of one queue to another one publishes there.
func (s *Service) mayConfigure(ctx context.Context, name string, config interface{ GetDeadLetter() string }) error {
	if err := s.rules.Check(ctx, access.Manage, name); err != nil {
		return err
	}
	if to := config.GetDeadLetter(); to != "" {
		if err := s.rules.Check(ctx, access.Publish, to); err != nil {
			return fmt.Errorf("dead_letter: %w", err)
		}
	}
	return nil
}

// mayForward tells whether the caller may have a queue forward to others.
func (s *Service) mayForward(ctx context.Context, name string, forwards []*pb.Forward) error {
	if err := s.rules.Check(ctx, access.Manage, name); err != nil {
		return err
	}
	for i, f := range forwards {
		if err := s.rules.Check(ctx, access.Publish, f.GetTo()); err != nil {
			return fmt.Errorf("forward %d: %w", i, err)
		}
	}
	return nil
}

// mayUse tells whether the caller may do what a transaction does.
func (s *Service) mayUse(ctx context.Context, ops []operation) error {
	if s.rules.Open() {
		return nil
	}
	id := access.FromContext(ctx)
	for i := range ops {
		right := access.Consume
		if ops[i].messages != nil {
			right = access.Publish
		}
		if err := s.rules.May(id, right, ops[i].queue); err != nil {
			return fmt.Errorf("operation %d: %w", i, err)
		}
	}
	return nil
}

// mayTransact tells whether the caller may do what a transaction does, and counts what it publishes.
func (s *Service) mayTransact(ctx context.Context, ops []operation) (wait time.Duration, err error) {
	if s.rules.Open() && s.quotas.Load() == nil {
		messages := 0
		for i := range ops {
			messages += len(ops[i].messages)
		}
		admission.Of(ctx).Published(messages)
		return 0, nil
	}
	if err := s.mayUse(ctx, ops); err != nil { // first all of them: what is refused does not count for the quotas
		return 0, err
	}
	c := s.callerOf(ctx)
	for i := range ops {
		o := &ops[i]
		if o.messages == nil {
			continue
		}
		more, err := c.mayPublish(o.queue, len(o.messages), o.size)
		if err != nil {
			return 0, fmt.Errorf("operation %d: %w", i, err)
		}
		wait = max(wait, more)
	}
	return wait, nil
}

// mayDecide tells whether the caller may decide over a prepared transaction: in the place of its coordinator with the
// right to operate, and otherwise with the rights that the transaction needs. One that is not there says what became of
// it to everybody.
func (s *Service) mayDecide(ctx context.Context, d prepared.Decision) error {
	if s.rules.Open() {
		return nil
	}
	if d.By.Heuristic() {
		return s.rules.Check(ctx, access.Operate, "")
	}
	for _, q := range s.store.PreparedQueues(d.XID) {
		if q.Publishes > 0 {
			if err := s.rules.Check(ctx, access.Publish, q.Queue); err != nil {
				return err
			}
		}
		if q.Acks > 0 {
			if err := s.rules.Check(ctx, access.Consume, q.Queue); err != nil {
				return err
			}
		}
	}
	return nil
}

// maySee tells whether the caller may see a queue: with any right on it.
func (s *Service) maySee(ctx context.Context, name string) error {
	return s.rules.CheckAny(ctx, access.QueueRights, name)
}
