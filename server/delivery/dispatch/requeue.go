// SPDX-License-Identifier: Apache-2.0

package dispatch

import "slices"

// Return redelivers messages of a subscription that are excluded from delivery. It calls free, which must end the
// exclusion and must not return before that change is applied. Each message is delivered once, even if a concurrent
// read returns it or free returns an error. Return returns the error of free.
func (r *Registry) Return(key Key, ranges []Range, free func() error) error {
	if len(ranges) == 0 {
		return free()
	}
	r.mu.Lock()
	if r.hidden == nil {
		r.hidden = make(map[Key][]Range)
	}
	// A dispatcher that is created during free also needs the ranges.
	r.hidden[key] = append(slices.Clone(r.hidden[key]), ranges...)
	if d := r.byKey[key]; d != nil {
		d.hide(ranges)
	}
	r.mu.Unlock()
	err := free()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hidden[key] = removeEach(r.hidden[key], ranges); len(r.hidden[key]) == 0 {
		delete(r.hidden, key)
	}
	if d := r.byKey[key]; d != nil {
		d.unhide(ranges)
	}
	return err
}

func removeEach(from, ranges []Range) []Range {
	left := make(map[Range]int, len(ranges))
	for _, r := range ranges {
		left[r]++
	}
	return slices.DeleteFunc(from, func(r Range) bool {
		left[r]--
		return left[r] >= 0
	})
}

func (d *dispatcher) hide(ranges []Range) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hidden = append(slices.Clone(d.hidden), ranges...)
	d.remove(ranges)
}

// unhide makes hidden messages deliverable. If a read is in progress, they become deliverable after the read, which
// may have omitted them.
func (d *dispatcher) unhide(ranges []Range) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unhiding = append(d.unhiding, ranges...)
	if !d.reading {
		d.finishUnhiding()
	}
}

// finishUnhiding requeues the unhidden messages that the read position has passed. Later reads return the other
// messages. The caller must hold d.mu, and no read may be in progress.
func (d *dispatcher) finishUnhiding() {
	if len(d.unhiding) == 0 {
		return
	}
	var back []uint64
	for _, r := range merged(d.unhiding) {
		for sequence := r.First; sequence <= r.Last; sequence++ {
			if d.order.passed(sequence) {
				back = append(back, sequence)
			}
		}
	}
	d.hidden = removeEach(d.hidden, d.unhiding)
	d.unhiding = nil
	d.requeue(back)
	d.order.queueChanged() // to read the messages that the read position has not passed
	signal(d.wake)
}
