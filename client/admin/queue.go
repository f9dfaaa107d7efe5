// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/internal/link"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Overflow is the behavior of publishes to a full queue.
type Overflow int

// Values of Overflow.
const (
	// OverflowReject rejects the publish with [client.ErrLimit].
	OverflowReject Overflow = iota
	// OverflowDropHead drops the oldest messages.
	OverflowDropHead
	// OverflowDeadLetterHead moves the oldest messages to the dead-letter queue, asynchronously.
	OverflowDeadLetterHead
)

// String returns the name of the value, such as "drop-head".
func (o Overflow) String() string {
	if o < 0 || int(o) >= len(overflows) {
		return fmt.Sprintf("overflow %d", int(o))
	}
	return overflows[o]
}

func (o Overflow) toProto() pb.Overflow {
	if o == OverflowReject {
		return pb.Overflow_OVERFLOW_UNSPECIFIED
	}
	return pb.Overflow(o) + pb.Overflow_OVERFLOW_REJECT
}

func overflowFromProto(o pb.Overflow) Overflow {
	return max(Overflow(o)-Overflow(pb.Overflow_OVERFLOW_REJECT), OverflowReject)
}

var overflows = [...]string{"reject", "drop-head", "dead-letter-head"} //nolint:gochecknoglobals // a constant

// ParseOverflow parses a name returned by String. The error wraps [client.ErrInvalid].
func ParseOverflow(name string) (Overflow, error) {
	if at := slices.Index(overflows[:], name); at >= 0 {
		return Overflow(at), nil
	}
	return 0, fmt.Errorf("%w: overflow %q is none of %s", client.ErrInvalid, name, strings.Join(overflows[:], ", "))
}

// check returns an error for values that cannot be sent. The node validates all other values.
func (c QueueConfig) check() error {
	if c.Overflow < 0 || int(c.Overflow) >= len(overflows) {
		return fmt.Errorf("%w: unknown %s", client.ErrInvalid, c.Overflow)
	}
	if c.DeadLetter == "" {
		return nil
	}
	return checkName("dead-letter queue", c.DeadLetter)
}

// Queue describes a queue.
type Queue struct {
	// Name has 1 to 255 characters of [A-Za-z0-9._/{}-] and begins with a letter or digit.
	Name string
	// ID identifies the queue in its pair. A queue that is deleted and created again has a new ID.
	ID uint64
	// Config contains the values in effect, which are set on the queue itself or by policies.
	Config QueueConfig
	// NextSequence is the sequence of the next message.
	NextSequence uint64
	// Messages is the number of messages that are retained or that a subscription has not acknowledged. Bytes is their
	// size.
	Messages, Bytes uint64
	// Subscriptions are sorted by name.
	Subscriptions []Subscription
	// Delayed is the number of delayed messages, which no subscription can receive yet.
	Delayed uint64
	// Dropped counts, once per subscription, the messages that were dropped at the delivery limit or rejected without a
	// DeadLetter queue. Expired is the number of expired messages that were not moved to a DeadLetter queue.
	Dropped, Expired uint64
	// MessageIDs is the number of message IDs retained for deduplication; some may be older than the DedupWindow.
	// Duplicates is the number of messages discarded as duplicates.
	MessageIDs, Duplicates uint64
	// Forwards are the forwarding rules.
	Forwards []Forward
	// Digest is a digest of the operations applied to the queue. It is equal on both nodes at the same LSN.
	Digest uint64
	// Activity contains the rates and the lag of the queue. It is set only in the result of [Client.ListQueues].
	Activity *QueueActivity
	// Pause describes the pause of the queue; nil if the queue is not paused.
	Pause *Pause
	// Own contains the options that are set on the queue itself.
	Own OwnConfig
	// Partitions contains the partitions of a partitioned queue, in order, without those that do not exist. The other
	// fields of a partitioned queue contain sums, and the options of the first partition; ID, NextSequence and Digest are
	// 0.
	Partitions []Partition
}

