// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"
)

// DefaultSubscription is the name of the subscription that is created with a queue, unless the request names other
// subscriptions or creates a topic.
const DefaultSubscription = "default"

// ConsumerOptions configures a [Consumer].
type ConsumerOptions struct {
	// Subscription is the subscription to consume from. Default DefaultSubscription.
	Subscription string
	// Filter, if not empty, is a CEL expression that messages must match, as in admin.SubscriptionOptions. Messages
	// that do not match remain available to other consumers.
	Filter string
	// Prefetch is the maximum number of messages that the node sends ahead of Receive, 1 to 100,000. Default 256.
	Prefetch int
	// AckTimeout is the acknowledgement deadline, 1 second to 24 hours: a message that is not answered or extended
	// within this time after its delivery is redelivered. The time before Receive returns the message is included. 0
	// means the deadline of the subscription. If both are set, the shorter one applies. See [Consumer.Run] and
	// [Delivery.Extend].
	AckTimeout time.Duration
}

const (
	defaultPrefetch = 256
	maxPrefetch     = 100_000
	// eagerConfirms is the number of acknowledgement requests in flight from which acknowledgements are batched.
	eagerConfirms = 2
)

// Consumer receives messages of one subscription. It is safe for concurrent use.
//
// After a failover, the consumer attaches to the new active node and retries unconfirmed acknowledgements. It does
// not return messages again that the application is still processing or has acknowledged. Other consumers of the
// subscription may receive such messages.
//
// If another site is promoted without a planned switch, or another pair of the fleet becomes the owner of the queue,
// the consumer discards its earlier deliveries. They can no longer be answered, and messages that were neither lost
// nor acknowledged are redelivered.
//
// On a partitioned queue, the consumer attaches to all partitions, and divides Prefetch among them, rounded up. If
// one of the partitions is deleted, Receive returns [ErrQueueNotFound].
type Consumer struct {
	client       *Client
	queue        string
	subscription string
	filter       string
	prefetch     int
	ackTimeout   time.Duration // ConsumerOptions.AckTimeout
	stop         context.CancelFunc
	member       *groupMember   // nil if the consumer does not belong to a consumer of a partitioned queue
	group        *consumerGroup // nil if the queue is not partitioned; otherwise, most other fields are unused
	done         chan struct{}  // closed when run has returned
	wake         chan struct{}  // capacity 1: data can be sent
	avail        chan struct{}  // capacity 1: a message can be received, or the consumer has ended
	attached     chan struct{}  // closed when the first attach succeeded, or the consumer has ended

	mu         sync.Mutex // guards the fields below
	err        error      // why the consumer has ended
	generation uint64     // number of the current stream
	queueID    uint64     // ID of the queue at the first attach of the era; 0 if not reported
	era        era        // era of the deliveries that can be answered
	buffer     fifo[*Delivery]
	held       map[uint64]holding // received messages without an answer or with an unconfirmed ack, by sequence
	// committed are sequences acknowledged by a committed transaction that the current stream may still deliver.
	committed   map[uint64]struct{}
	credit      uint32        // to be granted with the next request
	ack         []uint64      // to be sent with the next request
	nack        []uint64      // likewise
	nackAfter   []delayedNack // likewise
	reject      []uint64      // likewise
	extend      []uint64      // likewise
	empty       bool          // send a request even if it is empty
	number      uint64        // number of the last request with answers or extensions
	unconfirmed fifo[batch]
	way         path   // its pair is the one that the consumer is or will be attached to
	answered    uint64 // answers and extensions requested by the application
	settled     uint64 // how many of these, in the order of the calls, are committed or discarded
	waiting     int    // pending calls of Flush, which raise the limit of requests in flight
	streaming   bool   // a stream is attached or being attached
	leaving     bool   // Close was called
	refused     int    // rejects that wait for space in the dead-letter queue and are not yet reported by Flush
	late        int    // acks and rejects after the deadline that are not yet reported by Flush
	lost        int    // acks with a lost outcome that are not yet reported by Flush
	deadline    deadline
	progress    chan struct{} // closed and replaced when settled grows or the consumer ends
}

type holding struct {
	generation uint64 // generation of the stream with the last delivery of the message
	acked      bool   // acknowledged, and not yet confirmed
	delivery   *Delivery
}

type delayedNack struct {
	sequence uint64
	delay    time.Duration
}

