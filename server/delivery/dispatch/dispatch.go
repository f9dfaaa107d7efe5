// SPDX-License-Identifier: Apache-2.0

// Package dispatch distributes the messages of a subscription to its consumers.
//
// Each subscription with consumers has one dispatcher. It reads the queue in batches, assigns each message to the
// next consumer in turn that has credit, and tracks the messages in flight. Requeued messages (nacked, or from a lost
// consumer) precede new ones, lowest sequence first. Queues with priorities, message groups, single active consumers
// and consumers with filters use another order: see selective. Acknowledgements of all consumers of a subscription
// are collected while a transaction is being committed, and form the next one.
//
// # Invariants
//
//   - A message is in flight at one consumer at most: Consumer.inFlight is authoritative, everything else is derived.
//   - Only applied messages are visible (Source.Read returns nothing else), and nothing is delivered while paused
//     (INV-2).
//   - `confirmed` increases only after the transaction that contains the acks is committed.
//   - A message that reached the delivery limit of its queue, or was rejected, is moved to the queue's dead-letter
//     queue. A reject is confirmed when the move is committed. While the dead-letter queue is full, the message stays
//     in its queue without a consumer. A consumer that supports it is notified of that.
//   - A message that does not match the filter of its subscription is acknowledged instead of delivered. That is
//     delayed, and happens while a consumer waits for messages.
//   - A corrupt message does not block others: it is skipped, and read again every few seconds until it is readable or
//     acknowledged by another client.
//   - Each message group has at most one message in flight. The next one follows when that is acknowledged, rejected
//     or dead-lettered (see groups).
//   - An expired message is not delivered. Package server/delivery/expiry removes it.
//   - A requeued message with a delay blocks only messages of its group.
//   - The bytes buffered for a slow connection are bounded, regardless of the consumer's credit.
//   - Deliveries do not starve publishers: while others need the CPU, the dispatchers are limited to a fraction of it,
//     and take turns, so that no subscription waits for the backlog of another.
//
// The package is independent of gRPC, protobuf and replication: it works with a Source and a Settler.
package dispatch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Errors of this package.
var (
	// ErrClosed is returned by Attach and Next when the registry was closed without a reason.
	ErrClosed = errors.New("consumers are closed")
	// ErrMoved is returned by Next and Settle when the consumer's subscription was moved. Earlier deliveries and
	// answers to them are invalid.
	ErrMoved = errors.New("subscription position was changed: attach again, do not retry acknowledgements")
	// ErrFinished is returned by Next when the client has finished and has received everything.
	ErrFinished = errors.New("consumer is closed")
	// ErrTooManyConsumers is returned by Attach when the node has reached its limit of consumers.
	ErrTooManyConsumers = errors.New("too many consumers")
	// ErrTooMuchCredit is returned by AddCredit when the consumer's credit would exceed the limit.
	ErrTooMuchCredit = errors.New("too much credit")
	// ErrNotDelivered is returned by Settle for a sequence that the queue has not reached.
	ErrNotDelivered = errors.New("sequence was not delivered")
)

// Key identifies a subscription.
type Key struct {
	// Queue is the queue's number.
	Queue uint64
	// Sub is the subscription's number in the queue.
	Sub uint32
}

// Range is an inclusive range of sequences, First <= Last.
type Range = txn.Range

// Message is a stored message to be delivered to a consumer.
type Message = store.Delivery

// Source provides messages to a dispatcher.
type Source interface {
	// Read appends to dst the unacknowledged messages of the subscription in order, starting at sequence from. It
	// appends at most maxMessages, and stops once maxBytes are reached, but returns at least one message if one is
	// available. A corrupt message comes without its record. next is the position to continue from.
	Read(ctx context.Context, key Key, from uint64, maxMessages, maxBytes int, dst []Message) (messages []Message,
		next uint64, err error)
	// ReadPriorities is Read for a queue with priorities, highest priority first. It reads each priority from its position
	// in lanes, and advances that. next is above all sequences read.
	ReadPriorities(ctx context.Context, key Key, lanes *store.Lanes, maxMessages, maxBytes int, dst []Message) (
		messages []Message, next uint64, err error)
	// Priorities returns the priorities of requeued messages, in the same order.
	Priorities(queue uint64, sequences []uint64) []uint8
	// Order reports whether a queue delivers higher priorities first, which never changes, and whether each of its
	// subscriptions has a single active consumer. A change of the latter is a change of the queue.
	Order(queue uint64) (prioritized, exclusive bool)
	// NextSequence returns the sequence of the queue's next message.
	NextSequence(queue uint64) (uint64, bool)
	// MaxDeliveries returns the delivery limit of a subscription; 0 for no limit.
	MaxDeliveries(key Key) uint64
	// Exhausted returns those of the sequences of requeued messages that have reached the delivery limit.
	Exhausted(key Key, sequences []uint64) []uint64
	// TTL returns the TTL of the queue's messages in milliseconds; 0 for none. A change of it is a change of the
	// queue.
	TTL(queue uint64) int64
	// RedeliveryDelays returns the redelivery delay of each of the sequences of requeued messages; nil if none has a
	// delay.
	RedeliveryDelays(key Key, sequences []uint64) []time.Duration
	// Filter returns a function that reports whether a stored record matches the subscription's filter; nil if it has
	// no filter. It returns an error if the filter cannot be used.
	Filter(key Key) (matches func(record []byte) bool, err error)
	// Filters returns a value that changes whenever Filter may return a different result, before later published
	// messages can be read.
	Filters() uint64
	// Watch returns a channel that receives after changes of the queue; coalesced. cancel ends it.
	Watch(queue uint64) (changed <-chan struct{}, cancel func())
}

