// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store/txn"
)

const maxReadMessages = 4096

// pollEvery is the number of steps after which a busy dispatcher checks whether the settings of the queue were
// altered.
const pollEvery = 64

const corruptRetryInterval = 5 * time.Second

// dispatcher serves one subscription with two goroutines, deliver and settle.
type dispatcher struct {
	registry *Registry
	key      Key
	wake     chan struct{} // wakes deliver: credit, space, redeliveries, or a resumed delivery
	work     chan struct{} // wakes settle: pending outcomes
	room     chan struct{} // closed and replaced when settle has taken pending outcomes
	cancel   context.CancelFunc
	running  sync.WaitGroup

	// The fields below are used only by the deliver goroutine.
	matches    func(record []byte) bool // reports whether a message matches the filter; nil without a filter
	filters    uint64                   // value of Source.Filters before matches was fetched
	others     int                      // number of messages of the current turn that did not match the filter
	noReceiver bool                     // no consumer can accept a message, so changes of the queue are ignored
	polls      bool                     // new messages may precede messages that were already read

	following sync.Mutex // serializes followPause; must be locked before mu

	// mu guards the fields below and the fields of the consumers. The caller must hold mu for methods that use these
	// fields without locking it.
	mu        sync.Mutex
	consumers []*Consumer
	order     order
	turn      int  // index of the consumer that is next in the round-robin order
	paused    bool // paused by the registry
	suspended bool // paused by the settings of the queue or subscription
	holding   int  // number of Withdraw calls in progress
	stopped   error
	next      uint64     // greater than every sequence that was read
	delayed   delayQueue // messages requeued with a delay
	overdue   sequences  // messages that expired before they were sent
	ttl       int64      // in milliseconds; 0 means no TTL
	// corrupt contains the corrupt messages, which are skipped and retried periodically.
	corrupt    sequences
	committing settlement // taken by settle and not committed yet; contains only the outcomes
	returning  bool       // messages of a lost or silent consumer will be requeued soon, before newer ones
	drains     bool       // a consumer has requested a drain since the last read
	reading    bool       // a read is in progress, without mu
	pending    settlement
	skipped    skipped
	// deadWait is set until pending dead messages must be retried. deadFull is set when the reason was logged.
	deadWait, deadFull bool
	// ackedInRead contains messages that were acknowledged during the current read. The result of the read may still
	// contain them.
	ackedInRead []Range
	// hidden contains the messages of Return calls in progress, which are removed from read results. unhiding contains
	// ranges that are no longer hidden.
	hidden, unhiding []Range
	// dueInRead contains messages that became deliverable during the current read and are not in its result.
	dueInRead []uint64
	delivered uint64
	deadlines deadlines
	division  division
}

func newDispatcher(r *Registry, key Key, paused bool) *dispatcher {
	d := &dispatcher{
		registry: r, key: key, paused: paused, next: 1,
		wake: make(chan struct{}, 1), work: make(chan struct{}, 1), room: make(chan struct{}),
		corrupt: newSequences(), overdue: newSequences(), ttl: r.source.TTL(key.Queue),
		suspended: r.source.Paused(key),
	}
	d.order = orderOf(d)
	return d
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default: // a signal is already pending
	}
}

func (d *dispatcher) attach(from string, accepts func(*Message) bool) *Consumer {
	timeout := d.registry.source.AckTimeout(d.key)
	d.mu.Lock()
	defer d.mu.Unlock()
	c := &Consumer{
		d: d, notify: make(chan struct{}, 1), inFlight: make(map[uint64]moment), err: d.stopped, accepts: accepts,
		from: from, deadlines: consumerDeadlines{reported: timeout, answered: d.registry.elapsed()},
	}
	d.setAckTimeout(timeout)
	d.consumers = append(d.consumers, c)
	d.updateFirst()
	if accepts != nil {
		d.selects()
	}
	return c
}

func (d *dispatcher) setPaused(paused bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.paused = paused
	if !paused {
		d.wakeAll()
		for _, c := range d.consumers {
			if len(c.outbox) > 0 {
				c.startOutbox()
			}
		}
	}
}

