// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/store/pager"
	"github.com/lockstep-mq/lockstep/store/queue"
)

// QueueDigests summarizes the state of all queues at one LSN.
type QueueDigests struct {
	LSN uint64
	// Logical is the logical number of the last transaction (queue.SiteState.Logical); 0 for a pair without sites.
	Logical uint64
	// Digest is a rolling hash of all applied transactions and their results.
	Digest uint64
	Queues []QueueDigest
}

// QueueDigest summarizes the state of one queue.
type QueueDigest struct {
	ID   uint64
	Name string
	// Digest is a rolling hash of all operations applied to the queue.
	Digest uint64
	// NextSequence is the sequence that the next published message will have. Messages is the number of messages that at
	// least one subscription still needs.
	NextSequence, Messages uint64
}

// QueueDifference is a queue that differs between two states. Here or There is nil if the queue exists in only one
// state.
type QueueDifference struct{ Here, There *QueueDigest }

// Name returns the name of the queue.
func (d QueueDifference) Name() string {
	if d.Here != nil {
		return d.Here.Name
	}
	return d.There.Name
}

// Differences returns the queues that differ between d (Here) and there (There).
func (d *QueueDigests) Differences(there *QueueDigests) (out []QueueDifference) {
	left := make(map[uint64]*QueueDigest, len(there.Queues))
	for i := range there.Queues {
		left[there.Queues[i].ID] = &there.Queues[i]
	}
	for i := range d.Queues {
		q := &d.Queues[i]
		o := left[q.ID]
		delete(left, q.ID)
		if o == nil || *o != *q {
			out = append(out, QueueDifference{Here: q, There: o})
		}
	}
	for i := range there.Queues {
		if q := &there.Queues[i]; left[q.ID] != nil {
			out = append(out, QueueDifference{There: q})
		}
	}
	return out
}

// QueueDigestsAt waits at most maxWait until the record with the given LSN is applied, and returns the digests at
// that LSN. If the LSN is 0, it returns the current digests. Errors include ErrPast if later records are already
// applied, context.DeadlineExceeded if the record is not applied in time, and pager.ErrReplaced if a snapshot was
// installed during the wait.
func (s *Store) QueueDigestsAt(ctx context.Context, at uint64, maxWait time.Duration) (QueueDigests, error) {
	if at != 0 {
		release, err := s.waitAt(ctx, at, maxWait)
		if err != nil {
			return QueueDigests{}, fmt.Errorf("digests at LSN %d: %w", at, err)
		}
		defer release()
	}
	if err := s.Usable(); err != nil {
		return QueueDigests{}, err
	}
	out := s.queueDigests()
	if at != 0 && out.LSN != at {
		return QueueDigests{}, fmt.Errorf("%w by the peer's: applied up to LSN %d", pager.ErrReplaced,
			out.LSN)
	}
	return out, nil
}

func (s *Store) queueDigests() QueueDigests {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := QueueDigests{LSN: s.state.Applied(), Logical: s.state.Site().Logical, Digest: s.state.Digest()}
	add := func(q *queue.Queue) bool {
		out.Queues = append(out.Queues, QueueDigest{
			ID: q.ID(), Name: q.Name(), Digest: q.Digest(), NextSequence: q.NextSequence(), Messages: q.Messages(),
		})
		return true
	}
	s.state.Queues(add)
	s.state.Incoming(add)
	return out
}
