// SPDX-License-Identifier: Apache-2.0

// Package dispatch hands the messages of a subscription to the consumers that share it.
//
// There is one dispatcher for each subscription that has consumers. It reads forward through the queue in batches,
// gives each message to the next consumer in turn that has credit, and remembers who has what. Messages that were given
// back (nack, lost consumer) go out again before new ones, lowest sequence first. Queues with priorities, message
// groups, single active consumers and consumers with filters have another order: see selective. Acknowledgements of all
// consumers of a subscription gather while a transaction with earlier ones is being committed, and go into the next
// one.
//
// # Invariants
//
//   - A message is with at most one consumer at a time: Consumer.inFlight is the truth, everything else is derived.
//   - Only applied messages are seen (Source.Read shows nothing else), and nothing is handed out while paused (INV-2).
//   - `confirmed` moves only after the transaction that holds the acks is committed.
//   - A message that was delivered as often as its queue allows for, or that a consumer has rejected, is moved to the
//     queue's dead-letter queue, and a reject is confirmed when that is committed. While there is no room for it, it
//     stays where it is, with no consumer, and a consumer that understands that is told so instead.
//   - A message that does not match the filter of its subscription is acknowledged, and given to no consumer. That
//     takes a moment, and happens while a consumer waits for messages.
//   - A message that cannot be read holds up no other: it is skipped, and read again every few seconds until it can
//     be, or until it is acknowledged from elsewhere.
//   - Of each message group one message is out at a time, and the next one follows when that is acknowledged, rejected
//     or dead (see groups).
//   - A message whose time is over is sent to no consumer. It is given up by others (package server/sweep).
//   - A message that was given back, and is to wait, holds up no other message but those of its group.
//   - What waits for a slow consumer's connection is bounded in bytes, whatever its credit.
//   - Deliveries do not starve publishers: while others want the processors, the dispatchers keep to a share
//     of them, and take turns, so that no subscription waits for another one's backlog.
//
// The package knows neither gRPC nor protobuf nor replication: it is given a Source and a Settler.
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
	// ErrMoved is returned by Next and Settle when the consumer's subscription was moved: what was delivered before
	// says nothing any more, nor do answers to it.
	ErrMoved = errors.New("the subscription was moved: attach again, and repeat no acknowledgements")
	// ErrFinished is returned by Next when the client is done and has been told everything.
	ErrFinished = errors.New("consumer is finished")
	// ErrTooManyConsumers is returned by Attach when the node has as many consumers as it may have.
	ErrTooManyConsumers = errors.New("too many consumers")
	// ErrTooMuchCredit is returned by AddCredit when the consumer's credit would exceed what is allowed.
	ErrTooMuchCredit = errors.New("too much credit")
	// ErrNotDelivered is returned by Settle for a sequence that the queue has not reached.
	ErrNotDelivered = errors.New("sequence was never delivered")
)

// Key names a subscription.
type Key struct {
	// Queue is the queue's number.
	Queue uint64
	// Sub is the subscription's number in the queue.
	Sub uint32
}

// Range is an inclusive range of sequences, First <= Last.
type Range = txn.Range

// Message is a stored message on its way to a consumer.
type Message = store.Delivery

