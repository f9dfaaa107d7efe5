// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/store/mutate"
)

// ConsumerOptions of a Consumer. The zero value consumes DefaultSubscription.
type ConsumerOptions struct {
	// Subscription to consume; empty means DefaultSubscription.
	Subscription string
	// Filter, if not empty, is an expression in CEL that messages have to match, up to 4,096 bytes, as in
	// SubscriptionOptions. The others stay for other consumers. It is refused with ErrInvalid when it is wrong, and
	// with ErrRefused while one of the nodes is of release 0.1.0.
	Filter string
	// Prefetch is how many messages the node may send ahead of Receive. Default 256.
	Prefetch int
}

const (
	defaultPrefetch = 256
	maxPrefetch     = 100_000
	// eagerConfirms of requests with acknowledgements may be under way before more are held back to be put together.
	eagerConfirms = 2
)

// Consumer receives messages of one subscription. It may be used by many goroutines at once.
//
// When the active goes away, the consumer attaches to the next one. Messages that the application holds, or has
// acknowledged without a confirmation yet, are not handed out again by this consumer; the acknowledgements are
// repeated. Another consumer of the same subscription may get them, though: delivery is at least once, as everywhere
// where consumers compete.
type Consumer struct {
	client       *Client
	queue        string
	subscription string
	filter       string
	prefetch     int
	stop         context.CancelFunc
	done         chan struct{} // closed when run has returned
	wake         chan struct{} // capacity 1: something may be sent
	avail        chan struct{} // capacity 1: something may be received, or the consumer has ended
	attached     chan struct{} // closed when the first attach succeeded, or the consumer has ended

	mu          sync.Mutex // guards all below
	err         error      // why the consumer has ended
	generation  uint64     // number of the present stream
	queueID     uint64     // of the queue that was attached to first; 0 if the node does not say
	buffer      fifo[*Delivery]
	held        map[uint64]holding // messages that the application has, by sequence
	credit      uint32             // to be granted with the next request
	ack         []uint64           // to be sent with the next request
	nack        []uint64           // …
	nackAfter   []delayedNack      // …
	reject      []uint64           // …
	number      uint64             // of the last request with answers
	unconfirmed fifo[batch]
	answered    uint64        // answers that the application gave
	settled     uint64        // how many of them, in that order, are committed
	waiting     int           // calls of Flush under way: they must not be held back
	streaming   bool          // a stream is attached, or about to be
	leaving     bool          // Close was called
	refused     int           // rejects that wait for room in the dead-letter queue, and that no Flush has returned
	progress    chan struct{} // closed and replaced when settled grows, or the consumer ends
}

// holding is what is known about a message that the application has.
type holding struct {
	generation uint64 // of the stream that delivered it last
	acked      bool   // acknowledged by the application, not yet confirmed
}

// delayedNack is a message that was given back and is to wait.
type delayedNack struct {
	sequence uint64
	delay    time.Duration
}

// batch is what one request acknowledged.
type batch struct {
	number   uint64
	ack      []uint64
	answered uint64 // Consumer.answered when it was sent; 0 if more was left to send
}

// Delivery is a message that was handed to the application and waits for its answer.
type Delivery struct {
	Stored
	consumer *Consumer
	answer   answerKind      // guarded by Consumer.mu
	more     *deliveryExtras // nil without any
}

// deliveryExtras are what few deliveries have.
type deliveryExtras struct {
	trace DeliveryTrace  // nil if the delivery is not traced; set before the application has the delivery
	delay *time.Duration // of NackAfter; guarded by Consumer.mu
}

// answerKind is how a delivery was answered.
type answerKind uint8

const (
	noAnswer answerKind = iota
	ackAnswer
	nackAnswer
	rejectAnswer
)

