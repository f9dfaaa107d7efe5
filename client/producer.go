// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/semaphore"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// ProducerOptions configures a [Producer].
type ProducerOptions struct {
	// ID is the ID of the producer, 1 to 64 bytes; random by default. An application that sets an ID must set Epoch, and
	// must increase it at each start, because sequences start at 1 again.
	ID string
	// Epoch fences producers with the same ID and a lower epoch. It must be 0 without an ID, and at least 1 with one.
	Epoch uint32
	// Window is the maximum number of outstanding requests: at most 256, the number of results that a node retains per
	// producer. Default 200.
	Window int
	// BatchMessages and BatchBytes limit a request that combines several publishes: the number of messages, default 256
	// and at most 10,000, and the size of their bodies, default 256 KiB. A larger publish is sent alone.
	BatchMessages int
	BatchBytes    int
	// MaxPendingBytes limits the memory of pending publishes. At the limit, further publishes block. Default 16 MiB.
	MaxPendingBytes int64
}

const (
	maxWindow            = 256 // the store retains the last 256 results of a producer
	defaultWindow        = 200
	defaultBatchMessages = 256
	maxBatchMessages     = 10_000 // limit of PublishRequest
	// maxUnanswered is the maximum number of messages in flight. It is the number of duplicates that a node retains in
	// the results of a producer.
	maxUnanswered          = 1 << 16
	defaultBatchBytes      = 256 << 10
	defaultMaxPendingBytes = 16 << 20
	maxProducerIDBytes     = 64
	// eagerFrames is the number of publish frames in flight up to which publishes are sent immediately, for latency.
	// Above this number, publishes wait for a response or a full batch, for throughput.
	eagerFrames = 4
)

func (o ProducerOptions) withDefaults() (ProducerOptions, error) {
	switch {
	case o.ID == "" && o.Epoch != 0:
		return o, fmt.Errorf("%w: an epoch requires a producer ID", ErrInvalid)
	case o.ID != "" && o.Epoch == 0:
		return o, fmt.Errorf("%w: a producer ID requires an epoch, which must be higher at each start", ErrInvalid)
	case len(o.ID) > maxProducerIDBytes:
		return o, fmt.Errorf("%w: the producer ID has %d bytes, the limit is %d", ErrInvalid, len(o.ID),
			maxProducerIDBytes)
	case o.Window > maxWindow:
		return o, fmt.Errorf("%w: the window is %d requests, the limit is %d", ErrInvalid, o.Window, maxWindow)
	case o.BatchMessages > maxBatchMessages:
		return o, fmt.Errorf("%w: batches of %d messages, the limit is %d", ErrInvalid, o.BatchMessages,
			maxBatchMessages)
	}
	setDefault(&o.Window, defaultWindow)
	setDefault(&o.BatchMessages, defaultBatchMessages)
	setDefault(&o.BatchBytes, defaultBatchBytes)
	setDefault(&o.MaxPendingBytes, defaultMaxPendingBytes)
	return o, nil
}

// Producer is a publish pipeline. It is safe for concurrent use. Publishes to a queue are committed in the order of
// the calls, also when they are retried after a failover. For a partitioned queue, this applies to each partition.
//
// In a fleet, each pair has a separate Window. If a queue has another owner and its former owner has no active node,
// publishes that were sent to the former owner return [ErrOutcomeUnknown].
//
// Publishes to the same queue may share one request, which is one transaction. If some of them might be rejected, the
// node requests that they are sent one by one, so that each publish has its own outcome. Publishes of one request may
// still be rejected together if the request is retried after a lost connection, or if a node runs release 0.1.0. A
// batch is never split.
type Producer struct {
	client *Client
	opts   ProducerOptions
	budget *semaphore.Weighted // MaxPendingBytes minus the pending bytes
	stop   context.CancelFunc
	start  func(*pipeline) // starts the goroutine of a pipeline
	home   *pipeline       // to the home pair

	mu     sync.Mutex // guards the fields below and the pipelines
	closed bool
	others map[*pairConn]*pipeline // to other pairs of the fleet; created on first use
	routes map[string]*route       // queues of other pairs, and queues with a refused request; nil if empty
	// divided contains the partitioned queues; nil if empty.
	divided map[string]*divided
	open    int           // entries that are neither answered nor withdrawn
	idle    chan struct{} // closed when open becomes 0; nil without a waiter
	failed  failures      // errors of asynchronous publishes
}

