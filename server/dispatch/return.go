// SPDX-License-Identifier: Apache-2.0

package dispatch

import "slices"

// Return has messages of a subscription delivered that were held by no consumer, but were out of delivery: free makes
// that so, and returns when it is applied. They go out once, whether they were read meanwhile or not. The error is that
// of free; the messages are looked at again all the same.
func (r *Registry) Return(key Key, ranges []Range, free func() error) error {
	if len(ranges) == 0 {
		return free()
	}
	r.mu.Lock()
	if r.withheld == nil {
		r.withheld = make(map[Key][]Range)
	}
	// Also for a dispatcher that is made meanwhile: what it reads may be from before or after free.
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

// withhold drops messages from all that is read until letOut is called for them.
func (d *dispatcher) withhold(ranges []Range) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.withheld = append(slices.Clone(d.withheld), ranges...)
	d.forget(ranges)
}

// letOut has withheld messages delivered: now, or when the read has ended that may have left them out.
func (d *dispatcher) letOut(ranges []Range) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lettingOut = append(d.lettingOut, ranges...)
	if !d.reading {
		d.endWithholding()
	}
}

// endWithholding gives back what was read past. The rest will be read. The dispatcher's lock is held, and no read is
// going on.
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
	d.order.news() // what is not read past yet
	signal(d.wake)
}