// Consume attaches to a subscription and returns when the node has accepted that. Errors: ErrQueueNotFound,
// ErrSubscriptionNotFound, ErrLimit, ErrInvalid, ErrClosed, ErrUnavailable with the context's.
func (c *Client) Consume(ctx context.Context, queue string, o ConsumerOptions) (*Consumer, error) {
	if err := checkName("queue", queue); err != nil {
		return nil, err
	}
	if o.Prefetch > maxPrefetch {
		return nil, fmt.Errorf("%w: a prefetch of %d messages, the limit is %d", ErrInvalid, o.Prefetch, maxPrefetch)
	}
	setDefault(&o.Prefetch, defaultPrefetch)
	if o.Subscription == "" {
		o.Subscription = DefaultSubscription
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	co := &Consumer{
		client: c, queue: queue, subscription: o.Subscription, filter: o.Filter, prefetch: o.Prefetch, stop: stop,
		done: make(chan struct{}), wake: make(chan struct{}, 1), avail: make(chan struct{}, 1),
		attached: make(chan struct{}),
		held:     make(map[uint64]holding), progress: make(chan struct{}),
	}
	if err := c.register(co); err != nil {
		stop()
		return nil, err
	}
	c.joined.Go(func() { co.run(background) })
	select {
	case <-co.attached:
	case <-ctx.Done():
		_ = co.Close()
		return nil, c.giveUp(co.op(), ctx.Err(), nil, false)
	}
	if err := co.ended(); err != nil {
		_ = co.Close()
		return nil, err
	}
	return co, nil
}

// attachedTo returns the number of the queue, so that what is delivered from it is not acknowledged in another one of
// its name.
func (co *Consumer) attachedTo() uint64 {
	co.mu.Lock()
	defer co.mu.Unlock()
	return co.queueID
}

func (co *Consumer) op() string { return "consume " + co.queue + "/" + co.subscription }

// ended returns why the consumer has ended, or nil.
func (co *Consumer) ended() error {
	co.mu.Lock()
	defer co.mu.Unlock()
	return co.err
}

// Receive returns the next message, waiting for one until ctx ends. Errors: the context's, also if there are messages;
// ErrClosed; and those of Consume when the queue or subscription is gone, after which the consumer is of no more use.
func (co *Consumer) Receive(ctx context.Context) (*Delivery, error) {
	for {
		if err := ctx.Err(); err != nil {
			signal(co.avail) // for another caller
			return nil, fmt.Errorf("%s: %w", co.op(), err)
		}
		co.mu.Lock()
		if err := co.isOver(); err != nil {
			co.mu.Unlock()
			signal(co.avail) // the next one who waits is to see it, too
			return nil, err
		}
		if co.buffer.len() > 0 {
			d := co.take()
			more, ask := co.buffer.len() > 0, int(co.credit) >= (co.prefetch+1)/2
			co.mu.Unlock()
			if more {
				signal(co.avail)
			}
			if ask {
				signal(co.wake)
			}
			if t := co.client.opts.Tracer; t != nil {
				d.traceWith(t)
			}
			return d, nil
		}
		co.mu.Unlock()
		select {
		case <-co.avail:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: %w", co.op(), ctx.Err())
		}
	}
}

// isOver returns why no more messages are handed out, or nil. The caller holds mu.
func (co *Consumer) isOver() error {
	if co.err == nil && co.leaving {
		return fmt.Errorf("%s: consumer %w", co.op(), ErrClosed)
	}
	return co.err
}

// take hands the oldest message of the buffer out. The caller holds mu.
func (co *Consumer) take() *Delivery {
	d := co.buffer.pop()
	co.held[d.Sequence] = holding{generation: co.generation}
	co.credit++
	return d
}

// All receives until ctx ends or the consumer is closed, which ends the iteration without an error; any other error is
// the last element.
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

// Queue that the message was delivered from.
func (d *Delivery) Queue() string { return d.consumer.queue }

// Subscription that the message was delivered to.
func (d *Delivery) Subscription() string { return d.consumer.subscription }

// Ack acknowledges the message in the background, many together. Should the process die before that is confirmed, the
// message is delivered again; Consumer.Flush waits for it.
func (d *Delivery) Ack() { _ = d.consumer.answer(d, ackAnswer) } // AckSync is for those who want to know

// AckSync acknowledges the message and returns when that is committed: it will not be delivered again. After
// ErrOutcomeUnknown it may be called again, and so after Ack. An error without ErrOutcomeUnknown means that the message
// is not acknowledged by this. Errors: the context's with ErrOutcomeUnknown; ErrInvalid after Nack or Reject;
// ErrClosed; those of Receive when the consumer has ended.
func (d *Delivery) AckSync(ctx context.Context) error {
	if err := d.consumer.answer(d, ackAnswer); err != nil {
		return err
	}
	if d.consumer.acknowledged(d) {
		return nil
	}
	return d.consumer.flush(ctx)
}

// acknowledged tells whether the ack of a delivery is committed.
func (co *Consumer) acknowledged(d *Delivery) bool {
	co.mu.Lock()
	defer co.mu.Unlock()
	return d.answer == ackAnswer && !co.held[d.Sequence].acked
}

// Nack gives the message back: it is delivered again, to any consumer of the subscription, with a higher DeliveryCount,
// unless this was the last of QueueConfig.MaxDeliveries.
func (d *Delivery) Nack() { _ = d.consumer.answer(d, nackAnswer) } // it is delivered again anyway

// NackAfter is Nack for a message that is to be delivered again only after a delay, of 0 to 24 hours: what is beyond
// that counts as the nearest of them. The delay takes the place of QueueConfig.RedeliveryDelay. It is a matter of the
// active node alone: after a failover, or when the connection breaks before the node has it, the message is delivered
// at once, or after the queue's own delay. A node of release 0.1.0 does not know delays.
func (d *Delivery) NackAfter(delay time.Duration) {
	d.consumer.nackAfterDelay(d, min(max(delay, 0), maxNackDelay))
}

// maxNackDelay is the longest delay that a node accepts.
const maxNackDelay = 24 * time.Hour

func (co *Consumer) nackAfterDelay(d *Delivery, delay time.Duration) {
	co.mu.Lock()
	if d.more == nil {
		d.more = &deliveryExtras{}
	}
	d.more.delay = &delay
	co.mu.Unlock()
	_ = co.answer(d, nackAnswer) // it is delivered again anyway
}

// Reject gives the message up, in the background, many together: the subscription cannot deal with it, however often
// it is delivered. It is moved to the queue's QueueConfig.DeadLetter, or dropped if there is none, and not delivered
// again. Consumer.Flush waits for it.
//
// While the dead-letter queue has no room for the message, it stays where it is and no consumer gets it; Flush then
// returns ErrLimit. It is moved when there is room. If the active is replaced before, it is delivered again.
//
// A Reject is not repeated when the connection breaks before it is confirmed: a message that was not moved then is
// delivered again, and has to be rejected again. While one of the nodes is of release 0.1.0, a Reject ends the
// consumer with ErrRefused; an active of release 0.1.0 does not know it, and delivers the message again after the
// consumer has gone.
func (d *Delivery) Reject() { _ = d.consumer.answer(d, rejectAnswer) } // if not, it is delivered again

// answer takes note of an answer of the application. Only the first one to a delivery counts; the error says why
// another one does not.
func (co *Consumer) answer(d *Delivery, kind answerKind) error {
	co.mu.Lock()
	if d.answer != noAnswer || co.err != nil {
		defer co.mu.Unlock()
		switch {
		case d.answer == kind, mutate.Off("INV-10-ended-consumer-acknowledges"):
			return nil
		case d.answer == noAnswer:
			return co.err // no node was asked to acknowledge it
		default:
			return fmt.Errorf("%w: sequence %d of %s was answered otherwise before", ErrInvalid, d.Sequence, co.queue)
		}
	}
	d.answered(kind)
	h, ok := co.held[d.Sequence]
	if !ok || h.acked {
		defer co.mu.Unlock()
		if !ok {
			return fmt.Errorf("%w: another delivery of sequence %d of %s was answered", ErrInvalid, d.Sequence,
				co.queue)
		}
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

// answered takes note of the one answer that counts. The caller holds Consumer.mu.
func (d *Delivery) answered(kind answerKind) {
	d.answer = kind
	if d.more != nil && d.more.trace != nil {
		d.more.trace.Answered(kind.String())
	}
}

// answeredElsewhere takes note that a transaction answered the delivery.
func (co *Consumer) answeredElsewhere(d *Delivery, kind answerKind) {
	co.mu.Lock()
	defer co.mu.Unlock()
	if d.answer == noAnswer {
		d.answered(kind)
	}
	if h, ok := co.held[d.Sequence]; ok && !h.acked {
		delete(co.held, d.Sequence)
	}
}

// Flush waits until all acks, nacks and rejects made before are committed. A nack or reject that was not confirmed when
// the connection broke is no longer waited for: the message is delivered again. Errors: as AckSync; ErrLimit when
// rejected messages wait, since the dead-letter queue has no room for them: all other answers are committed then. It is
// returned once for each of them.
func (co *Consumer) Flush(ctx context.Context) error {
	if err := co.flush(ctx); err != nil {
		return err
	}
	co.mu.Lock()
	refused := co.refused
	co.refused = 0
	co.mu.Unlock()
	if refused > 0 {
		return fmt.Errorf("%w: %d rejected messages of %s wait, since its dead-letter queue has no room for them; all "+
			"other answers are committed", ErrLimit, refused, co.queue)
	}
	return nil
}

// flush waits until all answers are committed, but for rejects that wait.
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
			return co.client.giveUp("acknowledge on "+co.queue, ctx.Err(), nil, true)
		}
	}
}

// closeWait is how long Close waits for the node at most.
const closeWait = 2 * time.Second

// Close detaches. Messages that were not acknowledged are redelivered, to other consumers or a later one. Those that
// the application has not received do not count as delivered. Close sends the answers that were given, but returns no
// error when they are not confirmed: call Flush before.
func (co *Consumer) Close() error {
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

// signal fills a channel of capacity 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