// Settler commits acknowledgements and releases of one subscription in one transaction.
type Settler interface {
	// Settle returns nil only when the transaction is committed and applied.
	Settle(ctx context.Context, key Key, acks, releases []Range) error
	// Move moves messages of one subscription, in ascending order, to its dead-letter queue, or discards them without
	// one. Messages acknowledged by then are not moved. It returns nil only when the move is committed and applied.
	// If not all fit, it moves as many as fit, oldest first, and returns the sequences of the others with a
	// *FullError.
	Move(ctx context.Context, key Key, dead []Dead) (waiting []uint64, err error)
}

// Dead is a message to be dead-lettered.
type Dead struct {
	// Sequence of the message.
	Sequence uint64
	// Reason is why it is dead-lettered.
	Reason txn.DeadReason
	// Deliveries is the number of its deliveries.
	Deliveries uint32
	// Record of the message.
	Record []byte
}

// Limits bounds the registry. All of them must be positive.
type Limits struct {
	// Consumers bounds the consumers on this node.
	Consumers int
	// Outstanding bounds the messages in flight at one consumer, and its credit.
	Outstanding int
	// BatchBytes is the approximate size of one read and of one event of Next.
	BatchBytes int
	// OutboxBytes is the approximate limit of bytes buffered for one consumer's connection.
	OutboxBytes int
	// BufferedBytes limits the bytes buffered for all connections. From half of it on, each consumer is limited to an
	// equal fraction of the free rest, but at least 16 KiB. So all together buffer at most BufferedBytes, 16 KiB for
	// each consumer, and one batch for each subscription. 0: no limit.
	BufferedBytes int
	// Busy reports whether other work needs the CPU that deliveries use. It is called before each read, from any
	// goroutine. nil: never.
	Busy func() bool
	// CPUFraction is the fraction of the node's CPU that deliveries may use while Busy, above 0 if Busy is set. 1 disables
	// the limit. Delivering each published message once is always allowed.
	CPUFraction float64
	// Counters is updated; nil for none.
	Counters *Counters
}

// Counters counts deliveries. It outlives the registries that update it. Each update covers all messages of one
// delivery.
type Counters struct {
	// Delivered messages and their bytes, including redelivered ones. Redelivered counts messages that were requeued
	// by a consumer or after its loss.
	Delivered, DeliveredBytes, Redelivered atomic.Uint64
	// Filtered counts messages that did not match the filter of their subscription and were acknowledged instead.
	Filtered atomic.Uint64
}

// Registry contains the dispatchers of one term in which the node is active.
type Registry struct {
	source   Source
	settler  Settler
	limits   atomic.Pointer[Limits]
	counters *Counters
	log      *zap.Logger
	throttle *throttle
	buffered bufferedBytes
	running  sync.WaitGroup

	mu        sync.Mutex // guards the fields below
	byKey     map[Key]*dispatcher
	moving    map[Key]int // Seek is in progress
	consumers int
	paused    bool
	closed    error
	full      map[FullError]time.Time // when dead letters were last found pending; nil while none were
	hidden    map[Key][]Range         // ranges of running Return calls; nil before the first
	holding   map[Key]int             // running Withdraw calls; nil before the first
}

// NewRegistry creates an empty registry. Close must be called.
func NewRegistry(source Source, settler Settler, limits Limits, logger *zap.Logger) *Registry {
	if limits.Counters == nil {
		limits.Counters = new(Counters)
	}
	r := &Registry{
		source: source, settler: settler, log: logger, byKey: make(map[Key]*dispatcher), moving: make(map[Key]int),
		throttle: newThrottle(limits.Busy, 0),
	}
	r.counters = limits.Counters
	r.SetLimits(limits)
	return r
}

