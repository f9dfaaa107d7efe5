// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"time"
)

// QueueDigests is the state of all queues at one record, as far as a few numbers tell.
type QueueDigests struct {
	// LSN that it is true at.
	LSN uint64
	// Digest is a rolling hash of everything that was ever applied.
	Digest uint64
	// Queues by number.
	Queues []QueueDigest
}

// QueueDigest is the state of one queue.
type QueueDigest struct {
	// ID is the queue's number, Name its name.
	ID   uint64
	Name string
	// Digest is a rolling hash of everything that was ever applied to the queue.
	Digest uint64
	// NextSequence is what the next message will get; Messages are those that a subscription wants.
	NextSequence, Messages uint64
}

// QueueDigestsAt returns the digests as they are at exactly record at, for which it waits, at most for maxWait; 0: as
// they are now. Cheap: nothing is read, and applying is held only while numbers are copied. ErrPast if more was applied
// already, context.DeadlineExceeded if the record does not come in time.
func (s *Store) QueueDigestsAt(ctx context.Context, at uint64, maxWait time.Duration) (QueueDigests, error) {
	if at != 0 {
		release, err := s.waitAt(ctx, at, maxWait)
		if err != nil {
			return QueueDigests{}, fmt.Errorf("digests at LSN %d: %w", at, err)
		}
		defer release()
	}
	if err := s.usable(); err != nil {
		return QueueDigests{}, err
	}
	out := s.queueDigests()
	if at != 0 && out.LSN != at {
		return QueueDigests{}, fmt.Errorf("%w: the store was replaced by its peer's, it stands at %d", ErrSnapshotGone,
			out.LSN)
	}
	return out, nil
}

// queueDigests returns the digests as they are now.
func (s *Store) queueDigests() QueueDigests {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := QueueDigests{LSN: s.state.Applied(), Digest: s.state.Digest()}
	for q := range s.state.Queues {
		out.Queues = append(out.Queues, QueueDigest{
			ID: q.ID(), Name: q.Name(), Digest: q.Digest(), NextSequence: q.NextSequence(), Messages: q.Messages(),
		})
	}
	return out
}