type batch struct {
	number   uint64
	ack      []uint64
	answered uint64 // Consumer.answered when the batch was sent; 0 if more answers remained to be sent
}

// Delivery is a message delivered to the application. The application must answer it with Ack, AckSync, Nack,
// NackAfter or Reject, in a [Txn], or by the result of a [Handler].
type Delivery struct {
	Stored
	consumer *Consumer
	answer   answerKind      // guarded by Consumer.mu
	expired  bool            // the acknowledgement deadline has passed; guarded by Consumer.mu
	lost     bool            // the era ended before the answer was confirmed; guarded by Consumer.mu
	era      uint32          // era.number of the consumer at the time of the delivery
	more     *deliveryExtras // nil if empty
}

type deliveryExtras struct {
	trace DeliveryTrace  // nil if the delivery is not traced; set before the application has the delivery
	delay *time.Duration // argument of NackAfter; guarded by Consumer.mu
}

type answerKind uint8

const (
	noAnswer answerKind = iota
	ackAnswer
	nackAnswer
	rejectAnswer
)

// Consume attaches to a subscription and returns when a node has accepted the consumer. ctx limits only this wait;
// the consumer exists until [Consumer.Close] or [Client.Close]. Errors include [ErrQueueNotFound],
// [ErrSubscriptionNotFound], [ErrLimit], [ErrInvalid], [ErrUnavailable], [ErrRefused] for a filter while one of the
// nodes runs release 0.1.0.
func (c *Client) Consume(ctx context.Context, queue string, o ConsumerOptions) (*Consumer, error) {
	if err := checkName("queue", queue); err != nil {
		return nil, err
	}
	if o.Prefetch > maxPrefetch {
		return nil, fmt.Errorf("%w: Prefetch is %d, must be 1 to %d", ErrInvalid, o.Prefetch, maxPrefetch)
	}
	setDefault(&o.Prefetch, defaultPrefetch)
	if o.Subscription == "" {
		o.Subscription = DefaultSubscription
	}
	for attempt := 0; ; attempt++ {
		count := c.partitions.of(queue)
		if count > 0 {
			co, err := c.consumePartitions(ctx, queue, count, o)
			if attempt == 0 && errors.Is(err, ErrQueueNotFound) {
				continue // the queue was deleted, and may have been created again with other partitions
			}
			return co, err
		}
		co, err := c.attach(ctx, c.newConsumer(queue, o))
		parts := partitionsOf(err)
		if parts == nil {
			return co, err
		}
		c.partitions.learn(parts)
	}
}

func (c *Client) newConsumer(queue string, o ConsumerOptions) *Consumer {
	return &Consumer{
		client: c, way: c.pathTo(c.owners.of(queue)), queue: queue, subscription: o.Subscription, filter: o.Filter,
		prefetch: o.Prefetch, ackTimeout: o.AckTimeout, deadline: deadline{changed: make(chan struct{})},
		done: make(chan struct{}), wake: make(chan struct{}, 1), avail: make(chan struct{}, 1),
		attached: make(chan struct{}),
		held:     make(map[uint64]holding), committed: make(map[uint64]struct{}), progress: make(chan struct{}),
	}
}

// attach starts a consumer and waits until a node has accepted it.
func (c *Client) attach(ctx context.Context, co *Consumer) (*Consumer, error) {
	if err := c.register(co); err != nil {
		return nil, err
	}
	co.start(ctx)
	if err := co.awaitAttached(ctx); err != nil {
		_ = co.Close()
		return nil, err
	}
	return co, nil
}

func (co *Consumer) start(ctx context.Context) {
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	co.stop = stop
	co.client.joined.Go(func() { co.run(background) })
}

func (co *Consumer) awaitAttached(ctx context.Context) error {
	select {
	case <-co.attached:
		return co.ended()
	case <-ctx.Done():
		return co.giveUp(co.op(), ctx.Err(), false)
	}
}

// attachedTo returns the ID of the queue at the first attach of the current era, or 0 if not reported. Acknowledgements
// and releases of a transaction include this ID, so that they have no effect on a later queue with the same name.
func (co *Consumer) attachedTo() uint64 {
	co.mu.Lock()
	defer co.mu.Unlock()
	return co.queueID
}

// pair returns the pair that the consumer is or will be attached to.
func (co *Consumer) pair() *pairConn {
	co.mu.Lock()
	defer co.mu.Unlock()
	return co.way.pair
}

