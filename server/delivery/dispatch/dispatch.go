// SPDX-License-Identifier: Apache-2.0

// Package dispatch distributes the messages of a subscription to its consumers.
//
// Each subscription with consumers has one dispatcher. It reads the queue in batches, assigns messages round-robin to
// consumers with credit, and tracks the messages in flight. Priorities, message groups, single active consumers and
// consumers with filters need another order (see selective).
//
// # Invariants
//
//   - A message is in flight at one consumer at most. Consumer.inFlight is authoritative; all other state is derived.
//   - Only applied messages are visible (Source.Read returns nothing else), and nothing is delivered while paused
//     (INV-2).
//   - `confirmed` increases only after the transaction that contains the acks is committed.
//   - A message that reached the delivery limit, or was rejected, is moved to the dead-letter queue, or discarded
//     without one. A reject is confirmed when the move is committed. While the dead-letter queue is full, the message
//     remains in its queue without a consumer, and consumers that support it are notified.
//   - A message that does not match the filter of its subscription is acknowledged instead of delivered. Such messages
//     are found only while a consumer has credit, and their acknowledgement is delayed.
//   - A corrupt message is skipped, and read again every few seconds until it is readable or acknowledged.
//   - Each message group has at most one message in flight (see groups).
//   - An expired message is not delivered.
//   - A requeued message with a delay blocks only messages of its group.
//   - The bytes buffered for a slow connection are bounded, regardless of the consumer's credit.
//   - After its acknowledgement deadline, a message is removed from its consumer, and its delivery is counted
//     (INV-22, see deadline.go).
//   - While other work needs the CPU, the dispatchers may together use only a fraction of it, in turns (see
//     throttle).
//
// The package does not depend on gRPC, protobuf or replication. It uses a Source and a Settler.
package dispatch

import (
	"context"
	"errors"
	"maps"
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
	// ErrClosed is returned after the registry was closed without a reason, after a failed Seek, and by Attach during a
	// Seek.
	ErrClosed = errors.New("consumers are closed")
	// ErrMoved is returned by Next and Settle if Seek has moved the subscription. Earlier deliveries and their
	// outcomes are invalid.
	ErrMoved = errors.New("subscription was moved; outcomes of earlier deliveries are invalid")
	// ErrFinished is returned by Next after Finish or Detach, when Next has returned all requested confirmations.
	ErrFinished = errors.New("consumer is closed")
	// ErrTooManyConsumers is returned by Attach when the node has reached its limit of consumers.
	ErrTooManyConsumers = errors.New("too many consumers")
	// ErrTooMuchCredit is returned by AddCredit when the consumer's credit would exceed the limit.
	ErrTooMuchCredit = errors.New("too much credit")
	// ErrNotDelivered is returned by Settle for a sequence that does not exist in the queue yet.
	ErrNotDelivered = errors.New("sequence was not delivered")
)

// Key identifies a subscription by the ID of its queue and the subscription's ID within the queue.
type Key struct {
	Queue uint64
	Sub   uint32
}

// Range is an inclusive range of sequences. First is not greater than Last.
type Range = txn.Range

// Message is a stored message.
type Message = store.Delivery

// Source provides messages to a dispatcher.
type Source interface {
	// Read appends unacknowledged messages of the subscription to dst, starting at sequence from. It appends at most
	// maxMessages messages, and stops when their size reaches maxBytes. It returns at least one message if one is
	// available. A corrupt message has no record. next is the sequence to continue from.
	Read(ctx context.Context, key Key, from uint64, maxMessages, maxBytes int, dst []Message) (messages []Message,
		next uint64, err error)
	// ReadPriorities is like Read, but reads the highest priority of a queue with priorities first. It reads each
	// priority from its position in lanes and advances that position. next is greater than all sequences read.
	ReadPriorities(ctx context.Context, key Key, lanes *store.Lanes, maxMessages, maxBytes int, dst []Message) (
		messages []Message, next uint64, err error)
	// Priorities returns the priorities of the given sequences, in the same order.
	Priorities(queue uint64, sequences []uint64) []uint8
	// Order returns two properties of a queue. prioritized reports whether it delivers higher priorities first, which
	// is fixed when the queue is created. exclusive reports whether each subscription has a single active consumer,
	// which can be altered.
	Order(queue uint64) (prioritized, exclusive bool)
	// NextSequence returns the sequence of the queue's next message. It returns false if the queue does not exist.
	NextSequence(queue uint64) (uint64, bool)
	// MaxDeliveries returns the delivery limit of a subscription; 0 means no limit.
	MaxDeliveries(key Key) uint64
	// Exhausted returns those of the given sequences that have reached the delivery limit.
	Exhausted(key Key, sequences []uint64) []uint64
	// TTL returns the TTL of the queue's messages in milliseconds; 0 means no TTL. It can be altered.
	TTL(queue uint64) int64
	// Paused reports whether delivery to the subscription is paused. It can be altered.
	Paused(key Key) bool
	// AckTimeout returns the acknowledgement deadline of a subscription; 0 means no deadline. It can be altered.
	AckTimeout(key Key) time.Duration
	// RedeliveryDelays returns the redelivery delays of the given sequences, or nil if none of them is delayed.
	RedeliveryDelays(key Key, sequences []uint64) []time.Duration
	// Filter returns a function that reports whether a stored record matches the subscription's filter, or nil without a
	// filter.
	Filter(key Key) (matches func(record []byte) bool, err error)
	// Filters returns a value that changes whenever the result of Filter may change. Messages that are published after a
	// change of the filter cannot be read before the value has changed.
	Filters() uint64
	// Watch returns a channel that receives a value after changes of the queue. One value can represent several
	// changes. cancel ends the watch.
	Watch(queue uint64) (changed <-chan struct{}, cancel func())
}