// SetLimits changes all limits except Busy and Counters. Consumers above a lowered limit keep their messages and
// credit.
func (r *Registry) SetLimits(limits Limits) {
	r.limits.Store(&limits)
	r.buffered.add(0, &limits)
	r.throttle.setFraction(limits.CPUFraction)
}

// Published records the number and approximate total size of published messages.
func (r *Registry) Published(messages, bytes int) { r.throttle.publish(messages, bytes) }

// Attach adds a consumer to a subscription. The caller must Close it. accepts reports whether the consumer accepts a
// message; nil accepts all. It is called with locks held, must not block, and must be deterministic. Messages that it
// does not accept remain for other consumers. from describes the origin of the consumer.
func (r *Registry) Attach(key Key, from string, accepts func(m *Message) bool) (*Consumer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed != nil {
		return nil, r.closed
	}
	if r.consumers >= r.limits.Load().Consumers {
		return nil, ErrTooManyConsumers
	}
	if r.moving[key] > 0 {
		return nil, ErrClosed // retryable
	}
	d := r.byKey[key]
	if d == nil {
		d = newDispatcher(r, key, r.paused)
		d.hidden, d.holding = slices.Clone(r.hidden[key]), r.holding[key]
		if err := d.setFilter(); err != nil {
			return nil, err
		}
		r.byKey[key] = d
		r.start(d)
	}
	r.consumers++
	r.buffered.attached(r.consumers, r.limits.Load())
	return d.attach(from, accepts), nil
}

// start runs the dispatcher's goroutines. They end when the dispatcher stops, and Close waits for them.
func (r *Registry) start(d *dispatcher) {
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	r.running.Add(2)
	d.running.Add(2)
	run := func(f func(context.Context)) {
		defer r.running.Done()
		defer d.running.Done()
		f(ctx)
	}
	go run(d.deliver)
	go run(d.settle)
}

// SetPaused pauses or resumes deliveries. Next returns no message after SetPaused(true) has returned (INV-2).
func (r *Registry) SetPaused(paused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paused = paused
	for _, d := range r.byKey {
		d.setPaused(paused)
	}
}

// Close ends all consumers with the given reason (nil: ErrClosed) and waits for the dispatchers to stop.
func (r *Registry) Close(reason error) {
	r.Stop(reason)
	r.Wait()
}

// Stop ends all consumers with the given reason (nil: ErrClosed). A dispatcher that waits for a commit may run until
// the primary has stopped.
func (r *Registry) Stop(reason error) {
	if reason == nil {
		reason = ErrClosed
	}
	r.mu.Lock()
	r.closed = reason
	for key, d := range r.byKey {
		d.stop(reason)
		delete(r.byKey, key)
	}
	r.mu.Unlock()
}

// Wait waits for the dispatchers after Stop.
func (r *Registry) Wait() { r.running.Wait() }

// Settled records that another transaction acknowledged or released messages of a subscription, so that they are no
// longer in flight. It must be called after the transaction was applied and before it is answered.
func (r *Registry) Settled(key Key, acks, releases []Range) {
	r.mu.Lock()
	d := r.byKey[key]
	r.mu.Unlock()
	if d != nil {
		d.settled(acks, releases)
	}
}

// First returns the origin of the consumer of a subscription that has been attached longest, as passed to Attach, and
// since when. In a queue with a single active consumer, that is the active one. ok is false without a consumer.
func (r *Registry) First(key Key) (from string, since time.Time, ok bool) {
	r.mu.Lock()
	d := r.byKey[key]
	r.mu.Unlock()
	if d == nil {
		return "", time.Time{}, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.consumers) == 0 {
		return "", time.Time{}, false
	}
	return d.consumers[0].from, d.consumers[0].firstSince, true
}

// Stats returns the number of messages in flight and of consumers of a subscription.
func (r *Registry) Stats(key Key) (inFlight uint64, consumers uint32) {
	r.mu.Lock()
	d := r.byKey[key]
	r.mu.Unlock()
	if d == nil {
		return 0, 0
	}
	return d.stats()
}

// Attached returns the number of consumers.
func (r *Registry) Attached() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.consumers
}

// detached is called by a dispatcher, without its lock, after a consumer left.
func (r *Registry) detached() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.consumers--
	r.buffered.attached(r.consumers, r.limits.Load())
}

// retire removes a dispatcher without consumers and pending settlements, unless a consumer attached in the meantime.
func (r *Registry) retire(d *dispatcher) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byKey[d.key] == d && d.stopIfIdle() {
		delete(r.byKey, d.key)
	}
}

// fail ends a dispatcher and its consumers. The next Attach creates a new one that starts at the subscription's
// floor.
func (r *Registry) fail(d *dispatcher, reason error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byKey[d.key] == d {
		delete(r.byKey, d.key)
	}
	d.stop(reason)
}