func (co *Consumer) giveUp(op string, cause error, unknown bool) error {
	co.mu.Lock()
	pair, last := co.way.pair, co.way.round
	co.mu.Unlock()
	return co.client.giveUpAt(pair, op, cause, last, unknown)
}

func (co *Consumer) op() string { return "consume " + co.queue + "/" + co.subscription }

func (co *Consumer) ended() error {
	co.mu.Lock()
	defer co.mu.Unlock()
	return co.err
}

// Receive waits for the next message and returns it. If ctx has ended, it returns the context's error, even if
// messages are available. After Close it returns [ErrClosed]. If a node ended the consumer, for example because the
// queue was deleted, Receive returns an error such as those of [Client.Consume], and the consumer is unusable.
func (co *Consumer) Receive(ctx context.Context) (*Delivery, error) {
	for {
		if err := ctx.Err(); err != nil {
			signal(co.avail) // wakes the next waiter, because this call takes no message
			return nil, fmt.Errorf("%s: %w", co.op(), err)
		}
		d, more, err := co.poll()
		if err != nil || more {
			signal(co.avail) // wakes the next waiter
		}
		switch {
		case err != nil:
			return nil, err
		case d != nil:
			if t := co.client.opts.Tracer; t != nil {
				d.traceWith(t)
			}
			return d, nil
		}
		select {
		case <-co.avail:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: %w", co.op(), ctx.Err())
		}
	}
}

// poll takes the next message, if one is available. more reports whether another one may be available.
func (co *Consumer) poll() (d *Delivery, more bool, err error) {
	if co.group != nil {
		return co.group.poll()
	}
	co.mu.Lock()
	if err := co.isOver(); err != nil || co.buffer.len() == 0 {
		co.mu.Unlock()
		return nil, false, err
	}
	d = co.take()
	more, ask := co.buffer.len() > 0, int(co.credit) >= (co.prefetch+1)/2
	co.mu.Unlock()
	if ask {
		signal(co.wake)
	}
	return d, more, nil
}

// isOver returns an error if the consumer delivers no further messages. mu is held.
func (co *Consumer) isOver() error {
	if co.err == nil && co.leaving {
		return fmt.Errorf("%s: consumer %w", co.op(), ErrClosed)
	}
	return co.err
}

// take removes the oldest message from the buffer, records it in held, and increments the credit. mu is held.
func (co *Consumer) take() *Delivery {
	d := co.buffer.pop()
	co.held[d.Sequence] = holding{generation: co.generation, delivery: d}
	co.credit++
	return d
}

// All returns an iterator over the messages that Receive returns. The iteration ends without an error when ctx ends
// or the consumer is closed; any other error is its last element.
func (co *Consumer) All(ctx context.Context) iter.Seq2[*Delivery, error] {
	return func(yield func(*Delivery, error) bool) {
		for {
			d, err := co.Receive(ctx)
			if err != nil && (ctx.Err() != nil || errors.Is(err, ErrClosed)) {
				return
			}
			if !yield(d, err) || err != nil {
				return
			}
		}
	}
}

// Queue returns the queue of the message. If the consumer is attached to a partitioned queue, it returns that queue.
func (d *Delivery) Queue() string {
	if p := d.consumer.member; p != nil {
		return p.queue
	}
	return d.consumer.queue
}

// Partition returns the name of the partition of the message, such as "orders#3/8", if the consumer is attached to a
// partitioned queue, otherwise "". Sequences belong to a partition.
func (d *Delivery) Partition() string {
	if d.consumer.member == nil {
		return ""
	}
	return d.consumer.queue
}

// Subscription returns the subscription that delivered the message.
func (d *Delivery) Subscription() string { return d.consumer.subscription }

// Ack acknowledges the message asynchronously, in batches. If the process fails before a node has confirmed the
// acknowledgement, the message may be redelivered. [Consumer.Flush] waits for the confirmation.
//
// If Ack, Nack, NackAfter or Reject returns an error, the answer has no effect. Errors include [ErrInvalid] if the
// message has a different answer or this delivery is no longer valid, for example after a Seek; [ErrRefused], with
// the reason ACK_DEADLINE_EXPIRED, if the deadline of the message has passed; [ErrClosed] or an error of
// [Consumer.Receive] if the consumer has ended.
func (d *Delivery) Ack() error { return d.consumer.answer(d, ackAnswer) }

