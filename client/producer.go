// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/google/uuid"
	"golang.org/x/sync/semaphore"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// ProducerOptions of a Producer. The zero value is a good choice.
type ProducerOptions struct {
	// ID of the producer, 1 to 64 bytes. Empty means a random one, which cannot meet another. With an ID of its own an
	// application must give a higher Epoch at each start: sequences begin at 1 again.
	ID string
	// Epoch fences producers with the same ID and a lower one. Default 1.
	Epoch uint32
	// Window is how many requests may be unanswered, at most 256 (what a node remembers of a producer). Default 200.
	Window int
	// BatchMessages and BatchBytes bound what is put together in one request when publishes come faster than answers.
	// Defaults 256 messages and 256 KiB. A message that is larger travels alone.
	BatchMessages int
	BatchBytes    int
	// MaxPendingBytes bounds the memory of publishes that are not answered; PublishAsync waits when it is reached.
	// Default 16 MiB.
	MaxPendingBytes int64
}

// Defaults and limits of a producer.
const (
	maxWindow              = 256 // the store remembers the last 256 results of a producer
	defaultWindow          = 200
	defaultBatchMessages   = 256
	maxBatchMessages       = 10_000 // limit of PublishRequest
	defaultBatchBytes      = 256 << 10
	defaultMaxPendingBytes = 16 << 20
	maxProducerIDBytes     = 64
	// eagerBursts, of requests that were sent together, may be under way before publishes are held back to be put
	// together: the first ones go at once, for latency, later ones wait for an answer or a full batch, for throughput.
	eagerBursts = 4
)

func (o ProducerOptions) withDefaults() (ProducerOptions, error) {
	switch {
	case o.ID == "" && o.Epoch != 0:
		return o, fmt.Errorf("%w: an epoch needs a producer ID", ErrInvalid)
	case o.ID != "" && o.Epoch == 0:
		return o, fmt.Errorf("%w: a producer ID needs an epoch, one higher at each start", ErrInvalid)
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

// Producer is a pipeline of publishes. They are committed in the order of the calls, over all queues, and repeated in
// that order after a failover. It may be used by many goroutines at once.
//
// Publishes to the same queue that are ready at the same time may travel in one request, which is one transaction. Each
// has an outcome of its own all the same: when some of them might be refused (a queue is nearly full, or a message is
// invalid), they are sent one by one. Only a retry after a lost connection, and a node of release 0.1.0, may refuse
// them together. A batch is never split: all of it is stored, or nothing.
type Producer struct {
	client *Client
	opts   ProducerOptions
	budget *semaphore.Weighted // of MaxPendingBytes
	wake   chan struct{}       // capacity 1: something may be sent
	stop   context.CancelFunc
	done   chan struct{} // closed when run has returned

	mu      sync.Mutex // guards all below
	closed  bool
	id      string       // of the producer; another one after a node forgot it
	next    uint64       // sequence of the next request
	pending fifo[*entry] // not yet in a request
	open    int          // entries that are neither answered nor withdrawn
	count   int          // messages in pending, without those that were withdrawn
	bytes   int          // their bytes
	// in the order of their sequences: first those sent on the present stream, then those to be sent again
	inFlight fifo[*request]
	sent     int            // how many of inFlight were sent on the present stream
	bursts   int            // how many messages of the stream are not wholly answered
	greeted  bool           // something was answered on the present stream
	more     bool           // the node takes several requests in one message
	single   map[string]int // publishes that are to be sent one by one, by queue; nil while there are none
	idle     chan struct{}  // closed when open becomes 0; nil when no caller waits for that
}

// entry is one publish call.
type entry struct {
	queue string
	// What is published is in one of these: body is all of a single message that has nothing else, bodies are those of
	// several such messages, and messages are others.
	body     []byte
	bodies   [][]byte
	messages []*pb.Message
	count    int // of messages
	bytes    int // of their bodies
	cost     int64
	done     func(Receipt, error)

	taken     bool // is in a request: it may be committed; guarded by Producer.mu
	withdrawn bool // was given up before it was in one; guarded by Producer.mu
}

// request is what is sent, and repeated, as one.
type request struct {
	sequence uint64 // of the producer, and the correlation
	queue    string
	entries  []*entry
	messages int
	bytes    int  // of the messages' bodies
	sent     bool // was sent, under its present identity
	repeated bool // was sent more than once, under its present identity
	last     bool // of those that were sent together
}

// NewProducer makes a pipeline. It connects when it has something to send. Errors: ErrInvalid, ErrClosed.
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
		client: c, opts: o, budget: semaphore.NewWeighted(o.MaxPendingBytes), wake: make(chan struct{}, 1),
		stop: stop, done: make(chan struct{}), id: o.ID, next: 1,
	}
	if p.id == "" {
		p.id, p.opts.Epoch = uuid.NewString(), 1
	}
	if err := c.register(p); err != nil {
		stop()
		return nil, err
	}
	c.joined.Go(func() { p.run(ctx) })
	return p, nil
}

