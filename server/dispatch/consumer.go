// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"fmt"
	"sort"
	"time"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// Consumer is one consumer of a subscription. Next is for one goroutine; everything else may be called by any.
type Consumer struct {
	d      *dispatcher
	notify chan struct{} // to Next

	// Guarded by dispatcher.mu.
	err         error
	credit      int
	outbox      []Message
	outboxBytes int
	unheard     int             // bytes that were handed out since the client said anything
	counted     int             // what the registry knows that the consumer holds, see recount
	inFlight    map[uint64]bool // given and not answered; true once Next has returned it
	asked       uint64          // the highest confirmation asked for
	confirmed   uint64
	told        uint64 // the last `confirmed` that Next has returned
	drain       draining
	finishing   bool
	left        bool
	groups      int           // that are with it
	aside       [lanes]uint64 // by lane, below which it was asked about everything that is set aside
	// hearsWaiting: it understands Event.Waiting. waiting are rejects that it is to be told of.
	// moved are those of them that were moved since.
	hearsWaiting   bool
	waiting, moved []uint64
	// accepts tells whether it wants a message; nil: all of them.
	accepts func(m *Message) bool
	// from says where it comes from. firstSince is since when no other one has been attached for longer; the zero value
	// while one has.
	from       string
	firstSince time.Time
}

// wants tells whether the consumer may be given a message.
func (c *Consumer) wants(m *Message) bool { return c.accepts == nil || c.accepts(m) }

// Event is what a consumer's client has to be sent.
type Event struct {
	// Messages in order of sequence but for redeliveries; in a queue with priorities the higher ones first.
	Messages []Message
	// Confirmed is the highest number whose acks are committed; 0 when there is nothing new.
	Confirmed uint64
	// Drained is the number of the Drain that is answered, after Messages; 0 for none. DrainedCredit is the credit that
	// was taken back.
	Drained       uint64
	DrainedCredit uint32
	// Waiting are messages that the consumer has rejected and that wait, since there is no room in the dead-letter
	// queue: Confirmed does not speak of them. They are moved when there is room; if the active is replaced before, they
	// are delivered again. Only for a consumer for which HearWaiting was called.
	Waiting []uint64
	// Moved are messages of an earlier Waiting that no longer wait.
	Moved []uint64
}

// HearWaiting has Next return Event.Waiting. Without it, a reject that waits holds back all confirmations that were
// asked for after it.
func (c *Consumer) HearWaiting() {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.hearsWaiting = true
}

// AddCredit lets the consumer get n more messages. It returns ErrTooMuchCredit above the limit.
func (c *Consumer) AddCredit(n uint32) error {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	limit := d.registry.limits.Load().Outstanding
	if int(n) > limit || c.credit+int(n) > limit {
		return fmt.Errorf("%w: %d more than the %d there are would exceed limits.outstanding (%d)", ErrTooMuchCredit, n,
			c.credit, limit)
	}
	c.credit += int(n)
	c.heard()
	signal(d.wake)
	return nil
}

// Answers are what a consumer says of messages that it has been given.
type Answers struct {
	// Acks are acknowledged: also messages that are not with this consumer, since they may have been delivered before a
	// failover.
	Acks []Range
	// Nacks are given back, as far as they are with this consumer. They go out again after NackDelay; nil: after the
	// redelivery delay of their queue.
	Nacks     []Range
	NackDelay *time.Duration
	// Rejects are given up, as far as they are with this consumer: moved to the dead-letter queue, or dropped.
	Rejects []Range
	// Releases are given back, as far as they are with this consumer, as if they had not been given to it: they go out
	// again at once, and are not counted as delivered.
	Releases []Range
	// Confirm, if not 0: Next returns it when these answers and all before them are committed.
	Confirm uint64
}

// Settle takes a consumer's answers. It returns at once, or waits while too much waits to be committed.
func (c *Consumer) Settle(ctx context.Context, a Answers) error {
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
	c.heard()
	var answered []uint64
	held := &answered
	if !d.order.tracks() {
		held = nil
	}
	for _, r := range a.Acks {
		d.pending.ack(r, c.drop(r, held) < r.Last-r.First+1)
	}
	d.order.answered(answered)
	c.nack(&a)
	if len(a.Rejects) > 0 {
		c.reject(a.Rejects)
	}
	if len(a.Releases) > 0 {
		var released []uint64
		for _, r := range a.Releases {
			c.drop(r, &released)
		}
		d.giveBack(released)
	}
	if a.Confirm != 0 {
		c.asked = max(c.asked, a.Confirm)
		d.pending.confirms = append(d.pending.confirms, confirmation{consumer: c, number: a.Confirm})
	}
	signal(d.work)
	signal(d.wake)
	return nil
}

// nack gives messages back that the consumer has. The dispatcher's lock is held.
func (c *Consumer) nack(a *Answers) {
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

// reject gives up messages that the consumer has. The dispatcher's lock is held.
func (c *Consumer) reject(ranges []Range) {
	var held []uint64
	for _, r := range ranges {
		c.drop(r, &held)
	}
	c.d.pending.giveUp(held, txn.DeadRejected, c)
	c.d.order.answered(held)
}

// Leave marks all messages of the consumer as not delivered, except those that its client has seen. That includes
// messages in transit to the client. Close requeues them. The consumer gets no further messages. Finish follows.
func (c *Consumer) Leave(seen []Range) {
	seen = merged(seen)
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	c.finishing = true
	for sequence := range c.inFlight {
		i := sort.Search(len(seen), func(i int) bool { return seen[i].Last >= sequence })
		if i == len(seen) || sequence < seen[i].First {
			c.inFlight[sequence] = false
		}
	}
	c.outbox, c.outboxBytes = nil, 0
	c.recount(1)
	signal(c.notify)
}

// Finish tells that the client will send nothing more: it gets no more messages, and Next returns ErrFinished once all
// confirmations that were asked for are told.
func (c *Consumer) Finish() {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	c.finishing = true
	var unsent []uint64
	for _, m := range c.outbox {
		if _, still := c.inFlight[m.Sequence]; still {
			delete(c.inFlight, m.Sequence)
			unsent = append(unsent, m.Sequence)
		}
	}
	c.outbox, c.outboxBytes = nil, 0
	c.recount(1)
	d.giveBack(unsent)
	signal(c.notify)
}

// Fail ends the consumer: Next returns err.
func (c *Consumer) Fail(err error) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	signal(c.notify)
}