// AckSync acknowledges the message and returns after the commit: the subscription does not redeliver the message. It
// may be called again after [ErrOutcomeUnknown], and after Ack. Errors include those of [Delivery.Ack];
// [ErrOutcomeUnknown] with the context's error if ctx ends first, or with another error if the consumer ends first;
// [ErrOutcomeLost] and ErrOutcomeUnknown if another site was promoted without a planned switch, or another pair
// became the owner of the queue, before the acknowledgement was confirmed.
func (d *Delivery) AckSync(ctx context.Context) error {
	if err := d.consumer.answer(d, ackAnswer); err != nil {
		return err
	}
	if !d.consumer.acknowledged(d) {
		if err := d.consumer.flush(ctx); err != nil {
			return err
		}
	}
	return d.consumer.refusal(d)
}

func (co *Consumer) acknowledged(d *Delivery) bool {
	co.mu.Lock()
	defer co.mu.Unlock()
	h, _ := co.holding(d)
	return d.answer == ackAnswer && !h.acked
}

// Nack requeues the message asynchronously. Any consumer of the subscription may receive the message, with a higher
// DeliveryCount, unless QueueConfig.MaxDeliveries is reached.
func (d *Delivery) Nack() error { return d.consumer.answer(d, nackAnswer) }

// NackAfter is like [Delivery.Nack], with a redelivery delay, which replaces QueueConfig.RedeliveryDelay. It is
// limited to the range of 0 to 24 hours. The delay is not replicated: after a failover or a lost connection, the
// message may be redelivered earlier. Nodes of release 0.1.0 do not support delays.
func (d *Delivery) NackAfter(delay time.Duration) error {
	return d.consumer.nackAfterDelay(d, min(max(delay, 0), maxNackDelay))
}

const maxNackDelay = 24 * time.Hour

func (co *Consumer) nackAfterDelay(d *Delivery, delay time.Duration) error {
	co.mu.Lock()
	if d.more == nil {
		d.more = &deliveryExtras{}
	}
	d.more.delay = &delay
	co.mu.Unlock()
	return co.answer(d, nackAnswer)
}

// Reject rejects the message asynchronously, in batches: it is moved to the queue's QueueConfig.DeadLetter, or
// dropped if DeadLetter is empty. [Consumer.Flush] waits for the confirmation.
//
// While the dead-letter queue is full, the message waits in its queue and is not delivered; Flush returns [ErrLimit].
// If a failover happens in the meantime, the message is redelivered.
//
// A Reject is not retried if the connection breaks before the confirmation: a message that was not moved is
// redelivered and must be rejected again. Nodes of release 0.1.0 do not support Reject.
func (d *Delivery) Reject() error { return d.consumer.answer(d, rejectAnswer) }

// answer records an answer of the application. Only the first answer counts; a different second answer returns an
// error, and the same answer again returns nil.
func (co *Consumer) answer(d *Delivery, kind answerKind) error {
	co.mu.Lock()
	if d.answer != noAnswer || co.err != nil {
		defer co.mu.Unlock()
		switch {
		case d.answer == kind:
			return nil
		case d.answer == noAnswer:
			return co.err // the answer was not sent to a node
		default:
			return fmt.Errorf("%w: sequence %d of %s already has another answer", ErrInvalid, d.Sequence, co.queue)
		}
	}
	if d.expired {
		defer co.mu.Unlock()
		return co.errExpired(d.Sequence)
	}
	if d.era != co.era.number {
		defer co.mu.Unlock()
		return co.errOutdated(d.Sequence)
	}
	h, ok := co.held[d.Sequence]
	if !ok || h.acked && kind != ackAnswer {
		defer co.mu.Unlock()
		return co.errNotHeld(d.Sequence)
	}
	d.answered(kind)
	if h.acked {
		co.mu.Unlock()
		return nil
	}
	co.answered++
	switch kind {
	case ackAnswer:
		h.acked = true
		co.held[d.Sequence] = h
		co.ack = append(co.ack, d.Sequence)
	case rejectAnswer:
		delete(co.held, d.Sequence)
		co.reject = append(co.reject, d.Sequence)
	default:
		delete(co.held, d.Sequence)
		if d.more != nil && d.more.delay != nil {
			co.nackAfter = append(co.nackAfter, delayedNack{d.Sequence, *d.more.delay})
			break
		}
		co.nack = append(co.nack, d.Sequence)
	}
	co.mu.Unlock()
	signal(co.wake)
	return nil
}

