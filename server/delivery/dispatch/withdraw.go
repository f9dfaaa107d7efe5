// SPDX-License-Identifier: Apache-2.0

package dispatch

import "slices"

// Withdraw calls commit to remove messages from a subscription, with those sequences that are not in flight and not
// answered. commit returns those that it removed. Deliveries from the subscription pause until then, so that no message
// is both acknowledged and removed.
func (r *Registry) Withdraw(key Key, sequences []uint64, commit func(free []uint64) (taken []uint64, err error)) error {
	taken, err := commit(r.hold(key, sequences))
	if err == nil {
		r.Settled(key, asRanges(taken), nil)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holding[key]--; r.holding[key] == 0 {
		delete(r.holding, key)
	}
	if d := r.byKey[key]; d != nil {
		d.setHolding(r.holding[key])
	}
	return err
}

func (r *Registry) hold(key Key, sequences []uint64) (free []uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holding == nil {
		r.holding = make(map[Key]int)
	}
	r.holding[key]++
	d := r.byKey[key]
	if d == nil {
		return sequences
	}
	d.setHolding(r.holding[key])
	return d.free(sequences)
}

func (d *dispatcher) setHolding(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.holding = n
	if n == 0 {
		signal(d.wake)
	}
}

func (d *dispatcher) free(sequences []uint64) []uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(d.unanswered(slices.Clone(sequences)), d.hasConsumer)
}

// hasConsumer reports whether a message is assigned to a consumer.
func (d *dispatcher) hasConsumer(sequence uint64) bool {
	return slices.ContainsFunc(d.consumers, func(c *Consumer) bool {
		_, has := c.inFlight[sequence]
		return has
	})
}