// Subscription describes a durable cursor on a queue.
type Subscription struct {
	// Name is unique within the queue.
	Name string
	// Floor is the lowest sequence that is not acknowledged.
	Floor uint64
	// Backlog is the number of messages that are not acknowledged.
	Backlog uint64
	// InFlight is the number of messages delivered to consumers and not yet answered.
	InFlight uint64
	// Consumers is the number of attached consumers.
	Consumers uint32
	// Filter, if not empty, is the expression that messages must match. With a filter, Backlog is an upper bound: it
	// includes non-matching messages that the active has not yet read for a consumer.
	Filter string
	// Redelivery contains the settings that override the configuration of the queue.
	Redelivery RedeliveryPolicy
	// Active is the consumer that receives the messages; nil if the queue is not Exclusive or has no consumer.
	Active *ActiveConsumer
	// Pause describes the pause of the subscription; nil if the subscription is not paused separately. The queue may
	// still be paused.
	Pause *Pause
	// OldestInFlightAge is the time since the delivery of the message that has been in flight longest; 0 if no message is
	// in flight.
	OldestInFlightAge time.Duration
}

// ActiveConsumer is the consumer that receives the messages of an exclusive queue's subscription.
type ActiveConsumer struct {
	// Address is the remote address of the connection of the consumer, host:port.
	Address string
	// Since is the time when the consumer became the active consumer, by the clock of the active node.
	Since time.Time
}

// Start is the start position of a new subscription.
type Start int

// Values of Start.
const (
	// StartLatest starts with messages published after the creation of the subscription.
	StartLatest Start = iota
	// StartEarliest starts with the oldest message that is retained or that another subscription has not acknowledged.
	StartEarliest
)

// CreateQueueOptions configures [Client.CreateQueue].
type CreateQueueOptions struct {
	// Config contains the options that are set on the queue itself.
	Config QueueConfig
	// Explicit names options that are set to 0 on the queue itself, such as "max_deliveries", so that no policy applies
	// to them.
	Explicit []string
	// Subscriptions are the names of the initial subscriptions. Default client.DefaultSubscription.
	Subscriptions []string
	// Topic creates the queue without a subscription. Without retention, messages published before the first subscription
	// exists are not stored.
	Topic bool
	// IfNotExists makes the call succeed without a change if the queue already exists.
	IfNotExists bool
	// PlacementGroup is the placement group in a fleet: the queue is created at the pair of the other queues of this
	// group, or else of the queue with this name. It has the characters of a queue name. Default: the text between the
	// first { and the next } in the name, if any, or else Config.DeadLetter if both queues have the same number of
	// partitions. Pairs without a fleet ignore it.
	PlacementGroup string
	// Partitions, if not 0, creates a partitioned queue, with 2 to 64 partitions that a fleet places at different
	// pairs. The limits of Config apply to each partition. If Config.DeadLetter has the same number of partitions, each
	// partition has the dead-letter queue with the same index, which must be at the same pair. If PlacementGroup names a
	// queue with the same number of partitions, each partition is created at the pair of the partition with the same
	// index. If a call fails, another call creates the missing partitions.
	Partitions int
}

// CreateQueue creates a queue. created is false if the queue already existed and IfNotExists was set. Errors include
// [client.ErrAlreadyExists], [client.ErrInvalid], [client.ErrLimit], [client.ErrQueueNotFound] if the dead-letter
// queue does not exist.
func (c *Client) CreateQueue(
	ctx context.Context, name string, o CreateQueueOptions,
) (q Queue, created bool, err error) {
	if err := checkName("queue", name); err != nil {
		return Queue{}, false, err
	}
	if err := o.Config.check(); err != nil {
		return Queue{}, false, err
	}
	if o.Partitions != 0 {
		return c.createPartitions(ctx, name, o)
	}
	return c.createQueue(ctx, name, o)
}

// createQueue creates a queue that is not partitioned.
func (c *Client) createQueue(
	ctx context.Context, name string, o CreateQueueOptions,
) (q Queue, created bool, err error) {
	if o.PlacementGroup != "" {
		if err := checkName("placement group", o.PlacementGroup); err != nil {
			return Queue{}, false, err
		}
	}
	req := &pb.CreateQueueRequest{
		Name: name, Config: o.Config.toProto(), Subscriptions: o.Subscriptions, Topic: o.Topic,
		IfNotExists: o.IfNotExists, ExplicitFields: o.Explicit, PlacementGroup: o.PlacementGroup,
	}
	resp, err := change(ctx, c, "create queue "+name, req, pb.QueueServiceClient.CreateQueue)
	if doneBefore(err, client.ErrAlreadyExists) {
		q, err = c.GetQueue(ctx, name)
		return q, true, err
	}
	return queueFromProto(resp.GetQueue()), resp.GetCreated(), err
}