// NewProducer creates a publish pipeline, which exists until [Producer.Close] or [Client.Close]. The cancellation of
// ctx has no effect on it. Errors include [ErrInvalid], [ErrClosed].
func (c *Client) NewProducer(ctx context.Context, o ProducerOptions) (*Producer, error) {
	return c.newProducer(context.WithoutCancel(ctx), o)
}

func (c *Client) newProducer(ctx context.Context, o ProducerOptions) (*Producer, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	p := &Producer{
		client: c, opts: o, budget: semaphore.NewWeighted(o.MaxPendingBytes), stop: stop,
		start: func(pl *pipeline) { c.joined.Go(func() { pl.run(ctx) }) },
	}
	if o.ID == "" {
		p.opts.Epoch = 1
	}
	p.home = p.newPipeline(c.owners.home)
	if err := c.register(p); err != nil {
		stop()
		return nil, err
	}
	p.start(p.home)
	return p, nil
}

// Publish is [Producer.Publish] with the client's built-in producer.
func (c *Client) Publish(ctx context.Context, queue string, m Message) (Receipt, error) {
	return c.producer.Publish(ctx, queue, m)
}

// PublishBatch is like [Client.Publish], for several messages that are stored atomically.
func (c *Client) PublishBatch(ctx context.Context, queue string, ms []Message) (Receipt, error) {
	return c.producer.PublishBatch(ctx, queue, ms)
}

// Publish stores one message and returns after the commit: every in-sync node has stored the message. With the default
// setting of the nodes, sync: always, the message is then durable on these nodes.
//
// If ctx ends after the message was sent, the error matches [ErrOutcomeUnknown], and another Publish may store a
// duplicate. To make retries safe, publish in a [Txn], because Commit is idempotent, or call Publish with a context
// that does not end.
//
// Errors include [ErrQueueNotFound], [ErrLimit], [ErrInvalid], [ErrRefused], [ErrFenced], [ErrSequenceReused],
// [ErrTooOld], [ErrOutcomeLost], [ErrClosed], [ErrUnavailable] with the context's error.
func (p *Producer) Publish(ctx context.Context, queue string, m Message) (Receipt, error) {
	return p.PublishBatch(ctx, queue, []Message{m})
}

// PublishBatch is like [Producer.Publish], for 1 to 10,000 messages that are stored atomically. Receipt.Sequence is
// the sequence of the first message.
func (p *Producer) PublishBatch(ctx context.Context, queue string, ms []Message) (Receipt, error) {
	e, err := p.enqueue(ctx, queue, ms, false)
	if err != nil {
		return Receipt{}, err
	}
	select {
	case <-e.waiter().done:
		return e.result()
	case <-ctx.Done():
	}
	if p.withdraw(e) {
		err := p.giveUp(e, ctx.Err(), false)
		if e.traced != nil {
			e.traced(Receipt{}, err) // e is part of no request, so no other goroutine calls traced
		}
		return Receipt{}, err
	}
	if o := e.waiter(); o.answered.Load() {
		return e.result() // the response arrived at the same moment
	}
	return Receipt{}, p.giveUp(e, ctx.Err(), true)
}

// PublishAsync sends one message without waiting for the response. After temporary errors, the message is sent again.
// ctx limits only how long PublishAsync waits for memory (MaxPendingBytes). The Pending also reports errors of the
// call itself, such as [ErrInvalid]. After a series of messages, call [Producer.Flush], which reports their errors.
func (p *Producer) PublishAsync(ctx context.Context, queue string, m Message) *Pending {
	e, err := p.enqueue(ctx, queue, []Message{m}, true)
	if err != nil {
		return p.failedPending(queue, err)
	}
	return e
}