func (d *dispatcher) stop(reason error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped == nil {
		d.stopped = reason
	}
	for _, c := range d.consumers {
		c.err = d.stopped
		signal(c.notify)
	}
	d.order.stop()
	d.delayed.stop()
	d.deadlines.stop()
	d.cancel()
}

func (d *dispatcher) stopIfIdle() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.consumers) > 0 || !d.pending.empty() || len(d.skipped.acks) > 0 {
		return false
	}
	d.stopped = ErrClosed
	d.deadlines.stop()
	d.cancel()
	return true
}

func (d *dispatcher) stats() (inFlight uint64, consumers uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.consumers {
		inFlight += uint64(len(c.inFlight))
	}
	return inFlight, uint32(len(d.consumers))
}

func (d *dispatcher) updateFirst() {
	d.passActive()
	if len(d.consumers) > 0 && d.consumers[0].firstSince.IsZero() {
		d.consumers[0].firstSince = time.Now()
	}
}

func (d *dispatcher) deliver(ctx context.Context) {
	changed, cancel := d.registry.source.Watch(d.key.Queue)
	defer cancel()
	again := time.NewTicker(corruptRetryInterval)
	defer again.Stop()
	for steps, rounds := 0, 0; ; steps++ {
		if d.noReceiver || steps%pollEvery == 0 {
			select {
			case <-changed:
				d.queueChanged()
			default:
			}
		}
		progressed, err := d.step(ctx, changed)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			d.registry.fail(d, err)
			return
		}
		if progressed {
			continue
		}
		queueChanged := changed
		if d.noReceiver {
			// Keep the signal pending: publishers must not wake a dispatcher without a consumer that can accept messages.
			queueChanged = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		case <-queueChanged:
			d.queueChanged()
		case <-again.C:
			d.retryCorrupt()
			d.followAckTimeout()
			if rounds++; rounds%overdueRetryInterval == 0 {
				d.retryOverdue()
			}
		}
	}
}

func (d *dispatcher) queueChanged() {
	_, exclusive := d.registry.source.Order(d.key.Queue)
	ttl := d.registry.source.TTL(d.key.Queue)
	d.followPause()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ttl = ttl
	d.order.queueChanged()
	d.setExclusive(exclusive)
}

// followPause pauses or resumes delivery according to the state of the subscription. After a pause, Next returns
// no message until followPause resumes delivery.
func (d *dispatcher) followPause() {
	d.following.Lock()
	defer d.following.Unlock()
	suspended := d.registry.source.Paused(d.key)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.suspended == suspended {
		return
	}
	d.suspended = suspended
	if suspended {
		for _, c := range d.consumers {
			c.requeueUnsent()
		}
	}
	d.wakeAll()
}

// wakeAll wakes the deliver goroutine and all consumers.
func (d *dispatcher) wakeAll() {
	signal(d.wake)
	for _, c := range d.consumers {
		signal(c.notify)
	}
}

func (d *dispatcher) followExclusive() {
	_, exclusive := d.registry.source.Order(d.key.Queue)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.setExclusive(exclusive)
}

func (d *dispatcher) step(ctx context.Context, changed <-chan struct{}) (progressed bool, err error) {
	maxMessages, maxBytes := maxReadMessages, d.registry.batchBytes()
	if d.registry.throttle.isBusy() {
		maxMessages, maxBytes = batchCPUMessages, min(maxBytes, batchCPUBytes)
	}
	want, again, from, queueChanged := d.demand(maxMessages, changed)
	if queueChanged {
		d.queueChanged()
	}
	if want == 0 {
		return false, nil
	}
	if d.matches != nil {
		want = max(want, min(maxMessages, filterReadMessages))
		if err := d.waitForRoom(ctx, false); err != nil {
			return false, err
		}
	}
	var messages []Message
	if len(again) > 0 {
		var left []uint64
		messages, left, err = d.readAgain(ctx, again, maxBytes)
		var others []Range
		if err == nil {
			messages, others, err = d.match(messages)
		}
		d.redeliverRead(messages, left, others)
		progressed = true
	} else {
		messages, progressed, err = d.readOn(ctx, from, want, maxBytes)
	}
	d.registry.throttle.wait(ctx, messages, d.others)
	d.others = 0
	return progressed, err
}

