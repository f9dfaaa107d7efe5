// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// DefaultSubscription is the subscription of a queue that was made without naming one.
const DefaultSubscription = "default"

// QueueConfig is what can be altered on a queue. The zero value has no limits. Durations have a resolution of a
// millisecond, and are at most 100 years.
type QueueConfig struct {
	// MaxMessages: publishes are refused with ErrLimit while the queue holds this many, or Overflow says otherwise; 0
	// means no limit.
	MaxMessages uint64
	// MaxBytes: the same while the queue holds this many bytes; 0 means no limit.
	MaxBytes uint64
	// MaxDeliveries: a message that a subscription has given to a consumer so many times, and got back each time, is
	// moved to DeadLetter, or dropped and counted if that is empty; 1 to 1,000,000, 0 means no limit. This and
	// DeadLetter are refused with ErrRefused while one of the nodes is of release 0.1.0.
	MaxDeliveries uint32
	// DeadLetter names the queue that messages are moved to that were delivered MaxDeliveries times, or rejected; empty
	// means that they are dropped. That queue must be there and have a subscription, or it keeps nothing; it cannot be
	// deleted as long as it is named here. While it is full, the messages stay where they are, and are not delivered.
	DeadLetter string

	// What follows is refused with ErrRefused while one of the nodes is of release 0.1.0.

	// TTL is how long after it was published a message expires that does not expire earlier by itself: it is not
	// delivered any more. 0 means never.
	TTL time.Duration
	// Delay is how long after it was published a message is delivered that names no time itself; 0 means at once.
	Delay time.Duration
	// RedeliveryDelay is how long a message waits that was given back for the first time, before it is delivered again.
	// A new active delivers at once what waited on the one before.
	RedeliveryDelay time.Duration
	// RedeliveryMultiplier is what RedeliveryDelay is multiplied with for each further time: 1 to 1000, with a
	// resolution of a hundredth; 0 means 1.
	RedeliveryMultiplier float64
	// RedeliveryMaxDelay is the longest that a message waits; 0 means that there is no limit.
	RedeliveryMaxDelay time.Duration
	// RetentionAge, RetentionBytes and RetentionMessages: if any is set, messages are kept although all subscriptions
	// have acknowledged them, until they are older, or those that are kept are larger or more; 0 does not count.
	RetentionAge      time.Duration
	RetentionBytes    uint64
	RetentionMessages uint64
	// Overflow says what happens to a publish to a queue that is full.
	Overflow Overflow
	// Priorities: messages of a higher Priority are delivered first. It is decided when the queue is made.
	Priorities bool
	// Exclusive: only one consumer of each subscription gets messages at a time, the one that was attached first; the
	// next one takes over when it leaves.
	Exclusive bool
	// DeadLetterExpired: messages that expire are moved to DeadLetter; otherwise they are dropped.
	DeadLetterExpired bool
	// TemporaryGrace, if not 0: the queue is deleted, with its messages, when it has had no consumer for so long.
	TemporaryGrace time.Duration
}

// Overflow says what happens to a publish to a queue that is full.
type Overflow int

// Values of Overflow.
const (
	// OverflowReject refuses it with ErrLimit.
	OverflowReject Overflow = iota
	// OverflowDropHead drops the oldest messages to make room for it.
	OverflowDropHead
	// OverflowDeadLetterHead moves the oldest messages to the dead-letter queue, within a moment.
	OverflowDeadLetterHead
)

// String gives the name that the command line uses.
func (o Overflow) String() string {
	if o < 0 || int(o) >= len(overflows) {
		return fmt.Sprintf("overflow %d", int(o))
	}
	return overflows[o]
}

// overflows are the names of the kinds of Overflow, in their order.
var overflows = [...]string{"reject", "drop-head", "dead-letter-head"} //nolint:gochecknoglobals // a constant

// ParseOverflow reads what String gives. The error wraps ErrInvalid.
func ParseOverflow(name string) (Overflow, error) {
	if at := slices.Index(overflows[:], name); at >= 0 {
		return Overflow(at), nil
	}
	return 0, fmt.Errorf("%w: overflow %q is none of %s", ErrInvalid, name, strings.Join(overflows[:], ", "))
}

// maxMaxDeliveries is the largest QueueConfig.MaxDeliveries.
const maxMaxDeliveries = 1_000_000

