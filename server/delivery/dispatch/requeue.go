// SPDX-License-Identifier: Apache-2.0

package dispatch

import "slices"

// Return redelivers messages of a subscription that had no consumer and were excluded from delivery. free ends the
// exclusion and returns when that is applied. The messages are delivered once, whether or not they were read in the
// meantime. Return returns the error of free, and requeues the messages in any case.
func (r *Registry) Return(key Key, ranges []Range, free func() error) error {
	if len(ranges) == 0 {
		return free()
	}
	r.mu.Lock()
	if r.withheld == nil {
		r.withheld = make(map[Key][]Range)
	}
	// Also for a dispatcher created in the meantime: its reads may precede or follow free.
	r.withheld[key] = append(slices.Clone(r.withheld[key]), ranges...)
	if d := r.byKey[key]; d != nil {
		d.withhold(ranges)
	}
	r.mu.Unlock()
	err := free()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.withheld[key] = withoutSame(r.withheld[key], ranges); len(r.withheld[key]) == 0 {
		delete(r.withheld, key)
	}
	if d := r.byKey[key]; d != nil {
		d.letOut(ranges)
	}
	return err
}

// withoutSame removes each of the ranges once.
func withoutSame(from, ranges []Range) []Range {
	left := make(map[Range]int, len(ranges))
	for _, r := range ranges {
		left[r]++
	}
	return slices.DeleteFunc(from, func(r Range) bool {
		left[r]--
		return left[r] >= 0
	})
}

// withhold removes messages from all read results until letOut is called for them.
func (d *dispatcher) withhold(ranges []Range) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.withheld = append(slices.Clone(d.withheld), ranges...)
	d.forget(ranges)
}

// letOut makes withheld messages deliverable: immediately, or at the end of the running read, which may have omitted
// them.
func (d *dispatcher) letOut(ranges []Range) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lettingOut = append(d.lettingOut, ranges...)
	if !d.reading {
		d.endWithholding()
	}
}

// endWithholding requeues the messages behind the read position. The others will be read. The dispatcher's lock is
// held, and no read is in progress.
func (d *dispatcher) endWithholding() {
	if len(d.lettingOut) == 0 {
		return
	}
	var back []uint64
	for _, r := range merged(d.lettingOut) {
		for sequence := r.First; sequence <= r.Last; sequence++ {
			if d.order.passed(sequence) {
				back = append(back, sequence)
			}
		}
	}
	d.withheld = withoutSame(d.withheld, d.lettingOut)
	d.lettingOut = nil
	d.giveBack(back)
	d.order.news() // for messages ahead of the read position
	signal(d.wake)
}