func (d *dispatcher) readOn(
	ctx context.Context, from order, want, maxBytes int,
) (messages []Message, progressed bool, err error) {
	messages, next, err := from.read(ctx, want, maxBytes)
	if d.polls {
		d.followExclusive() // messages published after a change of the setting must be delivered according to it
	}
	d.wasRead(messages)
	matching, others, filterErr := d.match(messages)
	err = errors.Join(err, filterErr)
	most := d.maxDeliveries(matching)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.skip(others)
	messages = d.endRead(matching, most)
	defer d.finishUnhiding()
	if err != nil {
		return messages, false, err
	}
	progressed = d.order.deliverRead(messages, next)
	d.endDue()
	return messages, progressed, nil
}

// demand delivers buffered messages. It returns how many more messages the consumers can accept (want), limited to
// most. If want is not 0, the caller must read the sequences that again contains. If again is empty, it must read new
// messages with the returned order. It must then call endRead. queueChanged reports that the queue has changed, and
// that the order was notified of the change.
func (d *dispatcher) demand(most int, changed <-chan struct{}) (want int, again []uint64, from order,
	queueChanged bool,
) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.canDeliver() {
		d.noReceiver = !d.suspended // only a suspended queue can resume when it changes
		if d.suspended && !d.paused {
			d.answerAllDrains()
		}
		return 0, nil, nil, false
	}
	if d.polls {
		// Messages published before a consumer added credit must be visible here. Therefore changes are checked with the
		// lock held.
		select {
		case <-changed:
			queueChanged = true
			d.order.queueChanged()
		default:
		}
	}
	d.beginDrains()
	want, again = d.order.demand(most)
	d.answerDrains(want, again)
	if want > 0 {
		d.reading = true
	}
	return want, again, d.order, queueChanged
}

func (d *dispatcher) endRead(messages []Message, most uint64) []Message {
	acked := d.ackedInRead
	d.reading, d.ackedInRead = false, nil
	messages = d.filterCorrupt(withoutRanges(withoutRanges(messages, acked), d.hidden))
	if most > 0 {
		messages = d.filterExhausted(messages, most)
	}
	return messages
}

func (d *dispatcher) canDeliver() bool {
	return !d.paused && !d.suspended && d.holding == 0 && d.stopped == nil
}

func (d *dispatcher) nextConsumer() *Consumer {
	if !d.canDeliver() {
		return nil
	}
	for i := range d.consumers {
		at := (d.turn + i) % len(d.consumers)
		if c := d.consumers[at]; c.capacity() > 0 {
			d.turn = at + 1
			return c
		}
	}
	return nil
}

// readAgain reads sequences in ascending order, up to about maxBytes. left contains the sequences that it has not
// read. Messages acknowledged in the meantime are in neither result.
func (d *dispatcher) readAgain(
	ctx context.Context, sequences []uint64, maxBytes int,
) (found []Message, left []uint64, err error) {
	for len(sequences) > 0 {
		run := 1
		for run < len(sequences) && sequences[run] == sequences[0]+uint64(run) {
			run++
		}
		last := sequences[run-1]
		for from := sequences[0]; from <= last; {
			if maxBytes <= 0 {
				return found, sequences[from-sequences[0]:], nil
			}
			messages, next, err := d.registry.source.Read(ctx, d.key, from, int(last-from)+1, maxBytes, nil)
			if err != nil {
				return nil, nil, err
			}
			for _, m := range messages {
				if m.Sequence <= last {
					found = append(found, m)
					maxBytes -= len(m.Record)
				}
			}
			if next == from {
				break
			}
			from = next
		}
		sequences = sequences[run:]
	}
	return found, nil, nil
}

