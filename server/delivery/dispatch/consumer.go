// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"fmt"
	"sort"
	"time"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// Consumer is a consumer of a subscription. Only one goroutine may call Next; all other methods are safe for concurrent
// use.
type Consumer struct {
	d      *dispatcher
	notify chan struct{} // wakes Next

	// Guarded by dispatcher.mu.
	err              error
	credit           int
	outbox           []Message
	outboxBytes      int
	unconfirmedBytes int // bytes delivered since the client's last message
	counted          int // bytes of this consumer that the registry counts, see updateCount
	// inFlight contains the assigned messages without an outcome. The value is the time at which Next returned the
	// message. It is 0 if Next has not returned the message, or if Detach has marked it as not delivered.
	inFlight         map[uint64]moment
	requestedConfirm uint64
	confirmed        uint64
	reportedConfirm  uint64 // last confirmation number returned by Next
	drain            draining
	finishing        bool
	left             bool
	groups           int           // number of message groups that the consumer owns
	deferred         [lanes]uint64 // for each lane: all deferred messages below this sequence were offered to the consumer
	// reportsPending is set by EnablePendingEvents. The next event reports pendingRejects and moved.
	reportsPending        bool
	pendingRejects, moved []uint64
	deadlines             consumerDeadlines
	// accepts reports whether the consumer accepts a message. If it is nil, the consumer accepts all messages.
	accepts func(m *Message) bool
	// from is the origin of the consumer. firstSince is the time at which it became the first consumer of the
	// subscription, or zero.
	from       string
	firstSince time.Time
	// id is the ID of the consumer at all partitions, and number the number of its Divide call; see division.
	id     string
	number uint64
}

func (c *Consumer) accepted(m *Message) bool { return c.accepts == nil || c.accepts(m) }

// Event contains updates for a consumer's client.
type Event struct {
	// Messages contains the messages to be delivered. Their sequences are not always ascending.
	Messages []Message
	// Confirmed is the highest confirmation number for which all outcomes except PendingRejects are committed, or 0 if
	// this number has not changed.
	Confirmed uint64
	// Drained is the number of the Drain request that is answered after Messages; 0 if none is answered.
	// DrainedCredit is the revoked credit.
	Drained       uint64
	DrainedCredit uint32
	// PendingRejects contains the sequences of rejects that Confirmed does not cover, because the dead-letter queue is
	// full. It is set only after EnablePendingEvents.
	PendingRejects []uint64
	// Moved contains sequences of earlier PendingRejects that are no longer pending.
	Moved []uint64
	// Expired contains the sequences of messages that were removed from the consumer because their acknowledgement
	// deadline has passed. If another consumer of an exclusive queue becomes active as a result, Expired also contains
	// the other messages in flight. The client must process Expired before Messages.
	Expired []uint64
	// Refused contains the sequences of acks and rejects that had no effect, because the message was removed from the
	// consumer before (see Expired). Refused is reported no later than the confirmation of these outcomes.
	Refused []uint64
	// AckTimeout is the new result of Consumer.AckTimeout, or nil if it has not changed.
	AckTimeout *time.Duration
}

func (e *Event) empty() bool {
	return e.Confirmed == 0 && e.Drained == 0 && len(e.Messages) == 0 && len(e.PendingRejects) == 0 &&
		len(e.Moved) == 0 && len(e.Expired) == 0 && len(e.Refused) == 0 && e.AckTimeout == nil
}

// EnablePendingEvents enables Event.PendingRejects and Event.Moved. Without it, a pending reject delays all later
// confirmations of the consumer.
func (c *Consumer) EnablePendingEvents() {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.reportsPending = true
}

// AddCredit adds credit for n messages. It returns ErrTooMuchCredit if the credit would exceed the limit.
func (c *Consumer) AddCredit(n uint32) error {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	limit := d.registry.limits.Load().Outstanding
	if int(n) > limit || c.credit+int(n) > limit {
		return fmt.Errorf("%w: %d more than the current %d would exceed limits.outstanding (%d)", ErrTooMuchCredit, n,
			c.credit, limit)
	}
	c.credit += int(n)
	c.clientResponded()
	signal(d.wake)
	return nil
}

