// SPDX-License-Identifier: Apache-2.0

package dispatch

import "slices"

// Withdraw calls commit to remove messages from a subscription. It passes those of the given sequences that have
// neither a consumer nor an uncommitted outcome. commit must return the sequences that it has removed. Deliveries of
// the subscription pause during the call.
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

// Seek calls commit to move a subscription, and blocks its deliveries and settlements until commit returns. If commit
// returns nil, the consumers of the subscription end with ErrMoved. If commit returns an error, they end with
// ErrClosed: clients must attach again and retry unconfirmed outcomes. commit must not return before the outcome is
// certain or the registry is about to be closed. If the registry is closed, Seek returns the reason and does not call
// commit.
func (r *Registry) Seek(key Key, commit func() error) error {
	r.mu.Lock()
	if r.closed != nil {
		r.mu.Unlock()
		return r.closed
	}
	d := r.byKey[key]
	delete(r.byKey, key)
	if d != nil {
		r.countDetached(d)
	}
	r.moving[key]++
	r.mu.Unlock()
	if d != nil {
		d.cancel()
		d.running.Wait() // its last batch is now in the log, or will never be
	}
	err := commit()
	if d != nil && err == nil {
		d.stop(ErrMoved)
	} else if d != nil {
		d.stop(ErrClosed)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.moving[key]--; r.moving[key] == 0 {
		delete(r.moving, key)
	}
	return err
}