// Source is what a dispatcher reads from.
type Source interface {
	// Read appends to dst the messages of the subscription that are not acknowledged, from sequence `from` on, in
	// order: at most maxMessages, and no more once maxBytes are reached, but at least one if there is one. A message
	// that is damaged comes without its record. next is where to go on.
	Read(ctx context.Context, key Key, from uint64, maxMessages, maxBytes int, dst []Message) (messages []Message,
		next uint64, err error)
	// ReadLanes is Read in a queue with priorities: the messages of a higher priority first, of each from where lanes
	// says on, which it moves on. next is above all that it has read.
	ReadLanes(ctx context.Context, key Key, lanes *store.Lanes, maxMessages, maxBytes int, dst []Message) (
		messages []Message, next uint64, err error)
	// Priorities of messages that were given back, in the same order.
	Priorities(queue uint64, sequences []uint64) []uint8
	// Order tells whether a queue delivers messages of a higher priority first, which never changes, and whether each
	// of its subscriptions has only one consumer at a time that gets messages. A change of it is one of the queue.
	Order(queue uint64) (prioritized, exclusive bool)
	// NextSequence is the sequence that the queue's next message will get.
	NextSequence(queue uint64) (uint64, bool)
	// MaxDeliveries is how many times a message is given to a consumer of a subscription at most; 0: there
	// is no limit.
	MaxDeliveries(key Key) uint64
	// Exhausted returns those of the sequences, of messages that were given back, that were delivered as often as they
	// may be.
	Exhausted(key Key, sequences []uint64) []uint64
	// TTL is how long after it came to the queue a message expires, in milliseconds; 0: never. A change of it is one of
	// the queue.
	TTL(queue uint64) int64
	// RedeliveryDelays returns for each of the sequences, of messages that were given back, how long it is to wait
	// before it is given to a consumer again; nil if none has to.
	RedeliveryDelays(key Key, sequences []uint64) []time.Duration
	// Filter returns what tells of a stored record whether the subscription gets that message; nil if it gets all of
	// them. The error says why its filter cannot be used.
	Filter(key Key) (matches func(record []byte) bool, err error)
	// Filters changes whenever Filter may give something else for some subscription, before anything that is published
	// later can be read.
	Filters() uint64
	// Watch returns a channel that receives after the queue changed; coalesced. cancel ends it.
	Watch(queue uint64) (changed <-chan struct{}, cancel func())
}

// Settler commits acknowledgements and releases of one subscription in one transaction.
type Settler interface {
	// Settle returns nil only when the transaction is committed and applied.
	Settle(ctx context.Context, key Key, acks, releases []Range) error
	// Move moves messages of one subscription, which are rising, to its dead-letter queue, or drops them if it has none;
	// what is acknowledged by then stays where it is. It returns nil only when that is committed and applied. If there is
	// not enough room, it moves as many as fit, the oldest first, and returns the sequences of the others with a
	// *FullError.
	Move(ctx context.Context, key Key, dead []Dead) (waiting []uint64, err error)
}

// Dead is a message that no consumer of a subscription could deal with.
type Dead struct {
	// Sequence of the message.
	Sequence uint64
	// Reason why it is given up.
	Reason txn.DeadReason
	// Deliveries is how many times it was given to a consumer.
	Deliveries uint32
	// Record of the message.
	Record []byte
}

// Limits bound the registry. All of them must be positive.
type Limits struct {
	// Consumers on this node.
	Consumers int
	// Outstanding messages of one consumer (delivered, not answered), and its largest credit.
	Outstanding int
	// BatchBytes is about how much one read takes in and one Next hands out.
	BatchBytes int
	// OutboxBytes is about how much waits for one consumer's connection.
	OutboxBytes int
	// WaitingBytes is about how much waits for the connections of all consumers: when it is half of that, each may have
	// an equal part of it, or 16 KiB, if that is more. 0: no limit.
	WaitingBytes int
	// Busy tells whether others want the processors that deliveries use. It is called before each read, by any
	// goroutine. nil: they never do.
	Busy func() bool
	// Share is what part of the node's processors deliveries may use while Busy, above 0 if there is a Busy; 1: nothing
	// holds them back. They may always use as much as it takes to deliver each message once.
	Share float64
	// Counters are added to; nil: nothing is counted.
	Counters *Counters
}

// Counters count what was handed to consumers. They outlive the registries that add to them. Each addition is for all
// messages that were handed out together.
type Counters struct {
	// Delivered messages and their bytes, redelivered ones among them. Redelivered were given back before, or their
	// consumer was lost.
	Delivered, DeliveredBytes, Redelivered atomic.Uint64
	// Filtered messages did not match the filter of their subscription, and were acknowledged instead.
	Filtered atomic.Uint64
}

