// SPDX-License-Identifier: Apache-2.0

package dispatch

import "slices"

// Due tells that messages have become deliverable because their time has come. It must be called once for each of them,
// after they can be read.
func (r *Registry) Due(queue uint64, sequences []uint64) {
	for _, d := range r.ofQueue(queue) {
		d.due(sequences)
	}
}

// Expired tells that messages were acknowledged for all subscriptions of a queue because their time is over.
func (r *Registry) Expired(queue uint64, expired []Range) {
	for _, d := range r.ofQueue(queue) {
		d.settled(expired, nil)
	}
}

// Held returns those of the sequences that must not be dead-lettered at present: a consumer of some subscription of the
// queue was sent them and has not answered, or its answer is not committed yet, or they do not match the filter of a
// subscription and are about to be acknowledged for it.
func (r *Registry) Held(queue uint64, sequences []uint64) (held []uint64) {
	for _, d := range r.ofQueue(queue) {
		d.mu.Lock()
		held = append(held, d.sentOf(sequences)...)
		held = append(held, d.answeredOf(sequences)...)
		d.mu.Unlock()
	}
	return held
}

// sentOf returns those of the sequences that a consumer was sent and has not answered. The dispatcher's lock is held.
func (d *dispatcher) sentOf(sequences []uint64) (sent []uint64) {
	for _, c := range d.consumers {
		for _, sequence := range sequences {
			if c.inFlight[sequence] {
				sent = append(sent, sequence)
			}
		}
	}
	return sent
}

// answeredOf returns those of the sequences that were answered and whose answers are not committed. The dispatcher's
// lock is held.
func (d *dispatcher) answeredOf(sequences []uint64) []uint64 {
	open := make(map[uint64]bool, len(sequences))
	for _, sequence := range d.unanswered(slices.Clone(sequences)) {
		open[sequence] = true
	}
	return slices.DeleteFunc(slices.Clone(sequences), func(sequence uint64) bool { return open[sequence] })
}

// unanswered removes from sequences those whose answers are not committed yet. The dispatcher's lock is held.
func (d *dispatcher) unanswered(sequences []uint64) []uint64 {
	return d.skipped.without(d.pending.without(d.committing.without(sequences)))
}

// ofQueue gives the dispatchers of a queue's subscriptions.
func (r *Registry) ofQueue(queue uint64) (list []*dispatcher) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, d := range r.byKey {
		if key.Queue == queue {
			list = append(list, d)
		}
	}
	return list
}

// due has messages delivered that reading has passed. While a read is going on, it is not known whether it has; endDue
// looks again.
func (d *dispatcher) due(sequences []uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped != nil {
		return
	}
	if d.reading {
		d.dueInRead = append(d.dueInRead, sequences...)
		return
	}
	d.giveDue(sequences)
}

// giveDue has those of the messages delivered that reading has passed; it finds the others. A read may have found some
// already, between the moment in which they could be read and this call: what a consumer has stays with it, what waits
// for one waits once, and what a consumer has answered goes the way of its answer. The dispatcher's lock is held.
func (d *dispatcher) giveDue(sequences []uint64) {
	passed := slices.DeleteFunc(slices.Clone(sequences), func(sequence uint64) bool {
		_, later := d.later.at[sequence]
		return later || !d.order.passed(sequence) || d.damaged.has(sequence) || d.overdue.has(sequence) ||
			slices.ContainsFunc(d.consumers, func(c *Consumer) bool {
				_, has := c.inFlight[sequence]
				return has
			})
	})
	passed = d.pending.without(d.committing.without(passed))
	d.order.unread(asRanges(passed))
	d.giveBack(passed)
}

// wasRead takes note of what a read has found of the messages that became deliverable meanwhile. What becomes
// deliverable from now on it has not found.
func (d *dispatcher) wasRead(messages []Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.dueInRead) == 0 {
		return
	}
	found := make(map[uint64]bool, len(messages))
	for i := range messages {
		found[messages[i].Sequence] = true
	}
	d.dueInRead = slices.DeleteFunc(d.dueInRead, func(sequence uint64) bool { return found[sequence] })
}

// endDue has messages delivered that became deliverable during a read that has passed them. The dispatcher's lock is
// held.
func (d *dispatcher) endDue() {
	if len(d.dueInRead) > 0 {
		d.giveDue(d.dueInRead)
		d.dueInRead = nil
	}
}