// AlterQueue replaces all options that are set on the queue itself; policies apply to options that are 0. To change
// only some options, use [Client.ChangeQueue]. Errors include [client.ErrQueueNotFound], also for the dead-letter
// queue; [client.ErrInvalid], also if dead letters would form a cycle; [client.ErrRefused].
func (c *Client) AlterQueue(ctx context.Context, name string, config QueueConfig) (Queue, error) {
	if err := config.check(); err != nil {
		return Queue{}, err
	}
	return c.alterQueue(ctx, name, &pb.AlterQueueRequest{
		Config: config.toProto(), UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"*"}},
	})
}

func (c *Client) alterQueue(ctx context.Context, name string, req *pb.AlterQueueRequest) (Queue, error) {
	return c.changeEach(ctx, name, func(c *Client, at target) (_ *pb.Queue, err error) {
		r := proto.CloneOf(req)
		r.Name = at.name
		if r.Config.DeadLetter, err = c.partOf(ctx, at, r.GetConfig().GetDeadLetter()); err != nil {
			return nil, err
		}
		resp, err := change(ctx, c, "alter queue "+at.name, r, pb.QueueServiceClient.AlterQueue)
		return resp.GetQueue(), err
	})
}

// QueueChange contains the changes of [Client.ChangeQueue]. Other options remain unchanged.
type QueueChange struct {
	// Config contains the values of the options in Set.
	Config QueueConfig
	// Set names the options to set, such as "max_deliveries". Their values can be 0.
	Set []string
	// Reset names options to unset on the queue: a policy applies to them, or their value is 0.
	Reset []string
}

// ChangeQueue changes options of a queue. Errors are those of [Client.AlterQueue].
func (c *Client) ChangeQueue(ctx context.Context, name string, what QueueChange) (Queue, error) {
	if err := what.Config.check(); err != nil {
		return Queue{}, err
	}
	if len(what.Set)+len(what.Reset) == 0 {
		return Queue{}, fmt.Errorf("%w: no option to change", client.ErrInvalid)
	}
	req := &pb.AlterQueueRequest{Config: what.Config.toProto(), ResetFields: what.Reset}
	if len(what.Set) > 0 {
		req.UpdateMask = &fieldmaskpb.FieldMask{Paths: what.Set}
	}
	return c.alterQueue(ctx, name, req)
}

// DeleteQueue deletes a queue with its messages and returns the number of messages. If ifEmpty is set and the queue
// contains messages, it returns [ErrNotEmpty]. After [client.ErrOutcomeUnknown], retry the call with the same
// [Request]: otherwise, a queue that was created again in the meantime is deleted. Errors include
// [client.ErrQueueNotFound]; [client.ErrRefused] if the queue is a dead-letter queue, the target of a forward, or
// required by a prepared transaction.
func (c *Client) DeleteQueue(
	ctx context.Context, name string, ifEmpty bool,
) (messages uint64, err error) {
	messages, err = c.deleteQueue(ctx, name, ifEmpty)
	if count := partitionsIn(err, name); count > 0 {
		return c.deletePartitions(ctx, name, count, ifEmpty)
	}
	return messages, err
}

func (c *Client) deleteQueue(
	ctx context.Context, name string, ifEmpty bool,
) (messages uint64, err error) {
	req := &pb.DeleteQueueRequest{Name: name, IfEmpty: ifEmpty}
	resp, err := change(ctx, c, "delete queue "+name, req, pb.QueueServiceClient.DeleteQueue)
	if doneBefore(err, client.ErrQueueNotFound) {
		return 0, nil
	}
	return resp.GetMessages(), err
}

// PurgeQueue acknowledges all messages of a subscription, or of all subscriptions if subscription is empty, and
// returns the number of messages. After [client.ErrOutcomeUnknown], retry the call with the same [Request]:
// otherwise, messages that were published in the meantime are purged. Errors include [client.ErrQueueNotFound],
// [client.ErrSubscriptionNotFound].
func (c *Client) PurgeQueue(
	ctx context.Context, name, subscription string,
) (messages uint64, err error) {
	err = c.forEach(ctx, name, func(c *Client, at target) error {
		req := &pb.PurgeQueueRequest{Name: at.name, Subscription: subscription}
		resp, err := change(ctx, c, "purge queue "+at.name, req, pb.QueueServiceClient.PurgeQueue)
		messages += resp.GetMessages()
		return err
	})
	return messages, err
}

