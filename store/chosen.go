// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"

	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Pending is a message that some subscriptions have not yet acknowledged.
type Pending struct {
	// Sequence is the message's sequence in its queue.
	Sequence uint64
	// Subs are the numbers of those subscriptions.
	Subs []uint32
}

// Pending returns at most limit messages within ranges that a subscription has not yet acknowledged. With sub 0, it
// returns messages that any subscription has not acknowledged. The ranges must be ascending and must not overlap.
// Messages held by a prepared transaction are omitted. The error is ErrNoQueue if the queue or the subscription is
// missing, txn.ErrBeyondEnd for a sequence beyond the end of the queue, ErrClosed or ErrFailed.
func (s *Store) Pending(id uint64, sub uint32, ranges []txn.Range, limit int) ([]Pending, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	q := s.state.Queue(id)
	if q == nil || sub != 0 && q.Sub(sub) == nil {
		return nil, fmt.Errorf("%w: queue %d, subscription %d", ErrNoQueue, id, sub)
	}
	if n := len(ranges); n > 0 && ranges[n-1].Last >= q.NextSequence() {
		return nil, fmt.Errorf("%w: sequence %d, and the queue's last one is %d", txn.ErrBeyondEnd, ranges[n-1].Last,
			q.NextSequence()-1)
	}
	var out []Pending
	for _, r := range ranges {
		for seq := r.First; seq <= r.Last && len(out) < limit; seq++ {
			if subs := pendingIn(q, sub, seq); len(subs) > 0 {
				out = append(out, Pending{Sequence: seq, Subs: subs})
			}
		}
	}
	return out, nil
}

// pendingIn returns the subscriptions that have not acknowledged a message, or nil if a prepared transaction holds
// it.
func pendingIn(q *queue.Queue, only uint32, seq uint64) (subs []uint32) {
	for sub := range q.Subs {
		switch {
		case only != 0 && sub.ID() != only, sub.Acked(seq):
		case sub.Reserved(seq):
			return nil
		default:
			subs = append(subs, sub.ID())
		}
	}
	return subs
}

// QueueSample holds the changing values of a queue, for comparison with an earlier sample.
type QueueSample struct {
	// ID is the queue's number, Name its name.
	ID   uint64
	Name string
	// NextSequence is the sequence of the next message. Messages and Bytes are as in QueueInfo.
	NextSequence, Messages, Bytes uint64
}

// Sample appends the current values of all queues to dst, in no particular order. It takes a few milliseconds for
// 100,000 queues.
func (s *Store) Sample(dst []QueueSample) []QueueSample {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for q := range s.state.Queues {
		dst = append(dst, QueueSample{
			ID: q.ID(), Name: q.Name(), NextSequence: q.NextSequence(), Messages: q.Messages(), Bytes: q.Bytes(),
		})
	}
	return dst
}