// Next waits for something to send. It returns ErrFinished after Finish, the reason when the consumer was ended
// otherwise, and ctx's error.
func (c *Consumer) Next(ctx context.Context) (Event, error) {
	for {
		event, err := c.take()
		if err != nil || event.Confirmed != 0 || event.Drained != 0 || len(event.Messages) > 0 ||
			len(event.Waiting) > 0 || len(event.Moved) > 0 {
			return event, err
		}
		select {
		case <-ctx.Done():
			return Event{}, fmt.Errorf("wait for messages: %w", ctx.Err())
		case <-c.notify:
		}
	}
}

// Close detaches the consumer; what it had not answered is given back at once.
func (c *Consumer) Close() { c.d.detach(c) }

// take collects what can be sent now.
func (c *Consumer) take() (Event, error) {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.err != nil {
		return Event{}, c.err
	}
	var event Event
	event.Waiting, c.waiting = c.waiting, nil
	event.Moved, c.moved = c.moved, nil
	if c.confirmed > c.told {
		event.Confirmed, c.told = c.confirmed, c.confirmed
	}
	if c.finishing && event.Confirmed == 0 && len(event.Waiting) == 0 && c.told >= c.asked {
		return Event{}, ErrFinished
	}
	if d.paused { // INV-2: a blocked node delivers nothing
		return event, nil
	}
	event.Messages = c.takeOutbox()
	c.takeDrained(&event)
	return event, nil
}

// takeOutbox takes out what can be sent together. The dispatcher's lock is held.
func (c *Consumer) takeOutbox() []Message {
	d := c.d
	bytes, taken, kept, now := 0, 0, 0, int64(0)
	most := d.registry.batchBytes()
	var overdue []uint64
	for _, m := range c.outbox {
		if taken > 0 && bytes+len(m.Record) > most {
			break
		}
		taken++
		c.outboxBytes -= len(m.Record)
		if _, still := c.inFlight[m.Sequence]; !still {
			continue // acknowledged from elsewhere while it waited here
		}
		if d.expired(&m, &now) {
			overdue = append(overdue, m.Sequence)
			continue
		}
		c.inFlight[m.Sequence] = true
		bytes += len(m.Record)
		c.outbox[kept] = m // in place: what is taken out belongs to the caller
		kept++
	}
	out := c.outbox[:kept:kept]
	c.outbox = c.outbox[taken:]
	if len(c.outbox) == 0 {
		c.outbox = nil // let go of the records
	} else {
		signal(c.notify)
	}
	if taken > 0 {
		c.unheard += bytes
		c.recount(leastOutbox)
		signal(d.wake)
	}
	if len(overdue) > 0 {
		c.overdueMessages(overdue)
	}
	if kept > 0 {
		d.delivered += uint64(kept)
		d.registry.counters.Delivered.Add(uint64(kept))
		d.registry.counters.DeliveredBytes.Add(uint64(bytes))
	}
	return out
}

// canTake tells how many more messages the consumer can be given. The dispatcher's lock is held.
func (c *Consumer) canTake() int {
	r := c.d.registry
	if c.finishing || c.err != nil || c.outboxBytes >= r.outboxBytes() {
		return 0
	}
	return max(0, min(c.credit, r.limits.Load().Outstanding-len(c.inFlight)))
}

// give puts a message into the consumer's hands; about so many more will follow. The dispatcher's lock is held.
func (c *Consumer) give(m Message, more int) {
	c.credit--
	c.inFlight[m.Sequence] = false
	if c.outbox == nil {
		c.outbox = make([]Message, 0, 1+more) // it would grow step by step
	}
	c.outbox = append(c.outbox, m)
	c.outboxBytes += len(m.Record)
	c.recount(leastOutbox)
	signal(c.notify)
}

// drop takes the sequences of r out of the consumer's hands, appends those that it had to held, unless that is nil, and
// returns their number. It costs the smaller of the range and of what the consumer has. The dispatcher's lock is held.
func (c *Consumer) drop(r Range, held *[]uint64) (n uint64) {
	dropOne := func(sequence uint64, sent bool) {
		n++
		if held != nil {
			*held = append(*held, sequence)
		}
		c.forgetOne(sequence, sent)
	}
	if r.Last-r.First < uint64(len(c.inFlight)) {
		for i := range r.Last - r.First + 1 {
			if sent, had := c.inFlight[r.First+i]; had {
				dropOne(r.First+i, sent)
			}
		}
		return n
	}
	for sequence, sent := range c.inFlight {
		if r.First <= sequence && sequence <= r.Last {
			dropOne(sequence, sent)
		}
	}
	return n
}

// forgetOne gives the credit back for a message that never reached the client.
func (c *Consumer) forgetOne(sequence uint64, sent bool) {
	delete(c.inFlight, sequence)
	if !sent {
		c.credit++
	}
}