// GetQueue returns a queue. For a partitioned queue, it returns the sums of its existing partitions, and the
// partitions in Queue.Partitions. Errors include [client.ErrQueueNotFound].
func (c *Client) GetQueue(ctx context.Context, name string) (Queue, error) {
	q, err := c.getQueue(ctx, name)
	if count := partitionsIn(err, name); count > 0 {
		return c.existingPartitions(ctx, name, count)
	}
	return q, err
}

func (c *Client) getQueue(ctx context.Context, name string) (Queue, error) {
	resp, err := read(ctx, c, "get queue "+name, &pb.GetQueueRequest{Name: name}, pb.QueueServiceClient.GetQueue)
	return queueFromProto(resp.GetQueue()), err
}

// Queues returns an iterator over the queues of the home pair with names that begin with prefix, sorted by name. The
// iteration ends after the first error.
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

// SubscriptionOptions configures [Client.CreateSubscription].
type SubscriptionOptions struct {
	// Start applies unless At is set.
	Start Start
	// At, if not the zero value, is the start position. A sequence beyond the end of the queue, or a time in the future,
	// is rejected with [client.ErrInvalid]. While one of the nodes runs release 0.1.0, any sequence or time is rejected
	// with [client.ErrRefused].
	At Position
	// Filter, if not empty, is a CEL expression of up to 4,096 bytes that messages must match: `properties.region ==
	// "eu" && priority >= 5`. See docs/reference/queues/filters.md. It is rejected with [client.ErrInvalid] if invalid,
	// and with [client.ErrRefused] while one of the nodes runs release 0.1.0.
	Filter string
	// Redelivery overrides the configuration of the queue. It is rejected with [client.ErrRefused] while one of the
	// nodes runs release 0.1.0.
	Redelivery RedeliveryPolicy
	// IfNotExists makes the call succeed without a change if the subscription already exists.
	IfNotExists bool
}

// CreateSubscription creates a durable cursor on a queue. The meaning of created and the rules for retries are those
// of [Client.CreateQueue]. For a partitioned queue, it creates the missing subscriptions of the partitions and
// returns that of the last partition; it does not return ErrAlreadyExists. Errors include [client.ErrQueueNotFound],
// [client.ErrAlreadyExists], [client.ErrInvalid], [client.ErrLimit], [client.ErrRefused].
func (c *Client) CreateSubscription(
	ctx context.Context, queue, name string, o SubscriptionOptions,
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
	if o.At != (Position{}) {
		req.Start, req.StartSequence = o.At.position, o.At.sequence
		if !o.At.time.IsZero() {
			req.StartTime = timestamppb.New(o.At.time)
		}
	}
	err = c.forEach(ctx, queue, func(c *Client, at target) error {
		r := proto.CloneOf(req)
		r.Queue = at.name
		if at.count > 0 {
			r.IfNotExists = true // completes an earlier attempt
		}
		var isNew bool
		s, isNew, err = c.createSubscription(ctx, r)
		created = created || isNew
		return err
	})
	return s, created, err
}

func (c *Client) createSubscription(
	ctx context.Context, req *pb.CreateSubscriptionRequest,
) (s Subscription, created bool, err error) {
	op := "create subscription " + req.GetName() + " on " + req.GetQueue()
	resp, err := change(ctx, c, op, req, pb.QueueServiceClient.CreateSubscription)
	if doneBefore(err, client.ErrAlreadyExists) {
		req.IfNotExists = true // the retry only reads the subscription
		resp, err = change(ctx, c.As(nil), op, req, pb.QueueServiceClient.CreateSubscription)
		return subscriptionFromProto(resp.GetSubscription()), true, err
	}
	return subscriptionFromProto(resp.GetSubscription()), resp.GetCreated(), err
}

// DeleteSubscription deletes a subscription. Messages that only this subscription had not acknowledged are deleted,
// unless the queue retains them. For a partitioned queue, a partition without the subscription is not an error. The
// rules for retries are those of [Client.DeleteQueue]. Errors include [client.ErrQueueNotFound],
// [client.ErrSubscriptionNotFound].
func (c *Client) DeleteSubscription(ctx context.Context, queue, name string) error {
	return c.forEach(ctx, queue, func(c *Client, at target) error {
		req := &pb.DeleteSubscriptionRequest{Queue: at.name, Name: name}
		_, err := change(ctx, c, "delete subscription "+name+" of "+at.name, req,
			pb.QueueServiceClient.DeleteSubscription)
		if doneBefore(err, client.ErrSubscriptionNotFound) || at.count > 0 && errors.Is(err, client.ErrSubscriptionNotFound) {
			return nil
		}
		return err
	})
}

