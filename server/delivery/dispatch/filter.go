// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"time"
)

const (
	filterReadMessages = 1024
	// skippedMost limits the number of ranges of filtered messages that are acknowledged in one transaction.
	// skippedDelay limits the time for which they are collected.
	skippedMost  = 1024
	skippedDelay = 200 * time.Millisecond
)

type skipped struct {
	settlement // only acks is used

	timed bool // a timer is set
}

func (d *dispatcher) setFilter() error {
	d.filters = d.registry.source.Filters() // read before the filter, so that a concurrent change is detected
	matches, err := d.registry.source.Filter(d.key)
	if err != nil {
		return fmt.Errorf("filter of the subscription: %w", err)
	}
	d.matches = matches
	return nil
}

// match splits a read result into the messages that match the current filter, and the ranges of the other messages.
// d.mu must not be held.
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
		if m.Record == nil || d.matches(m.Record) { // a corrupt message is matched when it is readable
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
	clear(messages[kept:]) // release the records
	return messages[:kept], others, nil
}

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