// maxMultiplier is the largest QueueConfig.RedeliveryMultiplier.
const maxMultiplier = 1000

// check refuses what no node would take.
func (c QueueConfig) check() error {
	if c.MaxDeliveries > maxMaxDeliveries {
		return fmt.Errorf("%w: MaxDeliveries is %d; 1 to %d are possible, and 0 for no limit", ErrInvalid,
			c.MaxDeliveries, maxMaxDeliveries)
	}
	for _, d := range [...]struct {
		name  string
		value time.Duration
	}{
		{"TTL", c.TTL},
		{"Delay", c.Delay},
		{"RedeliveryDelay", c.RedeliveryDelay},
		{"RedeliveryMaxDelay", c.RedeliveryMaxDelay},
		{"RetentionAge", c.RetentionAge},
		{"TemporaryGrace", c.TemporaryGrace},
	} {
		if d.value < 0 || d.value > maxDuration {
			return fmt.Errorf("%w: %s is %s; 0 to 100 years are possible", ErrInvalid, d.name, d.value)
		}
	}
	if m := c.RedeliveryMultiplier; m != 0 && !(m >= 1 && m <= maxMultiplier) { // nor one that is no number
		return fmt.Errorf("%w: RedeliveryMultiplier is %v; 1 to %d are possible, and 0, which means 1", ErrInvalid, m,
			maxMultiplier)
	}
	if c.Overflow < 0 || int(c.Overflow) >= len(overflows) {
		return fmt.Errorf("%w: %s is not known", ErrInvalid, c.Overflow)
	}
	if c.DeadLetter == "" {
		return nil
	}
	return checkName("dead-letter queue", c.DeadLetter)
}

// Queue describes a queue.
type Queue struct {
	// Name is 1 to 255 characters of [A-Za-z0-9._/-], beginning with a letter or digit.
	Name string
	// ID is the store's number of the queue; one that is deleted and made again gets a new one.
	ID uint64
	// Config is what can be altered.
	Config QueueConfig
	// NextSequence is the one that the next message will get.
	NextSequence uint64
	// Messages that at least one subscription has still to acknowledge, or that are retained, and their Bytes.
	Messages, Bytes uint64
	// Subscriptions by name.
	Subscriptions []Subscription
	// Delayed is how many of the messages are not yet to be delivered to any subscription.
	Delayed uint64
	// Dropped is how many messages, counted for each subscription, no consumer could deal with while the queue had no
	// DeadLetter; Expired how many have expired and were not moved to one. Both count since the queue was made.
	Dropped, Expired uint64
	// Forwards say which of the messages that are published to it also go to other queues.
	Forwards []Forward
	// Digest of everything that was ever applied to the queue; equal on both nodes at the same LSN.
	Digest uint64
	// Activity is what happens in it, if that was asked for; otherwise nil.
	Activity *QueueActivity
}

// Subscription describes a durable cursor on a queue.
type Subscription struct {
	// Name is unique in the queue.
	Name string
	// Floor: every sequence below it is acknowledged.
	Floor uint64
	// Backlog is the number of messages not yet acknowledged.
	Backlog uint64
	// InFlight is the number of messages handed to consumers and not yet answered.
	InFlight uint64
	// Consumers attached now.
	Consumers uint32
	// Filter that its messages have to match; empty if it gets all of them. With a filter Backlog is an upper bound:
	// messages that do not match are in it until the active has read them for a consumer.
	Filter string
	// Redelivery is what it has for itself of the queue's configuration.
	Redelivery RedeliveryPolicy
	// Active is the consumer of an Exclusive queue that gets messages, of those that are attached; nil while none is,
	// and of other queues.
	Active *ActiveConsumer
}

// ActiveConsumer is the consumer of an exclusive queue's subscription that gets messages.
type ActiveConsumer struct {
	// Address that its connection comes from, host:port.
	Address string
	// Since when it is the one, by the clock of the active.
	Since time.Time
}

// Start says where a new subscription begins to read.
type Start int

// Values of Start.
const (
	// StartLatest: only messages published after the subscription was made.
	StartLatest Start = iota
	// StartEarliest: every message that some other subscription has still to acknowledge, or that is retained, and all
	// later.
	StartEarliest
)