func read[Req, Resp any](
	ctx context.Context, c *Client, op string, req *Req,
	method func(pb.QueueServiceClient, context.Context, *Req, ...grpc.CallOption) (*Resp, error),
) (*Resp, error) {
	return call(ctx, c.conns.Read, op, req, queues, method)
}

// repeat is like read, for a request that changes state and may be executed more than once.
func repeat[Req, Resp any](
	ctx context.Context, c *Client, op string, req *Req,
	method func(pb.QueueServiceClient, context.Context, *Req, ...grpc.CallOption) (*Resp, error),
) (*Resp, error) {
	return call(ctx, c.conns.Repeat, op, req, queues, method)
}

// call calls a method on the active node; via is Read or Repeat of link.Conns.
func call[Service, Req, Resp any](
	ctx context.Context, via func(context.Context, string, link.Target, link.Call) error, op string, req *Req,
	service func(*grpc.ClientConn) Service,
	method func(Service, context.Context, *Req, ...grpc.CallOption) (*Resp, error),
) (*Resp, error) {
	return callAt(ctx, via, op, targetOf(req), req, service, method)
}

func callAt[Service, Req, Resp any](
	ctx context.Context, via func(context.Context, string, link.Target, link.Call) error, op string, at link.Target,
	req *Req, service func(*grpc.ClientConn) Service,
	method func(Service, context.Context, *Req, ...grpc.CallOption) (*Resp, error),
) (resp *Resp, err error) {
	err = via(ctx, op, at, func(ctx context.Context, cc *grpc.ClientConn) (err error) {
		resp, err = method(service(cc), ctx, req)
		return err
	})
	return resp, err
}

// DropDamaged acknowledges, for all subscriptions, the messages of a queue that are corrupt on both nodes of the pair
// that owns it, or on a standalone node. These messages are lost. Errors include [client.ErrQueueNotFound].
func (c *Client) DropDamaged(ctx context.Context, req *pb.DropDamagedRequest) (*pb.DropDamagedResponse, error) {
	service := func(cc *grpc.ClientConn) pb.AdminServiceClient { return pb.NewAdminServiceClient(cc) }
	return call(ctx, c.conns.Repeat, "drop corrupt messages of "+req.GetQueue(), req, service,
		pb.AdminServiceClient.DropDamaged)
}

// targetOf returns the queue or the transaction that determines the pair of a request.
func targetOf(req any) link.Target {
	switch r := req.(type) {
	case *pb.TestAccessRequest, *pb.DeleteQuotaRequest: // their queue is a pattern, or need not exist
		return link.Target{}
	case *pb.CreateQueueRequest:
		return link.Target{Queue: r.GetName()}
	case *pb.AlterQueueRequest:
		return link.Target{Queue: r.GetName()}
	case *pb.DeleteQueueRequest:
		return link.Target{Queue: r.GetName()}
	case *pb.PurgeQueueRequest:
		return link.Target{Queue: r.GetName()}
	case *pb.GetQueueRequest:
		return link.Target{Queue: r.GetName()}
	case interface{ GetQueue() string }:
		return link.Target{Queue: r.GetQueue()}
	case interface{ GetXid() string }:
		return link.Target{XID: r.GetXid()}
	default:
		return link.Target{}
	}
}

func queueFromProto(q *pb.Queue) Queue {
	out := Queue{
		Name: q.GetName(), ID: q.GetId(), NextSequence: q.GetNextSequence(), Messages: q.GetMessages(),
		Bytes: q.GetBytes(), Config: configFromProto(q.GetConfig()), Digest: q.GetDigest(),
		Delayed: q.GetDelayed(), Dropped: q.GetDropped(), Expired: q.GetExpired(),
		MessageIDs: q.GetMessageIds(), Duplicates: q.GetDuplicates(),
	}
	out.Own = ownFromProto(q)
	out.Activity, out.Pause = activityFromProto(q.GetActivity()), pauseFromProto(q.GetPause())
	for _, f := range q.GetForwards() {
		out.Forwards = append(out.Forwards, Forward{To: f.GetTo(), Move: f.GetMove(), Filter: f.GetFilter()})
	}
	for _, s := range q.GetSubscriptions() {
		out.Subscriptions = append(out.Subscriptions, subscriptionFromProto(s))
	}
	return out
}
