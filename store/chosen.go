// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"

	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Pending is a message that some subscriptions have still to acknowledge.
type Pending struct {
	// Sequence of the message.
	Sequence uint64
	// Subs are the numbers of those subscriptions.
	Subs []uint32
}

// Pending returns which of the messages in ranges, which must rise and not overlap, a subscription has still to
// acknowledge, or with sub 0, some subscription has: at most limit messages. What a prepared transaction holds is left
// out. The error is ErrNoQueue, also for a subscription that is not there; txn.ErrBeyondEnd for a sequence that the
// queue has not reached, and ErrClosed or ErrFailed.
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

// pendingIn returns the subscriptions that have to acknowledge a message; nil if a prepared transaction holds it.
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

// QueueSample is what changes in a queue, to be compared with what it was some time before.
type QueueSample struct {
	// ID is the queue's number, Name its name.
	ID   uint64
	Name string
	// NextSequence is what the next message will get. Messages and Bytes are as in QueueInfo.
	NextSequence, Messages, Bytes uint64
}

// Sample appends what all queues have at this moment to dst, in any order. It takes some milliseconds with a hundred
// thousand of them.
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
