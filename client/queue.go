// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"iter"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// DefaultSubscription is the subscription of a queue that was made without naming one.
const DefaultSubscription = "default"

// QueueConfig is what can be altered on a queue. The zero value has no limits.
type QueueConfig struct {
	// MaxMessages: publishes are refused with ErrLimit while the queue holds this many; 0 means no limit.
	MaxMessages uint64
	// MaxBytes: publishes are refused with ErrLimit while the queue holds this many bytes; 0 means no limit.
	MaxBytes uint64
	// MaxDeliveries: a message that a subscription has given to a consumer so many times, and got back each time, is
	// moved to DeadLetter, or dropped and counted if that is empty; 1 to 1,000,000, 0 means no limit. This and DeadLetter
	// are refused with ErrRefused while one of the nodes is of release 0.1.0.
	MaxDeliveries uint32
	// DeadLetter names the queue that messages are moved to that were delivered MaxDeliveries times, or rejected; empty
	// means that they are dropped. That queue must be there and have a subscription, or it keeps nothing; it cannot be
	// deleted as long as it is named here. While it is full, the messages stay where they are, and are not delivered.
	DeadLetter string
}

// maxMaxDeliveries is the largest QueueConfig.MaxDeliveries.
const maxMaxDeliveries = 1_000_000

// check refuses what no node would take.
func (c QueueConfig) check() error {
	if c.MaxDeliveries > maxMaxDeliveries {
		return fmt.Errorf("%w: MaxDeliveries is %d; 1 to %d are possible, and 0 for no limit", ErrInvalid,
			c.MaxDeliveries, maxMaxDeliveries)
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
	// Messages that at least one subscription has still to acknowledge, and their Bytes.
	Messages, Bytes uint64
	// Subscriptions by name.
	Subscriptions []Subscription
	// Digest of everything that was ever applied to the queue; equal on both nodes at the same LSN.
	Digest uint64
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
}

// Start says where a new subscription begins to read.
type Start int

// Values of Start.
const (
	// StartLatest: only messages published after the subscription was made.
	StartLatest Start = iota
	// StartEarliest: every message that some other subscription has still to acknowledge, and all later ones.
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

// CreateSubscription adds a durable cursor to a queue. created, and making the call again, are as with CreateQueue.
// Errors: ErrQueueNotFound, ErrAlreadyExists, ErrInvalid, ErrLimit, ErrUnavailable.
func (c *Client) CreateSubscription(
	ctx context.Context, queue, name string, start Start, ifNotExists bool, as ...*Request,
) (s Subscription, created bool, err error) {
	req := &pb.CreateSubscriptionRequest{
		Queue: queue, Name: name, IfNotExists: ifNotExists,
		Start: pb.StartPosition_START_POSITION_LATEST,
	}
	if start == StartEarliest {
		req.Start = pb.StartPosition_START_POSITION_EARLIEST
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

func (c QueueConfig) toProto() *pb.QueueConfig {
	return &pb.QueueConfig{
		MaxMessages: c.MaxMessages, MaxBytes: c.MaxBytes, MaxDeliveries: c.MaxDeliveries, DeadLetter: c.DeadLetter,
	}
}

func configFromProto(c *pb.QueueConfig) QueueConfig {
	return QueueConfig{
		MaxMessages: c.GetMaxMessages(), MaxBytes: c.GetMaxBytes(), MaxDeliveries: c.GetMaxDeliveries(),
		DeadLetter: c.GetDeadLetter(),
	}
}

func queueFromProto(q *pb.Queue) Queue {
	out := Queue{
		Name: q.GetName(), ID: q.GetId(), NextSequence: q.GetNextSequence(), Messages: q.GetMessages(),
		Bytes: q.GetBytes(), Config: configFromProto(q.GetConfig()), Digest: q.GetDigest(),
	}
	for _, s := range q.GetSubscriptions() {
		out.Subscriptions = append(out.Subscriptions, subscriptionFromProto(s))
	}
	return out
}

func subscriptionFromProto(s *pb.Subscription) Subscription {
	return Subscription{
		Name: s.GetName(), Floor: s.GetFloor(), Backlog: s.GetBacklog(), InFlight: s.GetInFlight(),
		Consumers: s.GetConsumers(),
	}
}