// Settler commits the outcomes of messages of a subscription.
type Settler interface {
	// Settle commits acknowledgements and releases in one transaction. It returns nil only when the transaction is
	// committed and applied.
	Settle(ctx context.Context, key Key, acks, releases []Range) error
	// Move moves messages of one subscription, in ascending order, to its dead-letter queue. Without a dead-letter
	// queue, it discards them. It skips messages that are already acknowledged. It returns nil only when the move is
	// committed and applied. If not all messages fit, it moves the oldest messages and returns the sequences of the
	// others with a *FullError.
	Move(ctx context.Context, key Key, dead []Dead) (waiting []uint64, err error)
}

// Dead is a message that must be dead-lettered.
type Dead struct {
	Sequence   uint64
	Reason     txn.DeadReason
	Deliveries uint32
	Record     []byte
}

// Limits contains the limits of a registry. Numbers must be positive, unless the meaning of 0 is documented.
type Limits struct {
	// Consumers limits the number of consumers on this node.
	Consumers int
	// Outstanding limits the number of messages in flight at one consumer, and its credit.
	Outstanding int
	// BatchBytes is the approximate size of one read and of one event.
	BatchBytes int
	// OutboxBytes is the approximate maximum number of bytes buffered for one consumer.
	OutboxBytes int
	// BufferedBytes limits the bytes buffered for all consumers; 0 means no limit. When half of it is used, each
	// consumer is limited to an equal fraction of the rest, but to at least 16 KiB.
	BufferedBytes int
	// Busy reports whether other work needs the CPU that deliveries use; nil means never. It must be safe for
	// concurrent use.
	Busy func() bool
	// CPUFraction is the fraction of the node's CPU that deliveries may use while Busy returns true; 1 disables the
	// limit. Deliveries may always use enough CPU to deliver each published message once.
	CPUFraction float64
	// Counters counts the deliveries. It may be nil.
	Counters *Counters
}

// Counters counts deliveries. It can be shared by successive registries.
type Counters struct {
	// Delivered and DeliveredBytes include redeliveries. Redelivered counts deliveries of requeued messages that had
	// been delivered before.
	Delivered, DeliveredBytes, Redelivered atomic.Uint64
	// Filtered counts messages that were acknowledged because they did not match the filter of their subscription.
	Filtered atomic.Uint64
	// AckExpired counts the messages in Event.Expired.
	AckExpired atomic.Uint64
}

// Registry contains the dispatchers of one term in which the node is active.
type Registry struct {
	source   Source
	settler  Settler
	limits   atomic.Pointer[Limits]
	counters *Counters
	log      *zap.Logger
	began    time.Time // origin of each moment
	throttle *throttle
	buffered bufferedBytes
	running  sync.WaitGroup

	mu        sync.Mutex // guards the fields below
	byKey     map[Key]*dispatcher
	moving    map[Key]int // number of Seek calls in progress
	consumers int
	paused    bool
	closed    error
	full      map[FullError]time.Time // when the dead letters were last found pending
	hidden    map[Key][]Range         // ranges of the Return calls in progress
	holding   map[Key]int             // number of Withdraw calls in progress
	// detachedCounts contains the number of messages delivered by removed dispatchers, by queue ID. TakeDetached
	// resets it.
	detachedCounts map[uint64]uint64
	stuck          []Stuck // result of the last call of Stuck that was not cached
	checkedAt      moment  // time of that call
}

// NewRegistry creates an empty registry. The caller must call Close, or Stop and then Wait.
func NewRegistry(source Source, settler Settler, limits Limits, logger *zap.Logger) *Registry {
	if limits.Counters == nil {
		limits.Counters = new(Counters)
	}
	r := &Registry{
		source: source, settler: settler, log: logger, byKey: make(map[Key]*dispatcher), moving: make(map[Key]int),
		throttle: newThrottle(limits.Busy, 0), began: time.Now(),
	}
	r.counters = limits.Counters
	r.SetLimits(limits)
	return r
}

// SetLimits changes all limits except Busy and Counters. Consumers that exceed a lowered limit keep their
// messages and their credit.
func (r *Registry) SetLimits(limits Limits) {
	r.limits.Store(&limits)
	r.buffered.add(0, &limits)
	r.throttle.setFraction(limits.CPUFraction)
}

// Published records the number and the approximate total size of published messages.
func (r *Registry) Published(messages, bytes int) { r.throttle.publish(messages, bytes) }

