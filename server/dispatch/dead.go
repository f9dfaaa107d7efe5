// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// deadAgain is how often it is tried again to move messages that the dead-letter queue has no room for.
	deadAgain = time.Second
	// maxMoveMessages bounds the messages of one transaction that moves some.
	maxMoveMessages = 256
)

// dying is a message that is to be moved. Its record is read when it is.
type dying struct {
	sequence uint64
	reason   txn.DeadReason
	by       *Consumer // that has rejected it; nil if none has
}

// giveUp has messages moved.
func (s *settlement) giveUp(sequences []uint64, reason txn.DeadReason, by *Consumer) {
	for _, sequence := range sequences {
		s.dead = append(s.dead, dying{sequence: sequence, reason: reason, by: by})
	}
}

// maxDeliveries is how often the messages of a result may be delivered; 0 when none was delivered before, or there is
// no limit.
func (d *dispatcher) maxDeliveries(messages []Message) uint64 {
	for i := range messages {
		if messages[i].DeliveryCount > 0 {
			return d.registry.source.MaxDeliveries(d.key)
		}
	}
	return 0
}

// setDead takes the messages out of a result that were delivered as often as they may be, and has them moved: after a
// failover, or since the limit was lowered. The dispatcher's lock is held.
func (d *dispatcher) setDead(messages []Message, most uint64) []Message {
	return slices.DeleteFunc(messages, func(m Message) bool {
		dead := uint64(m.DeliveryCount) >= most
		if dead {
			d.pending.giveUp([]uint64{m.Sequence}, txn.DeadMaxDeliveries, nil)
			signal(d.work)
		}
		return dead
	})
}

// giveUpExhausted has those of the releases of a settlement moved, which are committed, that are not delivered again.
func (d *dispatcher) giveUpExhausted(batch *settlement) {
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
	batch.giveUp(exhausted, txn.DeadMaxDeliveries, nil)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.order.answered(exhausted)
}

// moveDead has the dead messages of a settlement moved, a batch at a time. Those that the dead-letter queue has no room
// for wait for their next turn.
func (d *dispatcher) moveDead(ctx context.Context, batch *settlement) error {
	slices.SortFunc(batch.dead, func(a, b dying) int { return cmp.Compare(a.sequence, b.sequence) })
	for left := batch.dead; len(left) > 0; {
		now, rest, err := d.readDead(ctx, left)
		if err == nil && len(now) > 0 {
			err = d.registry.settler.Move(ctx, d.key, now)
		}
		if errors.Is(err, txn.ErrQueueFull) {
			d.moveLater(left, batch)
			return nil
		}
		if err != nil {
			return err
		}
		left = rest
	}
	if len(batch.dead) > 0 {
		d.mu.Lock()
		d.deadFull = false
		d.mu.Unlock()
	}
	return nil
}

// readDead reads the first ones of a list, those that are not acknowledged by now, and gives the rest of it.
func (d *dispatcher) readDead(ctx context.Context, list []dying) (now []Dead, rest []dying, err error) {
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
			continue // acknowledged
		}
		m := &messages[0]
		if m.Record == nil {
			d.mu.Lock()
			d.damaged.push(m.Sequence)
			d.mu.Unlock()
			continue
		}
		one := Dead{Sequence: m.Sequence, Reason: list[0].reason, Deliveries: m.DeliveryCount, Record: m.Record}
		if one.Reason == txn.DeadRejected {
			one.Deliveries++ // the delivery that was rejected
		}
		now = append(now, one)
	}
	return now, list, nil
}

// moveLater puts back what could not be moved, and the confirmations that speak of it.
func (d *dispatcher) moveLater(left []dying, batch *settlement) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.deadFull {
		d.registry.log.Warn("the dead-letter queue is full: messages that no consumer can deal with stay where they "+
			"are and are not delivered; consume from it, or raise its limits", zap.Uint64("queue_id", d.key.Queue),
			zap.Uint32("subscription_id", d.key.Sub), zap.Int("messages", len(left)))
	}
	d.deadWait, d.deadFull = true, true
	batch.dead = left
	d.keepDead(batch)
	time.AfterFunc(deadAgain, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.deadWait = false
		signal(d.work)
	})
}

// keepDead leaves pending, of a settlement that was taken, the dead messages and the confirmations of the consumers
// that have rejected some of them. The dispatcher's lock is held.
func (d *dispatcher) keepDead(batch *settlement) {
	d.pending.dead, batch.dead = append(d.pending.dead, batch.dead...), nil
	batch.confirms = slices.DeleteFunc(batch.confirms, func(c confirmation) bool {
		waits := slices.ContainsFunc(d.pending.dead, func(m dying) bool { return m.by == c.consumer })
		if waits {
			d.pending.confirms = append(d.pending.confirms, c)
		}
		return waits
	})
}
