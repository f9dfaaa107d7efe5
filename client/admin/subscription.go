// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// RedeliveryPolicy contains the settings of a subscription that override the configuration of its queue, with the
// limits and semantics of [QueueConfig]. A nil field inherits the current value of the queue.
type RedeliveryPolicy struct {
	MaxDeliveries *uint32
	// DeadLetter also receives expired messages if the queue has DeadLetterExpired.
	DeadLetter           *string
	RedeliveryDelay      *time.Duration
	RedeliveryMultiplier *float64
	RedeliveryMaxDelay   *time.Duration
	AckTimeout           *time.Duration
}

// Names of the fields of a RedeliveryPolicy, for SubscriptionChange.Inherit.
const (
	PolicyMaxDeliveries        = "max_deliveries"
	PolicyDeadLetter           = "dead_letter"
	PolicyRedeliveryDelay      = "redelivery_delay"
	PolicyRedeliveryMultiplier = "redelivery_multiplier"
	PolicyRedeliveryMaxDelay   = "redelivery_max_delay"
	PolicyAckTimeout           = "ack_timeout"
)

// PolicyFields returns the names of all fields of a RedeliveryPolicy.
func PolicyFields() []string {
	return []string{
		PolicyMaxDeliveries, PolicyDeadLetter, PolicyRedeliveryDelay, PolicyRedeliveryMultiplier, PolicyRedeliveryMaxDelay,
		PolicyAckTimeout,
	}
}

// Config returns the policy as fields of a QueueConfig, and the names of the fields that are set.
func (p RedeliveryPolicy) Config() (c QueueConfig, set []string) {
	set = override(set, PolicyMaxDeliveries, &c.MaxDeliveries, p.MaxDeliveries)
	set = override(set, PolicyDeadLetter, &c.DeadLetter, p.DeadLetter)
	set = override(set, PolicyRedeliveryDelay, &c.RedeliveryDelay, p.RedeliveryDelay)
	set = override(set, PolicyRedeliveryMultiplier, &c.RedeliveryMultiplier, p.RedeliveryMultiplier)
	set = override(set, PolicyRedeliveryMaxDelay, &c.RedeliveryMaxDelay, p.RedeliveryMaxDelay)
	set = override(set, PolicyAckTimeout, &c.AckTimeout, p.AckTimeout)
	return c, set
}

func override[T any](set []string, name string, to, value *T) []string {
	if value == nil {
		return set
	}
	*to = *value
	return append(set, name)
}

// PolicyOf returns the policy with the given fields of a QueueConfig. It is the inverse of [RedeliveryPolicy.Config].
func PolicyOf(c QueueConfig, set []string) RedeliveryPolicy {
	return RedeliveryPolicy{
		MaxDeliveries:        ifSet(set, PolicyMaxDeliveries, c.MaxDeliveries),
		DeadLetter:           ifSet(set, PolicyDeadLetter, c.DeadLetter),
		RedeliveryDelay:      ifSet(set, PolicyRedeliveryDelay, c.RedeliveryDelay),
		RedeliveryMultiplier: ifSet(set, PolicyRedeliveryMultiplier, c.RedeliveryMultiplier),
		RedeliveryMaxDelay:   ifSet(set, PolicyRedeliveryMaxDelay, c.RedeliveryMaxDelay),
		AckTimeout:           ifSet(set, PolicyAckTimeout, c.AckTimeout),
	}
}

func ifSet[T any](set []string, name string, value T) *T {
	if !slices.Contains(set, name) {
		return nil
	}
	return &value
}

func (p RedeliveryPolicy) check() error {
	c, _ := p.Config()
	return c.check()
}

func (p RedeliveryPolicy) toProto() *pb.RedeliveryPolicy {
	if p == (RedeliveryPolicy{}) {
		return nil
	}
	out := &pb.RedeliveryPolicy{
		MaxDeliveries: p.MaxDeliveries, DeadLetter: p.DeadLetter, RedeliveryMultiplier: p.RedeliveryMultiplier,
	}
	if p.RedeliveryDelay != nil {
		out.RedeliveryDelay = durationpb.New(*p.RedeliveryDelay)
	}
	if p.RedeliveryMaxDelay != nil {
		out.RedeliveryMaxDelay = durationpb.New(*p.RedeliveryMaxDelay)
	}
	if p.AckTimeout != nil {
		out.AckTimeout = durationpb.New(*p.AckTimeout)
	}
	return out
}

