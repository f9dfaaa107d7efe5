// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"

	"github.com/lockstep-mq/lockstep/amqp/session"
	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	// volatilePrefix is the prefix of the names of subscriptions that are deleted with their link or their last
	// consumer.
	volatilePrefix = "amqp-volatile."
	// linkDelimiter separates, in a link name, the name of a subscription from a suffix that distinguishes the links of
	// the subscription.
	linkDelimiter = "|"
)

type subscription struct {
	name     string
	volatile bool
	shared   bool
}

// subscriptionOf returns the subscription of a link. The client's container and the link name identify it; a global
// subscription is identified by the link name only. A volatile subscription that is not shared has a random name.
func (c *conn) subscriptionOf(a *wire.Attach) subscription {
	source := a.Source
	s := subscription{
		volatile: source.Durable == wire.DurabilityNone && source.ExpiryPolicy != wire.ExpiryNever,
		shared:   slices.Contains(source.Capabilities, capShared),
	}
	name := a.Name
	if s.shared {
		name = firstPart(name)
	}
	switch {
	case s.shared && slices.Contains(source.Capabilities, capGlobal):
		s.name = cleanName(name)
	case s.volatile && !s.shared:
		s.name = uuid.NewString()
	default:
		s.name = cleanName(c.peer()) + "." + cleanName(name)
	}
	if s.volatile {
		s.name = volatilePrefix + s.name
	}
	return s
}

func (c *conn) subscribe(
	ctx context.Context, s *consumer, a *wire.Attach, f *filters,
) error {
	sub := c.subscriptionOf(a)
	cel := f.cel
	if f.noLocal {
		cel = both(cel, notFrom(c.peer()))
		c.server.mark(s.queue)
	}
	s.subscription, s.volatile, s.durable = sub.name, sub.volatile, !sub.volatile
	s.single = s.durable && !sub.shared
	if sub.volatile {
		s.leave = c.server.share(s.queue, sub.name)
		c.endIdle(ctx, s.queue)
	}
	resp, err := c.queues.CreateSubscription(ctx, &pb.CreateSubscriptionRequest{
		Queue: s.queue, Name: sub.name, IfNotExists: true, Filter: cel,
	})
	if err != nil {
		if failed(err).reason == "DENIED" {
			// A subscription that was created for the client is sufficient.
			if c.hasSubscription(ctx, s.queue, sub.name, cel) {
				return nil
			}
		}
		return err
	}
	had := resp.GetSubscription()
	if resp.GetCreated() || had.GetFilter() == cel {
		return nil
	}
	if sub.shared && had.GetConsumers() > 0 {
		return session.Errorf(session.NotAllowed, "shared subscription %q has consumers and a different selector than this "+
			"link: use the same selector", sub.name)
	}
	// JMS: a changed selector of a durable subscriber deletes and creates the subscription.
	if _, err := c.queues.DeleteSubscription(ctx, &pb.DeleteSubscriptionRequest{
		Queue: s.queue, Name: sub.name,
	}); err != nil {
		return err
	}
	_, err = c.queues.CreateSubscription(ctx, &pb.CreateSubscriptionRequest{
		Queue: s.queue, Name: sub.name, IfNotExists: true, Filter: cel,
	})
	return err
}

func (c *conn) hasSubscription(ctx context.Context, queue, name, filter string) bool {
	resp, err := c.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: queue})
	return err == nil && slices.ContainsFunc(resp.GetQueue().GetSubscriptions(), func(s *pb.Subscription) bool {
		return s.GetName() == name && s.GetFilter() == filter
	})
}

// recoverSubscription reattaches a link without a source to the durable subscription of its name. Clients unsubscribe
// by closing such a link.
func (c *conn) recoverSubscription(ctx context.Context, l *session.Link, a *wire.Attach) (accept func(), err error) {
	for _, name := range []string{a.Name, firstPart(a.Name)} {
		for _, global := range []bool{false, true} {
			full := cleanName(name)
			if !global {
				full = cleanName(c.peer()) + "." + full
			}
			queue, err := c.findSubscription(ctx, full)
			if err != nil {
				return nil, err
			}
			if queue == nil {
				continue
			}
			s := newConsumer(c, l, queue.GetName())
			s.subscription, s.durable = full, true
			return func() {
				if l.Gone() {
					s.withdraw()
					return
				}
				l.Data = s
				s.reply = session.Reply{Source: &wire.Source{
					Address: queue.GetName(), Durable: wire.DurabilityUnsettled, ExpiryPolicy: wire.ExpiryNever,
					DistributionMode: "move", Capabilities: []wire.Symbol{capTopic},
				}, Target: a.Target}
				s.start()
			}, nil
		}
	}
	return nil, session.Errorf(session.NotFound, "no durable subscription for link %q of container %q", a.Name,
		c.peer())
}

func firstPart(name string) string {
	first, _, _ := strings.Cut(name, linkDelimiter)
	return first
}

// findSubscription returns the queue of a subscription, or nil. In a fleet, it searches the queues of all pairs.
func (c *conn) findSubscription(ctx context.Context, name string) (*pb.Queue, error) {
	found, err := findSubscriptionIn(ctx, c.home.queues, name)
	if c.fleet == nil || found != nil || err != nil {
		return found, err
	}
	for _, other := range c.fleet.Pairs() {
		at, failed := c.pairOf(other)
		if failed == nil {
			found, failed = findSubscriptionIn(ctx, at.queues, name)
		}
		if found != nil {
			return found, nil
		}
		if err == nil {
			err = failed
		}
	}
	return nil, err
}