// Outcomes contains a consumer's outcomes for its messages. Nacks, Rejects and Releases apply only to messages in
// flight at this consumer.
type Outcomes struct {
	// Acks are acknowledged messages. They may include messages that are not in flight at this consumer.
	Acks []Range
	// Nacks are redelivered after NackDelay or, if NackDelay is nil, after the redelivery delay of their subscription.
	// A message that has reached the delivery limit is dead-lettered instead.
	Nacks     []Range
	NackDelay *time.Duration
	// Rejects are moved to the dead-letter queue. Without a dead-letter queue, they are discarded.
	Rejects []Range
	// Releases are redelivered immediately and are not counted as deliveries.
	Releases []Range
	// Confirm, if not 0, is the confirmation number of these and all earlier outcomes of the consumer. Next returns it
	// in Event.Confirmed.
	Confirm uint64
}

// Settle accepts outcomes of a consumer and does not wait for their commit. Next returns Outcomes.Confirm when they
// are committed. Settle blocks while too many outcomes are pending.
func (c *Consumer) Settle(ctx context.Context, a Outcomes) error {
	d := c.d
	if err := d.checkDelivered(&a); err != nil {
		return err
	}
	if err := d.waitForRoom(ctx, len(a.Rejects)+len(a.Nacks) > 0); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	c.clientResponded()
	c.answered(&a)
	var settled []uint64
	held := &settled
	if !d.order.tracks() {
		held = nil
	}
	for _, r := range a.Acks {
		d.pending.ack(r, c.drop(r, held) < r.Last-r.First+1)
	}
	d.order.settled(settled)
	c.nack(&a)
	if len(a.Rejects) > 0 {
		c.reject(a.Rejects)
	}
	if len(a.Releases) > 0 {
		var released []uint64
		for _, r := range a.Releases {
			c.drop(r, &released)
		}
		d.requeue(released)
	}
	if a.Confirm != 0 {
		c.requestedConfirm = max(c.requestedConfirm, a.Confirm)
		d.pending.confirms = append(d.pending.confirms, confirmation{consumer: c, number: a.Confirm})
	}
	signal(d.work)
	signal(d.wake)
	return nil
}

func (c *Consumer) nack(a *Outcomes) {
	p := &c.d.pending
	before := len(p.releases)
	for _, r := range a.Nacks {
		c.drop(r, &p.releases)
	}
	if a.NackDelay == nil {
		return
	}
	for _, sequence := range p.releases[before:] {
		if p.delays == nil {
			p.delays = make(map[uint64]time.Duration)
		}
		p.delays[sequence] = *a.NackDelay
	}
}

func (c *Consumer) reject(ranges []Range) {
	var held []uint64
	for _, r := range ranges {
		c.drop(r, &held)
	}
	c.d.pending.deadLetter(held, txn.DeadRejected, c)
	c.d.order.settled(held)
}

// Detach marks the messages of the consumer as not delivered, except those in seen. The consumer receives no further
// messages, and Next returns ErrFinished as after Finish. The caller must then call Close, which requeues the
// messages.
func (c *Consumer) Detach(seen []Range) {
	seen = merged(seen)
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	c.finishing = true
	for sequence := range c.inFlight {
		i := sort.Search(len(seen), func(i int) bool { return seen[i].Last >= sequence })
		if i == len(seen) || sequence < seen[i].First {
			c.inFlight[sequence] = 0
		}
	}
	c.outbox, c.outboxBytes = nil, 0
	c.updateCount(1)
	signal(c.notify)
}

// Finish records that the client sends no further requests. The consumer receives no further messages, and its unsent
// messages are requeued. Next returns ErrFinished when it has returned all requested confirmations.
func (c *Consumer) Finish() {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	c.finishing = true
	c.requeueUnsent()
	signal(c.notify)
}

// requeueUnsent requeues the messages in the outbox. The caller must hold d.mu.
func (c *Consumer) requeueUnsent() { c.d.requeue(c.takeUnsent()) }

// takeUnsent empties the outbox. It returns the sequences of those messages that have no outcome. The caller must
// hold d.mu.
func (c *Consumer) takeUnsent() (unsent []uint64) {
	for _, m := range c.outbox {
		if _, still := c.inFlight[m.Sequence]; still {
			c.removeInFlight(m.Sequence, false)
			unsent = append(unsent, m.Sequence)
		}
	}
	c.outbox, c.outboxBytes = nil, 0
	c.updateCount(1)
	return unsent
}

// Fail ends the consumer with an error, which Next returns. It has no effect if the consumer has ended with an error
// before.
func (c *Consumer) Fail(err error) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	signal(c.notify)
}

