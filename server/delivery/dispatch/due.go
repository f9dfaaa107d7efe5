// SPDX-License-Identifier: Apache-2.0

package dispatch

import "slices"

// Due notifies the dispatchers of a queue that delayed messages have become deliverable. It must be called once for
// each message, after the message can be read.
func (r *Registry) Due(queue uint64, sequences []uint64) {
	for _, d := range r.ofQueue(queue) {
		d.due(sequences)
	}
}

// Acknowledged removes messages from the consumers of a queue. It must be called after another transaction that
// acknowledges the messages for all subscriptions is applied.
func (r *Registry) Acknowledged(queue uint64, acks []Range) {
	for _, d := range r.ofQueue(queue) {
		d.settled(acks, nil)
	}
}

// InFlight returns those of the sequences that must not be dead-lettered now. These messages were sent to a consumer of
// any subscription of the queue, have an uncommitted outcome, or will be acknowledged because they do not match a
// filter.
func (r *Registry) InFlight(queue uint64, sequences []uint64) (held []uint64) {
	for _, d := range r.ofQueue(queue) {
		d.mu.Lock()
		held = append(held, d.inFlight(sequences)...)
		held = append(held, d.answered(sequences)...)
		d.mu.Unlock()
	}
	return held
}

func (d *dispatcher) inFlight(sequences []uint64) (sent []uint64) {
	for _, c := range d.consumers {
		for _, sequence := range sequences {
			if c.inFlight[sequence] != 0 {
				sent = append(sent, sequence)
			}
		}
	}
	return sent
}

// answered returns those of the sequences that have an uncommitted outcome.
func (d *dispatcher) answered(sequences []uint64) []uint64 {
	open := make(map[uint64]bool, len(sequences))
	for _, sequence := range d.unanswered(slices.Clone(sequences)) {
		open[sequence] = true
	}
	return slices.DeleteFunc(slices.Clone(sequences), func(sequence uint64) bool { return open[sequence] })
}

// unanswered removes, in place, the sequences that have an uncommitted outcome. It returns the remaining sequences.
func (d *dispatcher) unanswered(sequences []uint64) []uint64 {
	return d.skipped.without(d.pending.without(d.committing.without(sequences)))
}

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

// due requeues the given messages if the read position has passed them. During a read, the position is unknown, so
// endDue requeues them after the read.
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
	d.requeueDue(sequences)
}

// requeueDue requeues the messages that the read position has passed. Later reads return the other messages. If a read
// has already returned a message, and the message is assigned to a consumer, waits for a retry or has an outcome,
// requeueDue ignores it. It removes buffered messages from the buffer before it requeues them.
func (d *dispatcher) requeueDue(sequences []uint64) {
	passed := slices.DeleteFunc(slices.Clone(sequences), func(sequence uint64) bool {
		_, later := d.delayed.at[sequence]
		return later || !d.order.passed(sequence) || d.corrupt.has(sequence) || d.overdue.has(sequence) ||
			d.hasConsumer(sequence)
	})
	passed = d.pending.without(d.committing.without(passed))
	d.order.unread(asRanges(passed))
	d.requeue(passed)
}

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

func (d *dispatcher) endDue() {
	if len(d.dueInRead) > 0 {
		d.requeueDue(d.dueInRead)
		d.dueInRead = nil
	}
}

// EndQueue ends all consumers of a queue with the given reason.
func (r *Registry) EndQueue(queue uint64, reason error) {
	for _, d := range r.ofQueue(queue) {
		r.fail(d, reason)
	}
}
