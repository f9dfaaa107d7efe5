// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	deadRetryInterval = time.Second
	maxMoveMessages   = 256
)

type pendingDead struct {
	sequence uint64
	reason   txn.DeadReason
	by       *Consumer // consumer that rejected the message, or nil
	notified bool      // by was notified that the message is pending
}

func (s *settlement) deadLetter(sequences []uint64, reason txn.DeadReason, by *Consumer) {
	for _, sequence := range sequences {
		s.dead = append(s.dead, pendingDead{sequence: sequence, reason: reason, by: by})
	}
}

func (d *dispatcher) maxDeliveries(messages []Message) uint64 {
	for i := range messages {
		if messages[i].DeliveryCount > 0 {
			return d.registry.source.MaxDeliveries(d.key)
		}
	}
	return 0
}

// filterExhausted removes messages that have reached the delivery limit from a read result, and dead-letters them.
func (d *dispatcher) filterExhausted(messages []Message, most uint64) []Message {
	return slices.DeleteFunc(messages, func(m Message) bool {
		dead := uint64(m.DeliveryCount) >= most
		if dead {
			d.pending.deadLetter([]uint64{m.Sequence}, txn.DeadMaxDeliveries, nil)
			signal(d.work)
		}
		return dead
	})
}

func (d *dispatcher) deadLetterExhausted(batch *settlement) {
	if len(batch.releases) == 0 {
		return
	}
	exhausted := d.registry.source.Exhausted(d.key, batch.releases)
	if len(exhausted) == 0 {
		return
	}
	slices.Sort(exhausted)
	batch.releases = slices.DeleteFunc(batch.releases, func(sequence uint64) bool {
		_, is := slices.BinarySearch(exhausted, sequence)
		return is
	})
	batch.deadLetter(exhausted, txn.DeadMaxDeliveries, nil)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.order.settled(exhausted)
}

// FullError is returned if dead messages of a queue are pending because the dead-letter queue is full. It wraps
// txn.ErrQueueFull.
type FullError struct {
	Queue, DeadLetter string
	// Oversized reports whether each pending message is larger than the capacity of the dead-letter queue.
	Oversized bool
}

func (e *FullError) Error() string {
	if e.Oversized {
		return fmt.Sprintf("dead letters of %q are larger than max_bytes of the dead-letter queue %q", e.Queue, e.DeadLetter)
	}
	return fmt.Sprintf("dead-letter queue %q of %q is full", e.DeadLetter, e.Queue)
}

func (*FullError) Unwrap() error { return txn.ErrQueueFull }

// moveDead moves the dead messages of batch to the dead-letter queue, several at a time. Messages that do not fit
// remain pending.
func (d *dispatcher) moveDead(ctx context.Context, batch *settlement) error {
	slices.SortFunc(batch.dead, func(a, b pendingDead) int { return cmp.Compare(a.sequence, b.sequence) })
	var waiting []pendingDead
	var reason *FullError
	for left := batch.dead; len(left) > 0; {
		now, rest, err := d.readDead(ctx, left)
		var stay []uint64
		if err == nil && len(now) > 0 {
			stay, err = d.registry.settler.Move(ctx, d.key, now)
		}
		full, isFull := errors.AsType[*FullError](err)
		if err != nil && !isFull {
			return err
		}
		if full != nil {
			d.registry.RecordFull(full)
			waiting = append(waiting, only(left[:len(left)-len(rest)], stay)...)
			reason = full
			if !full.Oversized {
				waiting = append(waiting, rest...)
			}
		}
		d.reportMoved(left[:len(left)-len(rest)], stay)
		if full != nil && !full.Oversized {
			break
		}
		left = rest
	}
	if len(waiting) > 0 {
		d.keepDead(waiting, batch, reason)
	} else if len(batch.dead) > 0 {
		d.mu.Lock()
		d.deadFull = false
		d.mu.Unlock()
	}
	return nil
}

// reportMoved notifies consumers that their rejected messages in list are no longer pending. It excludes the
// messages in stay.
func (d *dispatcher) reportMoved(list []pendingDead, stay []uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range list {
		if _, stays := slices.BinarySearch(stay, m.sequence); m.notified && !stays {
			m.by.moved = append(m.by.moved, m.sequence)
			signal(m.by.notify)
		}
	}
}