// PublishBatchAsync is like [Producer.PublishAsync], for 1 to 10,000 messages that are stored atomically.
func (p *Producer) PublishBatchAsync(ctx context.Context, queue string, ms []Message) *Pending {
	e, err := p.enqueue(ctx, queue, ms, true)
	if err != nil {
		return p.failedPending(queue, err)
	}
	return e
}

// failedPending returns a publish that failed before it was sent, and records its error for Flush.
func (p *Producer) failedPending(queue string, err error) *Pending {
	e := &Pending{queue: queue, producer: p}
	e.complete(nil, Receipt{}, err)
	p.mu.Lock()
	p.failed.add(1, err)
	p.mu.Unlock()
	return e
}

func (p *Producer) enqueue(ctx context.Context, queue string, ms []Message, async bool) (*Pending, error) {
	if err := checkName("queue", queue); err != nil {
		return nil, err
	}
	if len(ms) == 0 || len(ms) > maxBatchMessages {
		return nil, fmt.Errorf("%w: a batch of %d messages, 1 to %d are allowed", ErrInvalid, len(ms), maxBatchMessages)
	}
	e, err := newEntry(queue, ms, p.client.opts.MaxMessageBytes)
	if err != nil {
		return nil, err
	}
	e.cost = min(e.cost, p.opts.MaxPendingBytes) // an entry larger than the budget takes all of it
	if err := p.budget.Acquire(ctx, e.cost); err != nil {
		return nil, p.client.giveUp("publish to "+queue, err, nil, false)
	}
	if p.client.opts.Tracer != nil {
		given := slices.Clone(ms) // a clone keeps ms on the stack of untraced publishes
		var send []Message
		send, e.traced = p.client.opts.Tracer.Publish(ctx, queue, given)
		if len(send) == len(given) && &send[0] != &given[0] {
			e.carry(send)
		}
	}
	e.producer, e.async = p, async
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, p.abandon(e, fmt.Errorf("publish to %s: producer %w", queue, ErrClosed))
	}
	if p.client.partitions.known.Load() {
		if err := p.divide(e); err != nil {
			p.mu.Unlock()
			return nil, p.abandon(e, err)
		}
	}
	p.open++
	pl := p.home
	if p.routes != nil || p.client.owners.known.Load() {
		pl = p.routed(e)
	}
	if pl != nil {
		pl.add(e)
	}
	p.mu.Unlock()
	if pl != nil {
		pl.signal()
	}
	return e, nil
}

// abandon releases the memory of an entry that was not added to a pipeline, ends its trace, and returns err.
func (p *Producer) abandon(e *Pending, err error) error {
	p.budget.Release(e.cost)
	if e.traced != nil {
		e.traced(Receipt{}, err)
	}
	return err
}

func newEntry(queue string, ms []Message, maxBody int) (*Pending, error) {
	e := &Pending{queue: queue, count: uint32(len(ms))}
	plain := true
	for i := range ms {
		m := &ms[i]
		if err := m.check(maxBody); err != nil {
			return nil, err
		}
		e.cost += m.cost()
		e.bytes += len(m.Body)
		plain = plain && m.plain()
	}
	switch {
	case !plain:
		e.carry(ms)
	case len(ms) == 1:
		e.body = ms[0].Body
	default:
		bodies := make([][]byte, len(ms))
		for i := range ms {
			bodies[i] = ms[i].Body
		}
		e.more = &content{bodies: bodies}
	}
	return e, nil
}

func (p *Pending) carry(ms []Message) { p.body, p.more = nil, &content{messages: messagesToProto(ms)} }

// withdraw cancels an entry. It returns false if the entry is already part of a request, or was withdrawn.
func (p *Producer) withdraw(e *Pending) bool {
	p.mu.Lock()
	if e.taken || e.withdrawn {
		p.mu.Unlock()
		return false
	}
	e.withdrawn = true
	if pl := p.queuedIn(e); pl != nil {
		pl.count -= int(e.count)
		pl.bytes -= e.bytes
		pl.dropWithdrawn()
	}
	idle := p.settle(e)
	p.mu.Unlock()
	p.budget.Release(e.cost)
	closeIf(idle)
	return true
}