// errNotHeld returns the error for a delivery that the consumer no longer holds. mu is held.
func (co *Consumer) errNotHeld(sequence uint64) error {
	return fmt.Errorf("%w: another delivery of sequence %d of %s was answered, or the subscription was moved by a seek",
		ErrInvalid, sequence, co.queue)
}

// answered records the first answer. Consumer.mu is held.
func (d *Delivery) answered(kind answerKind) {
	d.answer = kind
	if d.more != nil && d.more.trace != nil {
		d.more.trace.Answered(kind.String())
	}
}

// answeredElsewhere records that a transaction answered the delivery. A stream that was opened before the commit may
// deliver an acknowledged message again.
func (co *Consumer) answeredElsewhere(d *Delivery, kind answerKind, committed bool) {
	co.mu.Lock()
	defer co.mu.Unlock()
	if d.answer == noAnswer {
		d.answered(kind)
	}
	if h, ok := co.holding(d); ok && !h.acked {
		delete(co.held, d.Sequence)
		if committed && kind == ackAnswer && h.generation != co.generation {
			co.committed[d.Sequence] = struct{}{}
		}
	}
}

// Flush waits until all earlier acks, nacks and rejects are committed. It does not wait for a nack or reject that was
// unconfirmed when the connection broke: the message is redelivered. Errors include [ErrOutcomeUnknown] with the
// context's error if ctx ends first, or with another error if the consumer ends first.
//
// The following errors mean that all other answers are committed; Flush reports each message only once. [ErrLimit]:
// rejected messages wait because their dead-letter queue is full. [ErrRefused]: the deadlines of messages had passed.
// [ErrOutcomeLost] and ErrOutcomeUnknown: before acks were confirmed, another site was promoted without a planned
// switch, or another pair became the owner of the queue.
func (co *Consumer) Flush(ctx context.Context) error {
	if co.group != nil {
		return co.group.flush(ctx)
	}
	if err := co.flush(ctx); err != nil {
		return err
	}
	co.mu.Lock()
	refused, late, lost := co.refused, co.late, co.lost
	co.refused, co.late, co.lost = 0, 0, 0
	co.mu.Unlock()
	var err error
	if lost > 0 {
		err = co.errLostAcks(lost)
	}
	if late > 0 {
		err = withError(co.errLate(late), err)
	}
	if refused > 0 {
		err = withError(fmt.Errorf("%w: %d rejected messages of %s wait because its dead-letter queue is full; all other "+
			"answers are committed", ErrLimit, refused, co.queue), err)
	}
	return err
}

func withError(err, other error) error {
	if other == nil {
		return err
	}
	return fmt.Errorf("%w; %w", err, other)
}

func (co *Consumer) flush(ctx context.Context) error {
	co.mu.Lock()
	upTo := co.answered
	co.waiting++
	co.mu.Unlock()
	defer func() {
		co.mu.Lock()
		co.waiting--
		co.mu.Unlock()
	}()
	signal(co.wake)
	for {
		co.mu.Lock()
		settled, err, progress := co.settled, co.err, co.progress
		co.mu.Unlock()
		switch {
		case settled >= upTo:
			return nil
		case err != nil:
			return fmt.Errorf("%w; %w", err, ErrOutcomeUnknown)
		}
		select {
		case <-progress:
		case <-ctx.Done():
			return co.giveUp("acknowledge on "+co.queue, ctx.Err(), true)
		}
	}
}

const closeWait = 2 * time.Second

// Close detaches the consumer, which takes at most about two seconds. Unacknowledged messages are redelivered to
// other or later consumers. Close sends pending answers, but does not report whether they were confirmed; to check
// this, call [Consumer.Flush] first.
func (co *Consumer) Close() error {
	if co.group != nil {
		co.group.close()
		co.client.unregister(co)
		return nil
	}
	co.mu.Lock()
	co.leaving = true
	streaming := co.streaming
	co.mu.Unlock()
	if streaming {
		signal(co.wake)
		timer := time.NewTimer(closeWait)
		defer timer.Stop()
		select {
		case <-co.done:
		case <-timer.C:
		}
	}
	co.stop()
	<-co.done
	co.client.unregister(co)
	return nil
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