// CreateQueueOptions of CreateQueue.
type CreateQueueOptions struct {
	// Config of the queue.
	Config QueueConfig
	// Subscriptions are the names of the first ones; none means DefaultSubscription.
	Subscriptions []string
	// Topic begins without any subscription: messages are kept only for those made later.
	Topic bool
	// IfNotExists succeeds, changing nothing, when the queue is there.
	IfNotExists bool
}

// CreateQueue makes a queue. created is false if it was there already and IfNotExists was set. The call can be made
// again after ErrOutcomeUnknown with the Request that it was given, if any. Errors: ErrAlreadyExists, ErrInvalid,
// ErrLimit, ErrQueueNotFound when the dead-letter queue is not there, ErrUnavailable.
func (c *Client) CreateQueue(
	ctx context.Context, name string, o CreateQueueOptions, as ...*Request,
) (q Queue, created bool, err error) {
	if err := checkName("queue", name); err != nil {
		return Queue{}, false, err
	}
	if err := o.Config.check(); err != nil {
		return Queue{}, false, err
	}
	req := &pb.CreateQueueRequest{
		Name: name, Config: o.Config.toProto(), Subscriptions: o.Subscriptions, Topic: o.Topic,
		IfNotExists: o.IfNotExists,
	}
	resp, err := change(ctx, c, "create queue "+name, req, as, pb.QueueServiceClient.CreateQueue)
	if doneBefore(err, ErrAlreadyExists) {
		q, err = c.GetQueue(ctx, name)
		return q, true, err
	}
	return queueFromProto(resp.GetQueue()), resp.GetCreated(), err
}

// AlterQueue replaces the whole configuration of a queue. Errors: ErrQueueNotFound, also when the dead-letter queue is
// not there, ErrInvalid, also when dead letters would come back to their queue, ErrRefused, ErrUnavailable.
func (c *Client) AlterQueue(ctx context.Context, name string, config QueueConfig, as ...*Request) (Queue, error) {
	if err := config.check(); err != nil {
		return Queue{}, err
	}
	req := &pb.AlterQueueRequest{
		Name: name, Config: config.toProto(),
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"*"}},
	}
	resp, err := change(ctx, c, "alter queue "+name, req, as, pb.QueueServiceClient.AlterQueue)
	return queueFromProto(resp.GetQueue()), err
}

// DeleteQueue removes a queue with all of its messages and returns how many there were; with ifEmpty it refuses with
// ErrNotEmpty if there are any. The call can be made again after ErrOutcomeUnknown with the Request that it was given,
// if any: a queue that was made anew meanwhile stays. Errors: ErrQueueNotFound, ErrNotEmpty, ErrRefused for the
// dead-letter queue of another one, ErrUnavailable.
func (c *Client) DeleteQueue(
	ctx context.Context, name string, ifEmpty bool, as ...*Request,
) (messages uint64, err error) {
	req := &pb.DeleteQueueRequest{Name: name, IfEmpty: ifEmpty}
	resp, err := change(ctx, c, "delete queue "+name, req, as, pb.QueueServiceClient.DeleteQueue)
	if doneBefore(err, ErrQueueNotFound) {
		return 0, nil
	}
	return resp.GetMessages(), err
}

// PurgeQueue acknowledges everything that a subscription, or with "" every one, has not acknowledged, and returns the
// number of messages. The call can be made again after ErrOutcomeUnknown with the Request that it was given, if any:
// what was published meanwhile stays. Errors: ErrQueueNotFound, ErrSubscriptionNotFound, ErrUnavailable.
func (c *Client) PurgeQueue(
	ctx context.Context, name, subscription string, as ...*Request,
) (messages uint64, err error) {
	req := &pb.PurgeQueueRequest{Name: name, Subscription: subscription}
	resp, err := change(ctx, c, "purge queue "+name, req, as, pb.QueueServiceClient.PurgeQueue)
	return resp.GetMessages(), err
}

// GetQueue describes one queue. Errors: ErrQueueNotFound, ErrUnavailable.
func (c *Client) GetQueue(ctx context.Context, name string) (Queue, error) {
	resp, err := read(ctx, c, "get queue "+name, &pb.GetQueueRequest{Name: name}, pb.QueueServiceClient.GetQueue)
	return queueFromProto(resp.GetQueue()), err
}

