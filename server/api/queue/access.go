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
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/auth/admission"
	"github.com/lockstep-mq/lockstep/server/delivery/twophase"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Operations that the pair performs automatically (dead-lettering, forwards, expiry) are authorized only once, when
// a caller with the manage right configures them.

// maxUsed limits the number of queues that are recorded for one stream. A lost right on a further queue does not end
// the stream. Instead, each request of the stream is checked again after a change of the rules.
const maxUsed = 1000

// caller is the sender of requests, with cached authorization checks. Only one goroutine may call its methods,
// except where noted.
type caller struct {
	service *Service
	id      *access.Identity
	conn    *admission.Conn
	stream  *admission.Stream // nil if the caller is not a stream

	// Cached check of the last publish. It is valid for this generation of the rules and these quotas.
	queue      string
	generation uint64
	quotas     *quotas
	meters     []*meter

	mu    sync.Mutex          // guards the fields below
	right access.Right        // required on all queues that the stream uses
	used  map[string]struct{} // queues that the stream uses
	lose  func(error)         // ends the stream; does not block
}

func (s *Service) callerOf(ctx context.Context) caller {
	return caller{service: s, id: access.FromContext(ctx), conn: admission.FromContext(ctx)}
}

// mayPublish checks the publish right and the quotas. If the publish is permitted, it counts the messages. wait is
// the delay before the caller's next request.
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

func (c *caller) use(name string) error {
	if c.lose == nil {
		return nil // the caller is not a stream
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

// uses reports whether the stream uses a queue that matches a pattern. It is safe for concurrent use.
func (c *caller) uses(pattern string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.used {
		if txn.MatchQueue(pattern, name) {
			return true
		}
	}
	return false
}

// queues returns the names of the recorded queues. It is safe for concurrent use.
func (c *caller) queues() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.used))
}

// lost returns an error if the rules no longer permit the stream to use one of its queues. It is safe for
// concurrent use.
func (c *caller) lost() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.used {
		if err := c.service.rules.May(c.id, c.right, name); err != nil {
			return fmt.Errorf("access rules changed: %w", err)
		}
	}
	return nil
}

// begin registers the caller's stream, which requires a right on the queues that it uses. lose is called when the
// right is lost, and must not block. load adds the credit and the messages in flight of a consumer; it is nil for a
// publish stream. The caller must call end.
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

func (s *Service) callers() []*caller {
	s.runningMu.Lock()
	defer s.runningMu.Unlock()
	return slices.Collect(maps.Keys(s.running))
}

// RulesChanged applies the current rules and quotas. It ends the streams of callers that have lost a required right.
func (s *Service) RulesChanged() {
	s.loadQuotas()
	for _, c := range s.callers() {
		if err := c.lost(); err != nil {
			c.lose(err)
		}
	}
}

// mayConfigure returns an error unless the caller has the manage right on the queue. If config has a dead-letter queue,
// the publish right on that queue is also required.
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

// mayTransact is like mayUse, and also checks the quotas and counts the published messages.
func (s *Service) mayTransact(ctx context.Context, ops []operation) (wait time.Duration, err error) {
	if s.rules.Open() && s.quotas.Load() == nil {
		messages := 0
		for i := range ops {
			messages += len(ops[i].messages)
		}
		admission.FromContext(ctx).Published(messages)
		return 0, nil
	}
	if err := s.mayUse(ctx, ops); err != nil { // check all operations before any counts
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

// mayDecide returns an error unless the caller has the rights that the prepared transaction needs. A heuristic
// decision needs the operate right instead. If the transaction no longer exists, any caller may read its outcome.
func (s *Service) mayDecide(ctx context.Context, d twophase.Decision) error {
	if s.rules.Open() {
		return nil
	}
	if d.By.Heuristic() {
		return s.rules.Check(ctx, access.Operate, "")
	}
	for _, q := range query.PreparedQueues(s.store, d.XID) {
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

func (s *Service) maySee(ctx context.Context, name string) error {
	return s.rules.CheckAny(ctx, access.QueueRights, name)
}
