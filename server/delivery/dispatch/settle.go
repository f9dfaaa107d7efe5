// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"
	"time"
)

const (
	// maxPendingRanges limits the number of outcomes that are collected while a transaction is committed.
	maxPendingRanges = 1 << 15
	// maxSettleItems limits the number of acknowledged ranges, and the number of releases, in one transaction. It is
	// half of txn.MaxRanges.
	maxSettleItems = 1 << 15
)

type settlement struct {
	acks     []Range
	foreign  []Range  // acknowledged by a consumer at which they were not in flight
	releases []uint64 // messages that have no consumer until the release is committed
	unsent   []uint64 // unsent messages of a lost or silent consumer that has releases; requeued together with them
	// delays contains the requested delays of releases. The other releases use the redelivery delay of the subscription.
	delays   map[uint64]time.Duration
	returns  bool          // some of the releases belong to a lost or silent consumer
	dead     []pendingDead // messages that have no consumer until they are moved
	confirms []confirmation
}

type confirmation struct {
	consumer *Consumer
	number   uint64
}

func (s *settlement) empty() bool {
	return len(s.acks) == 0 && len(s.releases) == 0 && len(s.dead) == 0 && len(s.confirms) == 0
}

// full reports whether the limit of outcomes is reached. Dead messages can be pending for a long time. They count
// only if kills is set, which means that the outcomes to be added can include dead messages.
func (s *settlement) full(kills bool) bool {
	n := len(s.acks) + len(s.releases) + len(s.confirms)
	if kills {
		n += len(s.dead)
	}
	return n >= maxPendingRanges
}

func (s *settlement) ack(r Range, foreign bool) {
	if foreign {
		s.foreign = append(s.foreign, r)
	}
	if n := len(s.acks); n > 0 && s.acks[n-1].Last+1 == r.First {
		s.acks[n-1].Last = r.Last
		return
	}
	s.acks = append(s.acks, r)
}

// without removes, in place, the sequences that have an outcome in s. It returns the remaining sequences.
func (s *settlement) without(sequences []uint64) []uint64 {
	if len(sequences) == 0 || s.empty() {
		return sequences
	}
	slices.Sort(sequences)
	settled := make([]bool, len(sequences))
	mark := func(first, last uint64) {
		for i, _ := slices.BinarySearch(sequences, first); i < len(sequences) && sequences[i] <= last; i++ {
			settled[i] = true
		}
	}
	for _, r := range s.acks {
		mark(r.First, r.Last)
	}
	for _, sequence := range s.releases {
		mark(sequence, sequence)
	}
	for _, m := range s.dead {
		mark(m.sequence, m.sequence)
	}
	for _, sequence := range s.unsent {
		mark(sequence, sequence)
	}
	kept := sequences[:0]
	for i, sequence := range sequences {
		if !settled[i] {
			kept = append(kept, sequence)
		}
	}
	return kept
}

func (d *dispatcher) checkDelivered(a *Outcomes) error {
	highest := uint64(0)
	for _, ranges := range [...][]Range{a.Acks, a.Nacks, a.Rejects, a.Releases} {
		for _, r := range ranges {
			highest = max(highest, r.Last)
		}
	}
	d.mu.Lock()
	known := highest < d.next
	d.mu.Unlock()
	if known {
		return nil
	}
	// This dispatcher has not read the message, but an earlier active may have delivered it.
	if next, ok := d.registry.source.NextSequence(d.key.Queue); ok && highest >= next {
		return fmt.Errorf("%w: %d; last sequence of the queue is %d", ErrNotDelivered, highest, next-1)
	}
	return nil
}

func (d *dispatcher) waitForRoom(ctx context.Context, kills bool) error {
	for {
		d.mu.Lock()
		room, full, stopped := d.room, d.pending.full(kills), d.stopped
		d.mu.Unlock()
		if stopped != nil {
			return stopped
		}
		if !full {
			return nil
		}
		select {
		case <-room:
		case <-ctx.Done():
			return fmt.Errorf("wait for earlier acknowledgements: %w", ctx.Err())
		}
	}
}

// settle is the goroutine that commits outcomes. Each transaction contains the outcomes that were collected during
// the previous commit, if they fit. After each commit, settle moves the dead messages.
func (d *dispatcher) settle(ctx context.Context) {
	for {
		batch, idle := d.takePending()
		if idle {
			d.registry.retire(d)
		}
		if batch.empty() {
			select {
			case <-ctx.Done():
				return
			case <-d.work:
			}
			continue
		}
		err := d.commit(ctx, &batch)
		if err == nil {
			err = d.moveDead(ctx, &batch)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			d.registry.fail(d, err)
			return
		}
		d.committed(&batch)
	}
}

func (d *dispatcher) takePending() (batch settlement, idle bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.pending.empty() || len(d.consumers) == 0 {
		d.settleSkipped() // in the same transaction, this adds little cost
	}
	batch = d.pending
	d.pending = settlement{}
	if d.deadWait {
		d.postponeDead(&batch)
	}
	// This is a copy for other goroutines: the commit of the batch modifies its lists.
	d.committing = settlement{
		acks: batch.acks, releases: slices.Clone(batch.releases), dead: slices.Clone(batch.dead),
		unsent: batch.unsent,
	}
	if !batch.empty() {
		close(d.room)
		d.room = make(chan struct{})
	}
	return batch, batch.empty() && d.pending.empty() && len(d.consumers) == 0
}

func (d *dispatcher) commit(ctx context.Context, batch *settlement) error {
	acks, releases := merged(batch.acks), batch.releases
	for len(acks) > 0 || len(releases) > 0 {
		a, r := min(len(acks), maxSettleItems), min(len(releases), maxSettleItems)
		if err := d.registry.settler.Settle(ctx, d.key, acks[:a], asRanges(releases[:r])); err != nil {
			return err
		}
		acks, releases = acks[a:], releases[r:]
	}
	d.deadLetterExhausted(batch)
	return nil
}

func (d *dispatcher) committed(batch *settlement) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped != nil {
		return
	}
	d.committing = settlement{}
	d.remove(merged(batch.foreign))
	d.requeue(batch.unsent)
	d.requeueDelayed(batch.releases, batch.delays)
	if batch.returns {
		d.returning = d.pending.returns
		signal(d.wake)
	}
	if d.division.successor != nil {
		signal(d.wake) // for handOver
	}
	for _, c := range batch.confirms {
		c.consumer.confirmed = max(c.consumer.confirmed, c.number)
		signal(c.consumer.notify)
	}
}

func merged(ranges []Range) []Range {
	if len(ranges) < 2 {
		return ranges
	}
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	out := sorted[:1]
	for _, r := range sorted[1:] {
		if last := &out[len(out)-1]; r.First <= last.Last || r.First == last.Last+1 {
			last.Last = max(last.Last, r.Last)
		} else {
			out = append(out, r)
		}
	}
	return out
}

func asRanges(sequences []uint64) []Range {
	ranges := make([]Range, 0, len(sequences))
	for _, s := range sequences {
		ranges = append(ranges, Range{First: s, Last: s})
	}
	return merged(ranges)
}

func withoutRanges(messages []Message, ranges []Range) []Message {
	if len(messages) == 0 || len(ranges) == 0 {
		return messages
	}
	sorted := merged(ranges)
	return slices.DeleteFunc(messages, func(m Message) bool {
		i := sort.Search(len(sorted), func(i int) bool { return sorted[i].Last >= m.Sequence })
		return i < len(sorted) && sorted[i].First <= m.Sequence
	})
}