// Queues lists the queues whose name begins with prefix, in the order of their names. It ends after the first error.
func (c *Client) Queues(ctx context.Context, prefix string) iter.Seq2[Queue, error] {
	return func(yield func(Queue, error) bool) {
		token := ""
		for {
			req := &pb.ListQueuesRequest{Prefix: prefix, PageToken: token}
			resp, err := read(ctx, c, "list queues", req, pb.QueueServiceClient.ListQueues)
			if err != nil {
				yield(Queue{}, err)
				return
			}
			for _, q := range resp.GetQueues() {
				if !yield(queueFromProto(q), nil) {
					return
				}
			}
			if token = resp.GetNextPageToken(); token == "" {
				return
			}
		}
	}
}

// SubscriptionOptions of CreateSubscriptionWith.
type SubscriptionOptions struct {
	// Start says where it begins to read, unless At does.
	Start Start
	// At, if it is not the zero value, is where it begins to read. A sequence or a time is refused with ErrInvalid if
	// it is beyond the queue's end or in the future, and with ErrRefused while one of the nodes is of release 0.1.0.
	At Place
	// Filter, if not empty, is an expression in CEL that messages have to match, up to 4,096 bytes: `properties.region
	// == "eu" && priority >= 5`. See docs/reference/queues/filters.md. It is refused with ErrInvalid when it is wrong, and
	// with ErrRefused while one of the nodes is of release 0.1.0.
	Filter string
	// Redelivery is what it has for itself of the queue's configuration. It is refused with ErrRefused while one of the
	// nodes is of release 0.1.0.
	Redelivery RedeliveryPolicy
	// IfNotExists succeeds, changing nothing, when a subscription of that name is there.
	IfNotExists bool
}

// CreateSubscription is CreateSubscriptionWith for one that gets all messages.
func (c *Client) CreateSubscription(
	ctx context.Context, queue, name string, start Start, ifNotExists bool, as ...*Request,
) (s Subscription, created bool, err error) {
	return c.CreateSubscriptionWith(ctx, queue, name, SubscriptionOptions{Start: start, IfNotExists: ifNotExists}, as...)
}

// CreateSubscriptionWith adds a durable cursor to a queue. created, and making the call again, are as with CreateQueue.
// Errors: ErrQueueNotFound, ErrAlreadyExists, ErrInvalid, ErrLimit, ErrRefused, ErrUnavailable.
func (c *Client) CreateSubscriptionWith(
	ctx context.Context, queue, name string, o SubscriptionOptions, as ...*Request,
) (s Subscription, created bool, err error) {
	if err := o.Redelivery.check(); err != nil {
		return Subscription{}, false, err
	}
	req := &pb.CreateSubscriptionRequest{
		Queue: queue, Name: name, IfNotExists: o.IfNotExists, Filter: o.Filter, Redelivery: o.Redelivery.toProto(),
		Start: pb.StartPosition_START_POSITION_LATEST,
	}
	if o.Start == StartEarliest {
		req.Start = pb.StartPosition_START_POSITION_EARLIEST
	}
	if o.At != (Place{}) {
		req.Start, req.StartSequence = o.At.position, o.At.sequence
		if !o.At.time.IsZero() {
			req.StartTime = timestamppb.New(o.At.time)
		}
	}
	op := "create subscription " + name + " on " + queue
	resp, err := change(ctx, c, op, req, as, pb.QueueServiceClient.CreateSubscription)
	if doneBefore(err, ErrAlreadyExists) {
		req.IfNotExists = true // now it only asks for the subscription
		resp, err = change(ctx, c, op, req, nil, pb.QueueServiceClient.CreateSubscription)
		return subscriptionFromProto(resp.GetSubscription()), true, err
	}
	return subscriptionFromProto(resp.GetSubscription()), resp.GetCreated(), err
}

// DeleteSubscription removes a cursor; messages that only it had still to read are gone. Making the call again is as
// with DeleteQueue. Errors: ErrQueueNotFound, ErrSubscriptionNotFound, ErrUnavailable.
func (c *Client) DeleteSubscription(ctx context.Context, queue, name string, as ...*Request) error {
	req := &pb.DeleteSubscriptionRequest{Queue: queue, Name: name}
	_, err := change(ctx, c, "delete subscription "+name+" of "+queue, req, as,
		pb.QueueServiceClient.DeleteSubscription)
	if doneBefore(err, ErrSubscriptionNotFound) {
		return nil
	}
	return err
}

