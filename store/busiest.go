// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Busiest returns up to limit queues with the most messages. Ties are ordered by the number of messages ever
// published. It visits all queues, which takes a few milliseconds for 100,000 queues.
func (s *Store) Busiest(limit int) []QueueInfo {
	if limit <= 0 {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	order := func(a, b *queue.Queue) int {
		return cmp.Or(
			cmp.Compare(b.Messages(), a.Messages()), cmp.Compare(b.NextSequence(), a.NextSequence()),
			cmp.Compare(a.ID(), b.ID()),
		)
	}
	best := make([]*queue.Queue, 0, limit+1) // sorted
	for q := range s.state.Queues {
		if len(best) == limit && order(q, best[limit-1]) > 0 {
			continue
		}
		at, _ := slices.BinarySearchFunc(best, q, order)
		best = slices.Insert(best, at, q)
		best = best[:min(len(best), limit)]
	}
	out := make([]QueueInfo, 0, len(best))
	for _, q := range best {
		out = append(out, infoOf(s.state, q))
	}
	return out
}

// OldestSequence returns the sequence of the first message in a queue that a subscription still needs. ok is false if
// no such message exists.
func (s *Store) OldestSequence(id uint64) (sequence uint64, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	q := s.state.Queue(id)
	if q == nil || q.Messages() == 0 {
		return 0, false
	}
	for sub := range q.Subs {
		if first := sub.NextUnacked(sub.Floor()); !ok || first < sequence {
			sequence, ok = first, true
		}
	}
	return sequence, ok
}

// AcceptedAt returns the time at which the active accepted a message: the first one at or after sequence that a
// subscription still needs. ok is false if no such message exists or if it cannot be read.
func (s *Store) AcceptedAt(ctx context.Context, id, sequence uint64) (at time.Time, ok bool) {
	got, _, err := s.Read(ctx, ReadRequest{Queue: id, From: sequence, MaxMessages: 1, MaxBytes: 1, MarkDamaged: true},
		nil)
	if err != nil || len(got) == 0 || got[0].Record == nil {
		return time.Time{}, false
	}
	m, err := txn.DecodeMessage(got[0].Record)
	if err != nil {
		return time.Time{}, false
	}
	return time.UnixMilli(m.TimestampMS), true
}
