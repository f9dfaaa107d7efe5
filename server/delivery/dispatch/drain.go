// SPDX-License-Identifier: Apache-2.0

package dispatch

type draining struct {
	number uint64 // number of the request; 0 if none exists
	upTo   uint64 // messages below this sequence were published before the request
	began  bool   // a read has started since the request
	empty  uint16 // bitmap of the lanes that were read to their end since the request
	done   bool
}

// Drain requests an Event with Drained = number. The event is sent when all messages that are now available to the
// consumer are delivered, or when the consumer cannot accept more messages because its credit is used up or too many
// messages are in flight. While the subscription is paused, no messages are available. The remaining credit is revoked.
// A later request replaces an earlier request.
func (c *Consumer) Drain(number uint64) {
	d := c.d
	next, ok := d.registry.source.NextSequence(d.key.Queue)
	if !ok {
		next = ^uint64(0) // the queue is being deleted
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	c.drain = draining{number: number, upTo: next}
	d.drains = true
	c.clientResponded()
	signal(d.wake)
}

// beginDrains makes the order read from its position again. The caller must hold d.mu, and no read may be in
// progress.
func (d *dispatcher) beginDrains() {
	if !d.drains {
		return
	}
	d.drains = false
	d.order.queueChanged()
	for _, c := range d.consumers {
		c.drain.began = c.drain.number != 0
	}
}

// answerDrains answers the drains of consumers to which no further message can be delivered. want and again are the
// results of order.demand. The caller must hold d.mu.
func (d *dispatcher) answerDrains(want int, again []uint64) {
	limit := d.registry.limits.Load().Outstanding
	for _, c := range d.consumers {
		if !c.drain.began || c.drain.done {
			continue
		}
		usedUp := c.credit == 0 || len(c.inFlight) >= limit
		if !usedUp && (d.returning || c.outboxBytes >= d.registry.outboxBytes()) {
			continue // more messages may follow
		}
		if usedUp || want == 0 || len(again) == 0 && d.order.passedAll(c) {
			c.drain.done = true
			signal(c.notify)
		}
	}
}

// answerAllDrains answers all drains of a paused subscription. The caller must hold d.mu.
func (d *dispatcher) answerAllDrains() {
	for _, c := range d.consumers {
		if c.drain.number != 0 && !c.drain.done {
			c.drain.done = true
			signal(c.notify)
		}
	}
}

func (c *Consumer) takeDrained(e *Event) {
	if !c.drain.done || len(c.outbox) > 0 {
		return
	}
	e.Drained, e.DrainedCredit = c.drain.number, uint32(c.credit)
	c.credit, c.drain = 0, draining{}
}

func (f *fifo) passedAll(c *Consumer) bool {
	return f.d.next >= c.drain.upTo && f.redeliver.len() == 0 && len(f.ready) == 0
}

func (s *selective) passedAll(c *Consumer) bool {
	if len(s.ready) > 0 || s.lanes == nil && s.d.next < c.drain.upTo {
		return false
	}
	for lane := range s.redeliver {
		if s.lanes != nil && c.drain.empty>>lane&1 == 0 && s.lanes.Next[lane] < c.drain.upTo {
			return false
		}
		if s.redeliver[lane].len() > 0 || s.deferred[lane].hasFrom(c.deferred[lane]) {
			return false
		}
	}
	return true
}

func (s *selective) sawEmpty(bits uint16) {
	for _, c := range s.d.consumers {
		if c.drain.began {
			c.drain.empty |= bits
		}
	}
}

func (s *deferredSet) hasFrom(from uint64) bool {
	for i := s.at(from >> deferredBits); i < len(s.chunks); i++ {
		c := s.chunks[i]
		if c.number > from>>deferredBits && c.n > 0 {
			return true
		}
		first := int(from >> 6 & (1<<deferredBits/64 - 1))
		for w := first; w < len(c.words) && c.number == from>>deferredBits; w++ {
			word := c.words[w]
			if w == first {
				word &= ^uint64(0) << (from & 63)
			}
			if word != 0 {
				return true
			}
		}
	}
	return false
}