// settle subtracts completed entries from open. If no entry remains open, it returns the channel on which Flush
// waits, or nil if no call waits. The caller must close the channel. mu is held.
func (p *Producer) settle(entries ...*Pending) (idle chan struct{}) {
	if p.routes != nil {
		for _, e := range entries {
			if e.route != nil {
				e.route.open--
			}
		}
	}
	if p.open -= len(entries); p.open == 0 {
		idle, p.idle = p.idle, nil
	}
	return idle
}

func closeIf(c chan struct{}) {
	if c != nil {
		close(c)
	}
}

// Flush waits until all earlier publishes have completed. Publishes that other goroutines add in the meantime extend
// the wait. Flush returns the joined errors of the asynchronous publishes that failed since the previous Flush, up to
// 16 of them. If ctx ends first, it returns the context's error, [ErrUnavailable] and [ErrOutcomeUnknown], and the
// publishes continue.
func (p *Producer) Flush(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open > 0 {
		if p.idle == nil {
			p.idle = make(chan struct{})
		}
		idle := p.idle
		p.mu.Unlock()
		select {
		case <-idle:
			p.mu.Lock()
		case <-ctx.Done():
			err := p.client.giveUp("flush", ctx.Err(), nil, true)
			p.mu.Lock()
			return err
		}
	}
	return p.failed.take()
}

// Close closes the producer. Unsent publishes fail with [ErrClosed]; the errors of publishes that were sent and not
// answered also match [ErrOutcomeUnknown]. To wait for pending publishes, call [Producer.Flush] first.
func (p *Producer) Close() error {
	p.mu.Lock()
	p.closed = true
	others := slices.Collect(maps.Values(p.others))
	p.mu.Unlock()
	p.stop()
	<-p.home.done
	for _, pl := range others {
		<-pl.done
	}
	p.failQueued(&opError{op: "publish", cause: ErrClosed})
	p.client.unregister(p)
	return nil
}

// answer completes the entries of one or more requests with r and err. The sequences of stored messages are
// consecutive, starting at r.Sequence; duplicates are the messages that were not stored.
func (p *Producer) answer(entries []*Pending, r Receipt, err error, duplicates ...*pb.DuplicateMessage) {
	var shared *outcome
	offset, async, each := uint32(0), 0, len(duplicates) > 0
	for _, e := range entries {
		p.budget.Release(e.cost)
		e.offset = offset
		offset += e.count
		if e.async {
			async++
		}
		if each {
			e.offset = 0
			var own Receipt
			own, duplicates = receiptOf(&r, e.count, offset, duplicates)
			e.finish(nil, own, nil)
			continue
		}
		shared = e.finish(shared, r, err)
	}
	p.mu.Lock()
	p.failed.add(async, err)
	idle := p.settle(entries...)
	p.mu.Unlock()
	closeIf(idle)
}

// receiptOf returns the receipt of an entry with count messages that ends before index end of the request, and the
// duplicates from that index on. It advances r.Sequence by the number of stored messages.
func receiptOf(r *Receipt, count, end uint32, duplicates []*pb.DuplicateMessage) (
	own Receipt, rest []*pb.DuplicateMessage,
) {
	own = *r
	for len(duplicates) > 0 && duplicates[0].GetIndex() < end {
		if own.Discarded == 0 {
			own.Sequence = duplicates[0].GetSequence()
		}
		own.Discarded++
		duplicates = duplicates[1:]
	}
	if own.Discarded < int(count) {
		own.Sequence = r.Sequence
		r.Sequence += uint64(count) - uint64(own.Discarded)
	} else {
		own.Duplicate = true
	}
	return own, duplicates
}

// errProtocol describes a response out of order, which is a bug in the node. The client continues with a new stream.
var errProtocol = errors.New("response out of order")