func findSubscriptionIn(ctx context.Context, queues pb.QueueServiceClient, name string) (*pb.Queue, error) {
	token := ""
	for {
		resp, err := queues.ListQueues(ctx, &pb.ListQueuesRequest{PageToken: token})
		if err != nil {
			return nil, err
		}
		for _, q := range resp.GetQueues() {
			for _, s := range q.GetSubscriptions() {
				if s.GetName() == name {
					return q, nil
				}
			}
		}
		if token = resp.GetNextPageToken(); token == "" {
			return nil, nil //nolint:nilnil // not found
		}
	}
}

func (s *consumer) remove() {
	c := s.c
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.calls), callLimit)
	defer cancel()
	switch {
	case s.dynamic != "":
		c.dropNode(s.dynamic)
	case (s.leave == nil || s.last()) && !s.usedElsewhere(ctx):
		_, err := c.queues.DeleteSubscription(ctx, &pb.DeleteSubscriptionRequest{Queue: s.queue, Name: s.subscription})
		if err != nil && failed(err).code != codes.NotFound {
			c.log.Warn("subscription of a closed AMQP link not deleted: it keeps messages until it is deleted",
				zap.Error(err), zap.String("queue", s.queue), zap.String("subscription", s.subscription))
		}
	}
}

// usedElsewhere reports whether links of other nodes of the fleet use a volatile subscription.
func (s *consumer) usedElsewhere(ctx context.Context) bool {
	if s.c.fleet == nil || !s.volatile {
		return false
	}
	resp, err := s.c.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: s.queue})
	return err == nil && slices.ContainsFunc(resp.GetQueue().GetSubscriptions(), func(sub *pb.Subscription) bool {
		return sub.GetName() == s.subscription && sub.GetConsumers() > 0
	})
}

// last removes the link from the subscription, and reports whether it was the last one of this node.
func (s *consumer) last() bool {
	s.left.Do(func() { s.wasLast = s.leave() })
	return s.wasLast
}

// endIdle deletes volatile subscriptions without links, which remain after a failover. Without a fleet, only the active
// node has links. In a fleet, a link of another node may be about to attach: a subscription must have been idle for
// idleGrace.
func (c *conn) endIdle(ctx context.Context, queue string) {
	resp, err := c.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: queue})
	if err != nil {
		return // not permitted: another client deletes the subscriptions
	}
	for _, sub := range resp.GetQueue().GetSubscriptions() {
		name := sub.GetName()
		if sub.GetConsumers() > 0 {
			c.server.notIdle(queue, name)
		}
		if !strings.HasPrefix(name, volatilePrefix) || sub.GetConsumers() > 0 || c.server.isShared(queue, name) ||
			c.fleet != nil && !c.server.longIdle(queue, name) {
			continue
		}
		fields := []zap.Field{zap.String("queue", queue), zap.String("subscription", name)}
		_, err := c.queues.DeleteSubscription(ctx, &pb.DeleteSubscriptionRequest{Queue: queue, Name: name})
		if err != nil {
			c.log.Warn("subscription of an AMQP link lost in a failover not deleted", append(fields, zap.Error(err))...)
			continue
		}
		c.log.Info("deleted the subscription of an AMQP link lost in a failover", fields...)
	}
}

// takeOverLink detaches a link of the same durable subscription on another connection (2.6.1), if the node has not
// yet detected that the connection was lost. Links to queues are not affected, because clients name such a link
// after its queue on each connection.
func (s *Server) takeOverLink(by *consumer) {
	for _, k := range s.consumersOf(by.queue) {
		if k != by && k.single && k.subscription == by.subscription {
			k.c.contain(k.stolen)
		}
	}
}

func (s *consumer) stolen() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.gone {
		return
	}
	s.finish()
	s.link.Detach(true, session.Errorf(session.LinkStolen, "link was attached on another connection"))
	s.c.signal()
}

func (s *Server) isShared(queue, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sharing[[2]string{queue, name}] > 0
}

const (
	// idleGrace is the minimum time between two checks in which a volatile subscription of a fleet had no links.
	idleGrace = time.Minute
	maxIdle   = 10_000 // recorded idle subscriptions
)

// longIdle records that a volatile subscription has no links, and reports whether this was recorded at least idleGrace
// ago.
func (s *Server) longIdle(queue, name string) bool {
	key, now := [2]string{queue, name}, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	since, known := s.idle[key]
	switch {
	case known && now.Sub(since) >= idleGrace:
		delete(s.idle, key)
		return true
	case !known && len(s.idle) < maxIdle:
		s.idle[key] = now
	}
	return false
}

func (s *Server) notIdle(queue, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.idle, [2]string{queue, name})
}

// share counts a link of a volatile subscription. leave subtracts the link, and reports whether it was the last one of
// this node.
func (s *Server) share(queue, name string) (leave func() bool) {
	key := [2]string{queue, name}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sharing[key]++
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.sharing[key]--; s.sharing[key] > 0 {
			return false
		}
		delete(s.sharing, key)
		return true
	}
}