// redeliverRead redelivers messages. It acknowledges the ranges in others, which do not match the filter. Messages that
// no consumer can accept now, and the messages in left, remain requeued.
func (d *dispatcher) redeliverRead(messages []Message, left []uint64, others []Range) {
	most := d.maxDeliveries(messages)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.skip(others)
	defer d.finishUnhiding()
	d.order.notRead(left)
	if given := d.order.redeliverRead(d.endRead(messages, most)); given > 0 {
		d.registry.counters.Redelivered.Add(given)
	}
	d.endDue()
}

func (d *dispatcher) settled(acks, releases []Range) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remove(acks)
	d.requeueDelayed(d.removeFromConsumers(releases), nil)
}

func (d *dispatcher) remove(acks []Range) {
	if len(acks) == 0 {
		return
	}
	if d.reading {
		d.ackedInRead = append(d.ackedInRead, acks...)
	}
	d.order.remove(acks)
	for _, r := range acks {
		d.corrupt.removeRange(r)
		d.overdue.removeRange(r)
		d.delayed.removeRange(r)
	}
	d.removeFromConsumers(acks)
}

func (d *dispatcher) removeFromConsumers(ranges []Range) []uint64 {
	var held []uint64
	for _, c := range d.consumers {
		for _, r := range ranges {
			c.drop(r, &held)
		}
	}
	if len(held) > 0 {
		signal(d.wake) // a consumer at its limit of messages in flight can accept another one
	}
	return held
}

func (d *dispatcher) requeue(sequences []uint64) {
	if len(sequences) == 0 {
		return
	}
	d.order.requeue(sequences)
	signal(d.wake)
}

// detach removes a consumer. The deliveries of the messages that were sent to it are counted. When the count is
// committed, these messages are redelivered, together with the unsent messages of the consumer.
func (d *dispatcher) detach(c *Consumer) {
	d.mu.Lock()
	at := slices.Index(d.consumers, c)
	if at < 0 {
		d.mu.Unlock()
		return // already closed
	}
	d.consumers = slices.Delete(d.consumers, at, at+1)
	d.updateFirst()
	d.turn = 0
	var unsent, sent []uint64
	for sequence, sentAt := range c.inFlight {
		if sentAt != 0 {
			sent = append(sent, sequence)
		} else {
			unsent = append(unsent, sequence)
		}
	}
	c.inFlight, c.outbox, c.left = nil, nil, true
	c.outboxBytes, c.unconfirmedBytes = 0, 0
	c.updateCount(1)
	d.order.left(c)
	if d.stopped == nil {
		if len(sent) > 0 {
			d.pending.unsent = append(d.pending.unsent, unsent...) // keep the messages in order
		} else {
			d.requeue(unsent)
		}
		d.pending.releases = append(d.pending.releases, sent...)
		d.returning = d.returning || len(sent) > 0
		d.pending.returns = d.pending.returns || len(sent) > 0
		signal(d.work) // wake settle, which also detects that no consumer is left
	}
	d.mu.Unlock()
	if len(sent) > 0 {
		d.registry.log.Debug("consumer closed with unacknowledged messages; messages requeued",
			zap.Uint64("queue_id", d.key.Queue), zap.Uint32("subscription_id", d.key.Sub),
			zap.Int("messages", len(sent)))
	}
	d.registry.detached()
}

// filterCorrupt removes corrupt messages from a read result and records them. If a message has a group, the
// dispatcher starts to maintain message groups.
func (d *dispatcher) filterCorrupt(messages []Message) []Message {
	_, grouped := d.order.(*selective)
	messages = slices.DeleteFunc(messages, func(m Message) bool {
		if m.Record == nil {
			d.corrupt.push(m.Sequence)
			return true
		}
		grouped = grouped ||
			txn.RecordHasAttributes(m.Record) && txn.RecordAttribute(m.Record, txn.AttributeGroup) != nil
		return false
	})
	if grouped {
		d.selects()
	}
	return messages
}

func (d *dispatcher) retryCorrupt() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.corrupt.len() > 0 {
		d.order.requeue([]uint64{d.corrupt.pop()})
	}
}