func policyFromProto(in *pb.RedeliveryPolicy) (p RedeliveryPolicy) {
	if in == nil {
		return p
	}
	p.MaxDeliveries, p.DeadLetter, p.RedeliveryMultiplier = in.MaxDeliveries, in.DeadLetter, in.RedeliveryMultiplier
	if in.RedeliveryDelay != nil {
		p.RedeliveryDelay = new(in.GetRedeliveryDelay().AsDuration())
	}
	if in.RedeliveryMaxDelay != nil {
		p.RedeliveryMaxDelay = new(in.GetRedeliveryMaxDelay().AsDuration())
	}
	if in.AckTimeout != nil {
		p.AckTimeout = new(in.GetAckTimeout().AsDuration())
	}
	return p
}

func subscriptionFromProto(s *pb.Subscription) Subscription {
	out := Subscription{
		Name: s.GetName(), Floor: s.GetFloor(), Backlog: s.GetBacklog(), InFlight: s.GetInFlight(),
		Consumers: s.GetConsumers(), Filter: s.GetFilter(), Redelivery: policyFromProto(s.GetRedelivery()),
		Pause: pauseFromProto(s.GetPause()), OldestInFlightAge: s.GetOldestInFlightAge().AsDuration(),
	}
	if a := s.GetActiveConsumer(); a != nil {
		out.Active = &ActiveConsumer{Address: a.GetAddress(), Since: a.GetSince().AsTime()}
	}
	return out
}

// SubscriptionChange contains the changes of [Client.AlterSubscription]. Unset fields remain unchanged.
type SubscriptionChange struct {
	// Filter, if not nil, replaces the filter; if empty, the subscription receives all messages. Messages that did not
	// match the old filter may already be acknowledged; they are not delivered.
	Filter *string
	// Redelivery contains the settings to override.
	Redelivery RedeliveryPolicy
	// Inherit names the settings to inherit from the queue again, such as PolicyMaxDeliveries.
	Inherit []string
}

// AlterSubscription changes a subscription. For a partitioned queue, it changes the subscriptions of all partitions
// and returns that of the last partition. Errors include [client.ErrQueueNotFound], also for the dead-letter queue;
// [client.ErrSubscriptionNotFound]; [client.ErrInvalid], also if dead letters would form a cycle or if the change is
// empty; [client.ErrRefused] while one of the nodes runs release 0.1.0.
func (c *Client) AlterSubscription(
	ctx context.Context, queue, name string, what SubscriptionChange,
) (Subscription, error) {
	if err := what.Redelivery.check(); err != nil {
		return Subscription{}, err
	}
	req := &pb.AlterSubscriptionRequest{
		Queue: queue, Name: name, Redelivery: what.Redelivery.toProto(), UpdateMask: &fieldmaskpb.FieldMask{},
	}
	if what.Filter != nil {
		req.Filter = *what.Filter
		req.UpdateMask.Paths = append(req.UpdateMask.Paths, "filter")
	}
	_, set := what.Redelivery.Config()
	for _, field := range what.Inherit {
		if slices.Contains(set, field) {
			return Subscription{}, fmt.Errorf("%w: %s is both set and inherited", client.ErrInvalid, field)
		}
	}
	for _, field := range slices.Concat(set, what.Inherit) {
		req.UpdateMask.Paths = append(req.UpdateMask.Paths, "redelivery."+field)
	}
	var s Subscription
	err := c.forEach(ctx, queue, func(c *Client, at target) error {
		r := proto.CloneOf(req)
		r.Queue = at.name
		if r.GetRedelivery().GetDeadLetter() != "" {
			deadLetter, err := c.partOf(ctx, at, r.GetRedelivery().GetDeadLetter())
			if err != nil {
				return err
			}
			r.Redelivery.DeadLetter = &deadLetter
		}
		resp, err := change(ctx, c, "alter subscription "+name+" of "+at.name, r,
			pb.QueueServiceClient.AlterSubscription)
		s = subscriptionFromProto(resp.GetSubscription())
		return err
	})
	return s, err
}