func only(list []pendingDead, sequences []uint64) (found []pendingDead) {
	for _, m := range list {
		if _, is := slices.BinarySearch(sequences, m.sequence); is {
			found = append(found, m)
		}
	}
	return found
}

// readDead reads the first messages of list and returns those that are readable and not acknowledged. Corrupt
// messages are recorded for a later retry. rest contains the entries of list that were not read.
func (d *dispatcher) readDead(ctx context.Context, list []pendingDead) (now []Dead, rest []pendingDead, err error) {
	from := list[0].sequence
	messages, next, err := d.registry.source.Read(ctx, d.key, from, maxMoveMessages,
		d.registry.limits.Load().BatchBytes, nil)
	if err != nil {
		return nil, nil, err
	}
	next = max(next, from+1)
	for ; len(list) > 0 && list[0].sequence < next; list = list[1:] {
		for len(messages) > 0 && messages[0].Sequence < list[0].sequence {
			messages = messages[1:]
		}
		if len(messages) == 0 || messages[0].Sequence != list[0].sequence {
			continue // the message is acknowledged
		}
		m := &messages[0]
		if m.Record == nil {
			d.mu.Lock()
			d.corrupt.push(m.Sequence)
			d.mu.Unlock()
			continue
		}
		one := Dead{Sequence: m.Sequence, Reason: list[0].reason, Deliveries: m.DeliveryCount, Record: m.Record}
		if one.Reason == txn.DeadRejected {
			one.Deliveries++ // count the rejected delivery
		}
		now = append(now, one)
	}
	return now, list, nil
}

func (d *dispatcher) keepDead(left []pendingDead, batch *settlement, reason *FullError) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.deadFull {
		d.registry.log.Warn("dead letters deferred: dead-letter queue is full; consume from it, or raise its limits",
			zap.String("queue", reason.Queue), zap.String("dead_letter_queue", reason.DeadLetter),
			zap.Int("messages", len(left)), zap.Bool("too_large", reason.Oversized))
	}
	d.deadWait, d.deadFull = true, true
	batch.dead = left
	d.postponeDead(batch)
	time.AfterFunc(deadRetryInterval, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.deadWait = false
		signal(d.work)
	})
}

// postponeDead makes the dead messages of batch pending again. It notifies the consumers with pending events that
// rejected them. Other consumers receive their confirmations only when the messages are moved.
func (d *dispatcher) postponeDead(batch *settlement) {
	if len(batch.dead) == 0 && len(d.pending.dead) == 0 {
		return
	}
	for i := range batch.dead {
		m := &batch.dead[i]
		if m.by != nil && m.by.reportsPending && !m.notified {
			m.notified = true
			m.by.pendingRejects = append(m.by.pendingRejects, m.sequence)
			signal(m.by.notify)
		}
	}
	d.pending.dead, batch.dead = append(d.pending.dead, batch.dead...), nil
	blocked := make(map[*Consumer]bool)
	for _, m := range d.pending.dead {
		if m.by != nil && !m.by.reportsPending {
			blocked[m.by] = true
		}
	}
	batch.confirms = slices.DeleteFunc(batch.confirms, func(c confirmation) bool {
		if blocked[c.consumer] {
			d.pending.confirms = append(d.pending.confirms, c)
		}
		return blocked[c.consumer]
	})
}

// fullFor is the time after RecordFull during which dead letters count as pending.
const fullFor = 5 * time.Second

// RecordFull records that a queue has dead letters that do not fit into the dead-letter queue.
func (r *Registry) RecordFull(e *FullError) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.full == nil {
		r.full = make(map[FullError]time.Time)
	}
	r.full[*e] = time.Now()
}

// Full returns the queues recorded within fullFor, sorted by the names of the queue and its dead-letter queue.
func (r *Registry) Full() (list []FullError) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for e, at := range r.full {
		if time.Since(at) > fullFor {
			delete(r.full, e)
			continue
		}
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b FullError) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.DeadLetter, b.DeadLetter))
	})
	return list
}