// Attach adds a consumer to a subscription. The caller must close it with Consumer.Close. accepts reports whether
// the consumer accepts a message; if it is nil, the consumer accepts all messages. Messages that are not accepted
// remain for other consumers. accepts is called with locks held: it must not block, and must be deterministic.
// from describes the origin of the consumer.
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

func (r *Registry) start(d *dispatcher) {
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	for _, run := range []func(context.Context){d.deliver, d.settle} {
		d.running.Add(1)
		r.running.Go(func() {
			defer d.running.Done()
			run(ctx)
		})
	}
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

// Altered applies the current pause and acknowledgement deadline of a queue and its subscriptions. txn.NoQueue
// selects all queues. Altered must be called after the transaction is applied and before the response is sent. After
// Altered, Next returns no message of a paused subscription.
func (r *Registry) Altered(queue uint64) {
	r.mu.Lock()
	dispatchers := make([]*dispatcher, 0, 1)
	for key, d := range r.byKey {
		if queue == txn.NoQueue || key.Queue == queue {
			dispatchers = append(dispatchers, d)
		}
	}
	r.mu.Unlock()
	for _, d := range dispatchers {
		d.followPause()
		d.followAckTimeout()
	}
}

// Close ends all consumers with the given reason, or ErrClosed if it is nil. It waits for the dispatchers to
// stop.
func (r *Registry) Close(reason error) {
	r.Stop(reason)
	r.Wait()
}

// Stop ends all consumers with the given reason, or ErrClosed if it is nil. A dispatcher that waits for a commit
// may run until the primary has stopped.
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

// Wait waits until all dispatchers have stopped. It must be called after Stop.
func (r *Registry) Wait() { r.running.Wait() }

// Settled removes messages from the consumers of a subscription after another transaction acknowledged or released the
// messages. It must be called after the transaction is applied and before the response is sent.
func (r *Registry) Settled(key Key, acks, releases []Range) {
	if d := r.of(key); d != nil {
		d.settled(acks, releases)
	}
}

func (r *Registry) of(key Key) *dispatcher {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byKey[key]
}

// First returns the origin of the subscription's first consumer, which is the active consumer if only one may be
// active. since is the time at which it became the first consumer. ok is false if the subscription has no
// consumer.
func (r *Registry) First(key Key) (from string, since time.Time, ok bool) {
	d := r.of(key)
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

// Stats returns the number of messages in flight and the number of consumers of a subscription.
func (r *Registry) Stats(key Key) (inFlight uint64, consumers uint32) {
	if d := r.of(key); d != nil {
		return d.stats()
	}
	return 0, 0
}

// Attached returns the number of attached consumers.
func (r *Registry) Attached() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.consumers
}

// detached updates the number of consumers after one was removed. The dispatcher's lock must not be held.
func (r *Registry) detached() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.consumers--
	r.buffered.attached(r.consumers, r.limits.Load())
}

// retire removes a dispatcher that has neither consumers nor pending settlements. It does nothing if a consumer has
// attached in the meantime.
func (r *Registry) retire(d *dispatcher) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byKey[d.key] == d && d.stopIfIdle() {
		delete(r.byKey, d.key)
		r.countDetached(d)
	}
}

// fail ends a dispatcher and its consumers. The next Attach creates a dispatcher that starts at the subscription's
// first unacknowledged message.
func (r *Registry) fail(d *dispatcher, reason error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byKey[d.key] == d {
		delete(r.byKey, d.key)
		r.countDetached(d)
	}
	d.stop(reason)
}

// Activity is the activity of the consumers of a queue or subscription.
type Activity struct {
	Consumers uint32
	// Delivered is the number of delivered messages, without those that TakeDetached returns.
	Delivered uint64
}

// Activity returns the activity of the queues with consumers, by queue ID.
func (r *Registry) Activity() map[uint64]Activity {
	r.mu.Lock()
	all := slices.Collect(maps.Values(r.byKey))
	r.mu.Unlock()
	out := make(map[uint64]Activity, len(all))
	for _, d := range all {
		d.mu.Lock()
		a := out[d.key.Queue]
		a.Consumers += uint32(len(d.consumers))
		a.Delivered += d.delivered
		d.mu.Unlock()
		out[d.key.Queue] = a
	}
	return out
}

// TakeDetached returns, by queue ID, the numbers of delivered messages that Activity no longer includes. The next
// call returns only later changes.
func (r *Registry) TakeDetached() map[uint64]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.detachedCounts
	r.detachedCounts = nil
	return out
}

// countDetached adds the delivered messages of a removed dispatcher to detachedCounts. The caller must hold mu.
func (r *Registry) countDetached(d *dispatcher) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.delivered == 0 {
		return
	}
	if r.detachedCounts == nil {
		r.detachedCounts = make(map[uint64]uint64)
	}
	r.detachedCounts[d.key.Queue] += d.delivered
}

// Load returns the consumer's remaining credit and its number of unacknowledged messages.
func (c *Consumer) Load() (credit, unacknowledged uint64) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	return uint64(max(c.credit, 0)), uint64(len(c.inFlight))
}