// Registry holds the dispatchers of one term in which the node is active.
type Registry struct {
	source   Source
	settler  Settler
	limits   atomic.Pointer[Limits]
	counters *Counters
	log      *zap.Logger
	throttle *throttle
	waiting  waiting
	running  sync.WaitGroup

	mu        sync.Mutex // guards what is below
	byKey     map[Key]*dispatcher
	moving    map[Key]int // Seek is at work on it
	consumers int
	paused    bool
	closed    error
	full      map[FullError]time.Time // when dead letters were last found to wait; nil while none ever did
	withheld  map[Key][]Range         // of which Return is under way; nil while there never was one
	holding   map[Key]int             // calls of Withdraw under way; nil while there never was one
}

// NewRegistry makes an empty registry. Close must be called.
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

// SetLimits changes all limits but Busy and Counters. Consumers that have more than they may now keep it.
func (r *Registry) SetLimits(limits Limits) {
	r.limits.Store(&limits)
	r.waiting.add(0, &limits)
	r.throttle.setShare(limits.Share)
}

// Published tells that messages were published, which take so many bytes in all, about.
func (r *Registry) Published(messages, bytes int) { r.throttle.publish(messages, bytes) }

// Attach adds a consumer to a subscription. The caller must Close it. accepts tells which messages it may be given, nil
// for all: it is called with locks held, must not block, and must say the same of a message whenever it is asked. What
// it does not accept stays for other consumers. from says where the consumer comes from, for people.
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
		return nil, ErrClosed // to be tried again
	}
	d := r.byKey[key]
	if d == nil {
		d = newDispatcher(r, key, r.paused)
		d.withheld, d.holding = slices.Clone(r.withheld[key]), r.holding[key]
		if err := d.setFilter(); err != nil {
			return nil, err
		}
		r.byKey[key] = d
		r.start(d)
	}
	r.consumers++
	r.waiting.attached(r.consumers, r.limits.Load())
	return d.attach(from, accepts), nil
}

// start runs the dispatcher's goroutines; they end when the dispatcher stops and are joined in Close.
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

// SetPaused stops deliveries, or lets them go on. Nothing is handed out by Next after SetPaused(true) has returned
// (INV-2).
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

// Settled tells that a transaction from elsewhere acknowledged or released messages of a subscription, so that they no
// longer count as being with a consumer. It must be called after the transaction was applied and before it is answered.
func (r *Registry) Settled(key Key, acks, releases []Range) {
	r.mu.Lock()
	d := r.byKey[key]
	r.mu.Unlock()
	if d != nil {
		d.settled(acks, releases)
	}
}

// First tells where the consumer of a subscription comes from that has been attached for longest, as Attach was told,
// and since when it is that one: of a queue with a single active consumer, the active one. ok is false if there is no
// consumer.
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

// Stats tells how many messages of a subscription are with consumers, and how many consumers there are.
func (r *Registry) Stats(key Key) (inFlight uint64, consumers uint32) {
	r.mu.Lock()
	d := r.byKey[key]
	r.mu.Unlock()
	if d == nil {
		return 0, 0
	}
	return d.stats()
}

// Attached is how many consumers there are.
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
	r.waiting.attached(r.consumers, r.limits.Load())
}

// retire forgets a dispatcher that has no consumers and nothing to settle, unless a consumer came in the meantime.
func (r *Registry) retire(d *dispatcher) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byKey[d.key] == d && d.stopIfIdle() {
		delete(r.byKey, d.key)
	}
}

// fail ends a dispatcher and its consumers; the next Attach makes a new one that begins at the subscription's floor.
func (r *Registry) fail(d *dispatcher, reason error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byKey[d.key] == d {
		delete(r.byKey, d.key)
	}
	d.stop(reason)
}