// Publish stores one message through the client's own producer and returns when it is committed: durable on every
// in-sync node. Errors: those of Producer.Publish.
func (c *Client) Publish(ctx context.Context, queue string, m Message) (Receipt, error) {
	return c.producer.Publish(ctx, queue, m)
}

// PublishBatch is Publish for many messages, all or none.
func (c *Client) PublishBatch(ctx context.Context, queue string, ms []Message) (Receipt, error) {
	return c.producer.PublishBatch(ctx, queue, ms)
}

// Publish stores one message and returns when it is committed: durable on every in-sync node. When ctx ends after the
// message was sent, it is still on its way: the error is ErrOutcomeUnknown, too, and publishing it again may double it.
// An error without ErrOutcomeUnknown means that the message was not stored, and never will be. To ask again for the
// very same message after ErrOutcomeUnknown, publish it in a Txn, whose Commit can be repeated, or give Publish a
// context that does not end. Errors: ErrQueueNotFound, ErrLimit, ErrInvalid, ErrFenced, ErrTooOld, ErrOutcomeLost,
// ErrClosed, ErrUnavailable with the context's.
func (p *Producer) Publish(ctx context.Context, queue string, m Message) (Receipt, error) {
	return p.PublishBatch(ctx, queue, []Message{m})
}

// PublishBatch is Publish for 1 to 10,000 messages, all or none; Receipt.Sequence is the first one's.
func (p *Producer) PublishBatch(ctx context.Context, queue string, ms []Message) (Receipt, error) {
	type result struct {
		receipt Receipt
		err     error
	}
	answer := make(chan result, 1)
	e, err := p.enqueue(ctx, queue, ms, func(r Receipt, err error) { answer <- result{r, err} })
	if err != nil {
		return Receipt{}, err
	}
	select {
	case r := <-answer:
		return r.receipt, r.err
	case <-ctx.Done():
	}
	if p.withdraw(e) {
		err := p.client.giveUp("publish to "+queue, ctx.Err(), nil, false)
		if p.client.opts.Tracer != nil {
			e.done(Receipt{}, err) // it is in no request: nothing else calls it
		}
		return Receipt{}, err
	}
	select {
	case r := <-answer:
		return r.receipt, r.err // it came at the same moment
	default:
		return Receipt{}, p.client.giveUp("publish to "+queue, ctx.Err(), nil, true)
	}
}

// PublishAsync sends one message without waiting for the answer. done is called once, from a goroutine of the producer,
// in the order of the calls: it must not block. ctx bounds only how long PublishAsync waits for room (MaxPendingBytes);
// the message itself is repeated until it is answered or the producer closed. When PublishAsync returns an error, done
// is not called.
func (p *Producer) PublishAsync(ctx context.Context, queue string, m Message, done func(Receipt, error)) error {
	_, err := p.enqueue(ctx, queue, []Message{m}, done)
	return err
}

// PublishBatchAsync is PublishAsync for 1 to 10,000 messages, all or none.
func (p *Producer) PublishBatchAsync(ctx context.Context, queue string, ms []Message, done func(Receipt, error)) error {
	_, err := p.enqueue(ctx, queue, ms, done)
	return err
}