// read makes one call that changes nothing on the active node, as often as needed.
func read[Req, Resp any](
	ctx context.Context, c *Client, op string, req *Req,
	method func(pb.QueueServiceClient, context.Context, *Req, ...grpc.CallOption) (*Resp, error),
) (resp *Resp, err error) {
	err = c.do(ctx, op, nil, func(ctx context.Context, cc *grpc.ClientConn) (err error) {
		resp, err = method(queues(cc), ctx, req)
		return err
	})
	return resp, err
}

// repeat is read for a request that changes something, and that may be carried out more than once.
func repeat[Req, Resp any](
	ctx context.Context, c *Client, op string, req *Req,
	method func(pb.QueueServiceClient, context.Context, *Req, ...grpc.CallOption) (*Resp, error),
) (resp *Resp, err error) {
	err = c.do(ctx, op, new(doubt), func(ctx context.Context, cc *grpc.ClientConn) (err error) {
		resp, err = method(queues(cc), ctx, req)
		return err
	})
	return resp, err
}

func (c QueueConfig) toProto() *pb.QueueConfig {
	out := &pb.QueueConfig{
		MaxMessages: c.MaxMessages, MaxBytes: c.MaxBytes, MaxDeliveries: c.MaxDeliveries, DeadLetter: c.DeadLetter,
		Ttl: durationToProto(c.TTL), Delay: durationToProto(c.Delay),
		RedeliveryDelay: durationToProto(c.RedeliveryDelay), RedeliveryMultiplier: c.RedeliveryMultiplier,
		RedeliveryMaxDelay: durationToProto(c.RedeliveryMaxDelay), RetentionAge: durationToProto(c.RetentionAge),
		RetentionBytes: c.RetentionBytes, RetentionMessages: c.RetentionMessages, Priorities: c.Priorities,
		Exclusive: c.Exclusive, DeadLetterExpired: c.DeadLetterExpired,
		TemporaryGrace: durationToProto(c.TemporaryGrace),
	}
	if c.Overflow != OverflowReject {
		out.Overflow = pb.Overflow(c.Overflow) + pb.Overflow_OVERFLOW_REJECT
	}
	return out
}

func configFromProto(c *pb.QueueConfig) QueueConfig {
	return QueueConfig{
		MaxMessages: c.GetMaxMessages(), MaxBytes: c.GetMaxBytes(), MaxDeliveries: c.GetMaxDeliveries(),
		DeadLetter: c.GetDeadLetter(), TTL: c.GetTtl().AsDuration(), Delay: c.GetDelay().AsDuration(),
		RedeliveryDelay:      c.GetRedeliveryDelay().AsDuration(),
		RedeliveryMultiplier: c.GetRedeliveryMultiplier(),
		RedeliveryMaxDelay:   c.GetRedeliveryMaxDelay().AsDuration(), RetentionAge: c.GetRetentionAge().AsDuration(),
		RetentionBytes: c.GetRetentionBytes(), RetentionMessages: c.GetRetentionMessages(),
		Priorities: c.GetPriorities(), Exclusive: c.GetExclusive(), DeadLetterExpired: c.GetDeadLetterExpired(),
		TemporaryGrace: c.GetTemporaryGrace().AsDuration(),
		Overflow:       max(Overflow(c.GetOverflow())-Overflow(pb.Overflow_OVERFLOW_REJECT), OverflowReject),
	}
}

func queueFromProto(q *pb.Queue) Queue {
	out := Queue{
		Name: q.GetName(), ID: q.GetId(), NextSequence: q.GetNextSequence(), Messages: q.GetMessages(),
		Bytes: q.GetBytes(), Config: configFromProto(q.GetConfig()), Digest: q.GetDigest(),
		Delayed: q.GetDelayed(), Dropped: q.GetDropped(), Expired: q.GetExpired(),
	}
	out.Activity = activityFromProto(q.GetActivity())
	for _, f := range q.GetForwards() {
		out.Forwards = append(out.Forwards, Forward{To: f.GetTo(), Move: f.GetMove(), Filter: f.GetFilter()})
	}
	for _, s := range q.GetSubscriptions() {
		out.Subscriptions = append(out.Subscriptions, subscriptionFromProto(s))
	}
	return out
}
