// SPDX-License-Identifier: Apache-2.0

package query

import (
	"math"
	"time"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// OverflowQueue is the number to pass to Store.Watch to receive a signal when a queue with txn.OverflowDeadLetterHead
// exceeds its limits (Expiry.Overflow).
const OverflowQueue = queue.OverflowQueue

// Expiry describes the messages of a queue that the active must expire or move.
type Expiry struct {
	ID     uint64
	Config txn.Config
	// Retained is the sequence below which no message is retained any longer, or the queue's next sequence without a
	// retention. RetainFrom is the first sequence within the limits of the retention on messages and bytes, at least
	// Retained.
	Retained, RetainFrom uint64
	// Overflow is the sequence below which messages must be moved to the dead-letter queue. It is 0 if no message must
	// be moved.
	Overflow uint64
	// Subs are the numbers of the subscriptions that have not acknowledged all messages below Overflow.
	Subs []uint32
}

// ExpiryQueues returns the numbers of the queues with a retention or txn.OverflowDeadLetterHead, in ascending order,
// without fenced queues.
func ExpiryQueues(s *store.Store) (ids []uint64) {
	s.View(func(state *queue.State) { ids = state.Expiring() })
	return ids
}

// ExpiryOf returns the Expiry of a queue. ok is false if the queue does not exist.
func ExpiryOf(s *store.Store, id uint64) (e Expiry, ok bool) {
	viewQueue(s, id, func(_ *queue.State, q *queue.Queue) {
		ok = true
		e = Expiry{ID: id, Config: q.Config(), Overflow: q.Overflowing()}
		e.Retained, _ = q.Retained()
		e.RetainFrom = e.Retained
		if e.Config.RetentionMessages|e.Config.RetentionBytes != 0 {
			e.RetainFrom = q.RetainFrom(e.Config.RetentionMessages, e.Config.RetentionBytes)
		}
		for sub := range q.Subs {
			if e.Overflow > 0 && sub.NextUnacked(1) < e.Overflow {
				e.Subs = append(e.Subs, sub.ID())
			}
		}
	})
	return e, ok
}

// TTL returns the TTL of a queue in milliseconds, or 0 if the queue has none or does not exist.
func TTL(s *store.Store, id uint64) (ms int64) {
	viewQueue(s, id, func(_ *queue.State, q *queue.Queue) { ms = int64(q.Config().TTL) })
	return ms
}

// Paused reports whether the delivery of a subscription is paused, directly or by its queue. The delivery of a fenced
// or incoming queue is paused.
func Paused(s *store.Store, id uint64, sub uint32) (paused bool) {
	viewSub(s, id, sub, func(sub *queue.Sub) { paused = sub.Paused() })
	return paused
}

// AckTimeout returns the time in milliseconds within which a consumer of a subscription must acknowledge a message.
// It returns 0 if the subscription has no such deadline or does not exist.
func AckTimeout(s *store.Store, id uint64, sub uint32) (ms uint64) {
	viewSub(s, id, sub, func(of *queue.Sub) { ms = of.Config().AckTimeout })
	return ms
}

// TTLs returns the TTL in milliseconds, by queue number, of each queue that has one and is not fenced.
func TTLs(s *store.Store) (ms map[uint64]int64) {
	s.View(func(state *queue.State) { ms = state.TTLs() })
	return ms
}

// DeadLetters returns the numbers of the subscriptions of a queue for which expired messages are moved to a
// dead-letter queue.
func DeadLetters(s *store.Store, id uint64) (subs []uint32) {
	viewQueue(s, id, func(_ *queue.State, q *queue.Queue) {
		for sub := range q.Subs {
			if q.Config().DeadLetterExpired != 0 && sub.Config().DeadLetter != txn.NoQueue {
				subs = append(subs, sub.ID())
			}
		}
	})
	return subs
}

// Needs reports whether a message is published and a subscription has not yet acknowledged it. If so, deliveries is
// the number of times that the subscription released it since its last seek.
func Needs(s *store.Store, id uint64, sub uint32, sequence uint64) (deliveries uint32, needs bool) {
	viewSub(s, id, sub, func(of *queue.Sub) {
		if sequence < of.Queue().NextSequence() && !of.Acked(sequence) {
			deliveries, needs = of.DeliveryCount(sequence), true
		}
	})
	return deliveries, needs
}

// RoomIn returns the space that a queue has for the messages of one transaction, or the zero Room if the queue does
// not exist.
func RoomIn(s *store.Store, id uint64) (room queue.Room) {
	viewQueue(s, id, func(state *queue.State, q *queue.Queue) { room = state.Room(q) })
	return room
}

// MaxDeliveries returns the maximum number of deliveries of a message to a subscription, or 0 if it is unlimited or the
// subscription does not exist.
func MaxDeliveries(s *store.Store, id uint64, sub uint32) (limit uint64) {
	viewSub(s, id, sub, func(of *queue.Sub) { limit = of.Config().MaxDeliveries })
	return limit
}

// Exhausted returns those of the given sequences that the subscription has released at least Config.MaxDeliveries
// times. It returns nil if the subscription has no delivery limit or does not exist.
func Exhausted(s *store.Store, id uint64, sub uint32, sequences []uint64) (exhausted []uint64) {
	viewSub(s, id, sub, func(of *queue.Sub) {
		limit := of.Config().MaxDeliveries
		if limit == 0 {
			return
		}
		for _, sequence := range sequences {
			if uint64(of.DeliveryCount(sequence)) >= limit {
				exhausted = append(exhausted, sequence)
			}
		}
	})
	return exhausted
}

// RedeliveryDelays returns the redelivery delay of each sequence, according to the configuration and the number of
// releases. It returns nil if the subscription has no redelivery delay or does not exist.
func RedeliveryDelays(s *store.Store, id uint64, sub uint32, sequences []uint64) (delays []time.Duration) {
	viewSub(s, id, sub, func(of *queue.Sub) {
		config := of.Config()
		if config.RedeliveryDelay == 0 {
			return
		}
		delays = make([]time.Duration, len(sequences))
		for i, sequence := range sequences {
			delays[i] = redeliveryDelay(&config, of.DeliveryCount(sequence))
		}
	})
	return delays
}

func redeliveryDelay(c *txn.Config, times uint32) time.Duration {
	longest := float64(c.RedeliveryMaxDelay)
	if c.RedeliveryMaxDelay == 0 {
		longest = txn.MaxTime
	}
	ms := float64(c.RedeliveryDelay)
	if c.RedeliveryMultiplier != 0 && times > 1 {
		ms *= math.Pow(float64(c.RedeliveryMultiplier)/100, float64(times-1))
	}
	return time.Duration(min(ms, longest)) * time.Millisecond
}

// Filter returns the filter expression of a subscription, or "" if it receives all messages or does not exist.
func Filter(s *store.Store, id uint64, sub uint32) (filter string) {
	viewSub(s, id, sub, func(of *queue.Sub) { filter = of.Filter() })
	return filter
}

// DeliveryOrder reports whether a queue delivers messages of higher priority first, and whether only one consumer of
// each subscription receives messages at a time. Both are false if the queue does not exist.
func DeliveryOrder(s *store.Store, id uint64) (prioritized, exclusive bool) {
	viewQueue(s, id, func(_ *queue.State, q *queue.Queue) {
		prioritized, exclusive = q.Prioritized(), q.Config().Exclusive != 0
	})
	return prioritized, exclusive
}

// Priorities returns the priority of each sequence of a queue, or txn.DefaultPriority if the queue does not exist. For
// a message that no longer exists, it may return any priority.
func Priorities(s *store.Store, id uint64, sequences []uint64) []uint8 {
	list := make([]uint8, len(sequences))
	s.View(func(state *queue.State) {
		q := state.Queue(id)
		for i, seq := range sequences {
			list[i] = txn.DefaultPriority
			if q != nil {
				list[i] = q.Priority(seq)
			}
		}
	})
	return list
}