// Next waits for the next event. After Finish or Detach, it returns the requested confirmations and then ErrFinished.
// If the consumer was ended otherwise, it returns the reason. If ctx ends, it returns the error of ctx.
func (c *Consumer) Next(ctx context.Context) (Event, error) {
	for {
		event, err := c.take()
		if err != nil || !event.empty() {
			return event, err
		}
		select {
		case <-ctx.Done():
			return Event{}, fmt.Errorf("wait for messages: %w", ctx.Err())
		case <-c.notify:
		}
	}
}

// Close detaches the consumer and requeues its messages in flight.
func (c *Consumer) Close() { c.d.detach(c) }

func (c *Consumer) take() (Event, error) {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.err != nil {
		return Event{}, c.err
	}
	var event Event
	event.PendingRejects, c.pendingRejects = c.pendingRejects, nil
	event.Moved, c.moved = c.moved, nil
	c.takeDeadlines(&event)
	if c.confirmed > c.reportedConfirm {
		event.Confirmed, c.reportedConfirm = c.confirmed, c.confirmed
	}
	if c.finishing && event.Confirmed == 0 && len(event.PendingRejects)+len(event.Refused) == 0 &&
		c.reportedConfirm >= c.requestedConfirm {
		return Event{}, ErrFinished
	}
	if d.paused { // INV-2: a blocked node delivers no messages
		return event, nil
	}
	if c.deadlines.stalled {
		c.deadlines.stalled = false
		d.resumed()
	}
	event.Messages = c.takeOutbox()
	c.takeDrained(&event)
	return event, nil
}

func (c *Consumer) takeOutbox() []Message {
	d := c.d
	bytes, taken, kept, now := 0, 0, 0, int64(0)
	most := d.registry.batchBytes()
	var overdue []uint64
	var sent moment
	if len(c.outbox) > 0 {
		sent = d.registry.elapsed()
	}
	for _, m := range c.outbox {
		if taken > 0 && bytes+len(m.Record) > most {
			break
		}
		taken++
		c.outboxBytes -= len(m.Record)
		if _, still := c.inFlight[m.Sequence]; !still {
			continue // another client has settled the message
		}
		if d.expired(&m, &now) {
			overdue = append(overdue, m.Sequence)
			continue
		}
		c.inFlight[m.Sequence] = sent
		c.deadlines.late.remove(m.Sequence)
		bytes += len(m.Record)
		c.outbox[kept] = m // reuse the slice, because the removed messages belong to the caller
		kept++
	}
	out := c.outbox[:kept:kept]
	c.outbox = c.outbox[taken:]
	if len(c.outbox) == 0 {
		c.outbox = nil // release the records
	} else {
		signal(c.notify)
	}
	if taken > 0 {
		c.unconfirmedBytes += bytes
		c.updateCount(minOutbox)
		signal(d.wake)
	}
	if len(overdue) > 0 {
		c.addOverdue(overdue)
	}
	if kept > 0 {
		d.delivered += uint64(kept)
		d.registry.counters.Delivered.Add(uint64(kept))
		d.registry.counters.DeliveredBytes.Add(uint64(bytes))
	}
	if taken > 0 {
		c.startDeadlines(sent)
	}
	return out
}

func (c *Consumer) capacity() int {
	r := c.d.registry
	if c.finishing || c.err != nil || c.idle() || c.outboxBytes >= r.outboxBytes() {
		return 0
	}
	return max(0, min(c.credit, r.limits.Load().Outstanding-len(c.inFlight)))
}

func (c *Consumer) deliver(m Message, more int) {
	c.credit--
	c.inFlight[m.Sequence] = 0
	if c.outbox == nil {
		c.outbox = make([]Message, 0, 1+more) // avoid growing the slice in steps
		c.startOutbox()
	}
	c.outbox = append(c.outbox, m)
	c.outboxBytes += len(m.Record)
	c.updateCount(minOutbox)
	signal(c.notify)
}

// drop removes the messages in r from the consumer and returns their number. If held is not nil, drop appends
// their sequences to it.
func (c *Consumer) drop(r Range, held *[]uint64) (n uint64) {
	inRange(c.inFlight, r, func(sequence uint64, sent moment) {
		n++
		if held != nil {
			*held = append(*held, sequence)
		}
		c.removeInFlight(sequence, sent != 0)
	})
	return n
}

func (c *Consumer) removeInFlight(sequence uint64, sent bool) {
	delete(c.inFlight, sequence)
	if c.deadlines.extended != nil {
		delete(c.deadlines.extended, sequence)
	}
	if !sent {
		c.credit++
	}
	if c.d.division.successor != nil && len(c.inFlight) == 0 {
		signal(c.d.wake) // for handOver
	}
}
