// SPDX-License-Identifier: Apache-2.0

package client

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// era is a period without an unplanned promotion of another site, without a change of the owner, and without a new pair
// at the same addresses. In a later era, the sequence of a delivery may belong to a different message, and the queue
// may have a different ID.
type era struct {
	number  uint32
	lineage string // lineage of the last target; empty without sites
	epoch   uint64 // epoch of the last target
	pairID  string // pair of the last target
}

// endsAt reports whether the target belongs to a later era.
func (e *era) endsAt(t *target) bool {
	other := t.lineage != "" && e.lineage != "" && t.lineage != e.lineage
	if t.lineage == "" && e.lineage == "" { // both pairs of a lineage have the same messages
		other = t.pairID != "" && e.pairID != "" && t.pairID != e.pairID
	}
	return t.lossy > e.epoch || other
}

// enter makes t the last target. If it belongs to a later era than the previous one, enter discards all deliveries. mu
// is held.
func (co *Consumer) enter(t *target) {
	if co.era.endsAt(t) {
		co.endEraLocked()
	}
	if t.lineage != "" {
		co.era.lineage, co.era.epoch = t.lineage, t.epoch
	}
	co.era.pairID = cmp.Or(t.pairID, co.era.pairID)
}

// endEra starts a new era and discards all deliveries. It is called when a node reports a later era than the target,
// which was determined from an outdated status.
func (co *Consumer) endEra() {
	co.mu.Lock()
	defer co.mu.Unlock()
	co.endEraLocked()
}

func (co *Consumer) endEraLocked() {
	co.era.number++
	co.queueID = 0
	for _, h := range co.held {
		if h.acked {
			co.lost++
		}
		if h.delivery != nil {
			h.delivery.lost = true
		}
	}
	co.forgetLocked()
}

// siteEpoch returns the lowest site epoch among the consumers of the deliveries; 0 without sites.
func siteEpoch(ds []*Delivery) uint64 {
	lowest := uint64(math.MaxUint64)
	for _, d := range ds {
		d.consumer.mu.Lock()
		lowest = min(lowest, d.consumer.era.epoch)
		d.consumer.mu.Unlock()
	}
	return lowest
}

// holding returns the entry of co.held for the message of a delivery. The entry may belong to a later delivery of
// the same message. ok is false if there is no entry, or if the delivery belongs to an earlier era. mu is held.
func (co *Consumer) holding(d *Delivery) (holding, bool) {
	if d.era != co.era.number {
		return holding{}, false
	}
	h, ok := co.held[d.Sequence]
	return h, ok
}

// check returns the check of the deliveries of the transaction, or nil if it has none.
func (t *Txn) check() func(*target) error {
	if len(t.acked)+len(t.released) == 0 {
		return nil
	}
	return t.outdated
}

// outdated returns an error if the transaction contains a delivery of an earlier era than the current era of its
// consumer. If the target is not nil, it also returns an error if the target belongs to a later era.
func (t *Txn) outdated(to *target) error {
	for _, d := range slices.Concat(t.acked, t.released) {
		if err := d.consumer.outdated(d, to); err != nil {
			return err
		}
	}
	return nil
}

func (co *Consumer) outdated(d *Delivery, to *target) error {
	co.mu.Lock()
	defer co.mu.Unlock()
	if d.era == co.era.number && (to == nil || !co.era.endsAt(to)) {
		return nil
	}
	return co.errOutdated(d.Sequence)
}

// errOutdated returns the error for a delivery of an earlier era. mu is held.
func (co *Consumer) errOutdated(sequence uint64) error {
	return fmt.Errorf("%w: another site was promoted, or the queue has another owner, since the delivery of "+
		"sequence %d of %s, which may have been lost; if not, it is redelivered", ErrInvalid, sequence, co.queue)
}

func (co *Consumer) errLostAcks(n int) error {
	return fmt.Errorf("%w: another site was promoted, or the queue has another owner, before %d acks on %s were "+
		"confirmed; %w",
		ErrOutcomeLost, n, co.queue, ErrOutcomeUnknown)
}