// enqueue checks a publish and puts it at the end of the pipeline.
func (p *Producer) enqueue(ctx context.Context, queue string, ms []Message, done func(Receipt, error)) (*entry, error) {
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
	e.cost = min(e.cost, p.opts.MaxPendingBytes) // one that is larger than the whole budget takes all of it
	if err := p.budget.Acquire(ctx, e.cost); err != nil {
		return nil, p.client.giveUp("publish to "+queue, err, nil, false)
	}
	if p.client.opts.Tracer != nil {
		given := slices.Clone(ms) // or else that of every publish would be on the heap, traced or not
		var send []Message
		if send, done = p.tracePublish(ctx, queue, given, done); len(send) == len(given) && &send[0] != &given[0] {
			e.carry(send)
		}
	}
	e.done = done
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		p.budget.Release(e.cost)
		return nil, fmt.Errorf("publish to %s: producer %w", queue, ErrClosed)
	}
	p.pending.push(e)
	p.open++
	p.count += e.count
	p.bytes += e.bytes
	p.mu.Unlock()
	p.signal()
	return e, nil
}

// newEntry checks messages and makes an entry of them.
func newEntry(queue string, ms []Message, maxBody int) (*entry, error) {
	e := &entry{queue: queue, count: len(ms)}
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
		e.bodies = make([][]byte, len(ms))
		for i := range ms {
			e.bodies[i] = ms[i].Body
		}
	}
	return e, nil
}

// carry makes messages, which were checked, those of the entry.
func (e *entry) carry(ms []Message) { e.body, e.bodies, e.messages = nil, nil, messagesToProto(ms) }

// withdraw gives an entry up that is in no request yet; false if it is too late.
func (p *Producer) withdraw(e *entry) bool {
	p.mu.Lock()
	if e.taken || e.withdrawn {
		p.mu.Unlock()
		return false
	}
	e.withdrawn = true
	p.count -= e.count
	p.bytes -= e.bytes
	p.dropWithdrawn()
	idle := p.settle(1)
	p.mu.Unlock()
	p.budget.Release(e.cost)
	closeIf(idle)
	return true
}

// dropWithdrawn clears the head of pending, so that what is there is to be sent. The caller holds mu.
func (p *Producer) dropWithdrawn() {
	for p.pending.len() > 0 && (*p.pending.at(0)).withdrawn {
		p.pending.pop()
	}
}

// settle takes note that n entries need nothing more, and returns what to close if nothing is left. The caller holds
// mu.
func (p *Producer) settle(n int) (idle chan struct{}) {
	if p.open -= n; p.open == 0 {
		idle, p.idle = p.idle, nil
	}
	return idle
}

func closeIf(c chan struct{}) {
	if c != nil {
		close(c)
	}
}

func (p *Producer) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Flush waits until everything published before it is answered. Errors: the context's with ErrUnavailable.
func (p *Producer) Flush(ctx context.Context) error {
	p.mu.Lock()
	if p.open == 0 {
		p.mu.Unlock()
		return nil
	}
	if p.idle == nil {
		p.idle = make(chan struct{})
	}
	idle := p.idle
	p.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return p.client.giveUp("flush", ctx.Err(), nil, true)
	}
}

// Close ends the producer. What was not sent fails with ErrClosed, and what was sent and is not answered with
// ErrOutcomeUnknown, too; call Flush before.
func (p *Producer) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop()
	<-p.done
	p.client.unregister(p)
	return nil
}

// failPending answers everything with err that is in no request.
func (p *Producer) failPending(err error) {
	p.mu.Lock()
	var entries []*entry
	for p.pending.len() > 0 {
		if e := p.pending.pop(); !e.withdrawn {
			e.taken = true
			entries = append(entries, e)
		}
	}
	p.count, p.bytes = 0, 0
	p.mu.Unlock()
	p.answer(entries, Receipt{}, err)
}

// takeInFlight takes the n oldest requests out of the pipeline. The caller holds mu.
func (p *Producer) takeInFlight(n int) (entries []*entry) {
	for range n {
		entries = append(entries, p.inFlight.pop().entries...)
	}
	return entries
}

// answer gives the memory of entries back and calls back for each, in order.
func (p *Producer) answer(entries []*entry, r Receipt, err error) {
	for _, e := range entries {
		p.budget.Release(e.cost)
		if e.done != nil {
			e.done(r, err)
		}
		if err == nil {
			r.Sequence += uint64(e.count)
		}
	}
	p.mu.Lock()
	idle := p.settle(len(entries))
	p.mu.Unlock()
	closeIf(idle)
}

// errProtocol is returned when a node answers out of order: a defect of it, cured by a new stream.
var errProtocol = errors.New("answer to a request that was not the oldest one")
