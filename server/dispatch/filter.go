// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"time"
)

const (
	// filterReadMessages is how many messages are read at once at least for a subscription with a filter, of which most
	// may not match.
	filterReadMessages = 1024
	// skippedMost is how many ranges of messages that do not match gather before they are acknowledged.
	skippedMost = 1024
	// skippedDelay is how long they gather at most: one transaction for each of them would cost more than to deliver
	// it.
	skippedDelay = 200 * time.Millisecond
)

// skipped are messages that do not match the subscription's filter, and are not acknowledged yet. Guarded by
// dispatcher.mu.
type skipped struct {
	settlement // of which only acks are used

	timed bool // a timer is set
}

// setFilter makes the dispatcher of a subscription with a filter, or follows one that was altered. The caller starts it
// afterwards, or is its delivering goroutine.
func (d *dispatcher) setFilter() error {
	d.filters = d.registry.source.Filters() // before the filter: one that is altered in between is looked at again
	matches, err := d.registry.source.Filter(d.key)
	if err != nil {
		return fmt.Errorf("filter of the subscription: %w", err)
	}
	d.matches = matches
	return nil
}

// match divides what was read into what matches the subscription's filter and the ranges of what does not, by the
// filter as it is now: the messages were read before. The dispatcher's lock is not held: an expression takes its time.
func (d *dispatcher) match(messages []Message) (matching []Message, others []Range, err error) {
	if d.filters != d.registry.source.Filters() {
		if err := d.setFilter(); err != nil {
			return nil, nil, err
		}
	}
	if d.matches == nil {
		return messages, nil, nil
	}
	kept := 0
	for _, m := range messages {
		if m.Record == nil || d.matches(m.Record) { // a damaged one is looked at when it can be read
			messages[kept] = m
			kept++
			continue
		}
		if n := len(others); n > 0 && others[n-1].Last+1 == m.Sequence {
			others[n-1].Last = m.Sequence
		} else {
			others = append(others, Range{First: m.Sequence, Last: m.Sequence})
		}
	}
	d.others += len(messages) - kept
	clear(messages[kept:]) // let go of the records
	return messages[:kept], others, nil
}

// skip has messages acknowledged that do not match, within a moment and many at a time. The dispatcher's lock is held.
func (d *dispatcher) skip(others []Range) {
	if len(others) == 0 {
		return
	}
	for _, r := range others {
		d.skipped.ack(r, false)
		d.registry.counters.Filtered.Add(r.Last - r.First + 1)
	}
	switch {
	case len(d.skipped.acks) >= skippedMost:
		d.settleSkipped()
	case !d.skipped.timed:
		d.skipped.timed = true
		time.AfterFunc(skippedDelay, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.skipped.timed = false
			d.settleSkipped()
		})
	}
}

// settleSkipped hands over what was skipped. The dispatcher's lock is held.
func (d *dispatcher) settleSkipped() {
	if len(d.skipped.acks) == 0 || d.stopped != nil {
		return
	}
	for _, r := range d.skipped.acks {
		d.pending.ack(r, false)
	}
	d.skipped.acks = nil
	signal(d.work)
}
