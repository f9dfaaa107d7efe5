// SPDX-License-Identifier: Apache-2.0

package query

import (
	"context"
	"time"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// FirstSince returns the sequence and publish time of the first message of a queue that was published at or after
// sinceMS. Times are in milliseconds since 1970. The argument from is the first sequence that FirstSince considers. It
// considers messages that are retained or that at least one subscription has not acknowledged. If no message matches,
// it returns the sequence of the next message, and ok is false.
//
// The search assumes that publish times ascend with the sequences. If clock differences between the nodes or moved
// messages violate this, the result is approximate. Corrupt messages are skipped. Transactions may be applied during
// the search.
//
// Errors: ErrNoQueue, ErrClosed, ErrFailed, and other errors of store.Store.Read, such as index.ErrCorrupt.
func FirstSince(
	ctx context.Context, s *store.Store, id, from uint64, sinceMS int64,
) (sequence uint64, publishedMS int64, ok bool, err error) {
	var buffer store.ReadBuffer
	return searchTime(from, func() (uint64, error) { return end(s, id) },
		func(from uint64) (uint64, int64, bool, error) { return publishedAt(ctx, s, id, from, &buffer) }, sinceMS)
}

// PublishedAt returns the sequence and publish time of the first message that FirstSince would consider, regardless of
// the time. ok is false if no such message exists.
func PublishedAt(
	ctx context.Context, s *store.Store, id, from uint64,
) (sequence uint64, publishedMS int64, ok bool, err error) {
	return publishedAt(ctx, s, id, from, nil)
}

func publishedAt(
	ctx context.Context, s *store.Store, id, from uint64, buffer *store.ReadBuffer,
) (sequence uint64, publishedMS int64, ok bool, err error) {
	var found [1]store.Delivery
	for {
		list, next, err := s.Read(ctx, store.ReadRequest{
			Queue: id, From: from, MaxMessages: 1, IncludeCorrupt: true, Buffer: buffer,
		}, found[:0])
		if err != nil || len(list) == 0 {
			return 0, 0, false, err
		}
		if list[0].Record != nil {
			return list[0].Sequence, txn.RecordPublishedMS(list[0].Record), true, nil
		}
		from = next
	}
}

func end(s *store.Store, id uint64) (uint64, error) {
	next, ok := NextSequence(s, id)
	if !ok {
		if err := s.Usable(); err != nil {
			return 0, err
		}
		return 0, store.ErrNoQueue
	}
	return next, nil
}

// searchTime implements FirstSince. end returns the next sequence of the queue, and read the first message at or after
// a sequence.
func searchTime(
	from uint64, end func() (uint64, error), read func(from uint64) (seq uint64, ms int64, ok bool, err error),
	sinceMS int64,
) (sequence uint64, publishedMS int64, ok bool, err error) {
	last, err := end()
	if err != nil {
		return 0, 0, false, err
	}
	// Messages below low are too old. sequence is the first message known to be recent enough.
	sequence = last
	low, high := max(from, 1), last
	for low < high {
		middle := low + (high-low)/2
		seq, ms, found, err := read(middle)
		switch {
		case err != nil:
			return 0, 0, false, err
		case !found || seq >= high:
			high = middle // no message in between
		case ms < sinceMS:
			low = seq + 1
		default:
			sequence, publishedMS, ok, high = seq, ms, true, middle
		}
	}
	return sequence, publishedMS, ok, nil
}

// OldestSequence returns the sequence of the first message in a queue that at least one subscription has not
// acknowledged, without regard to the retention. ok is false if no such message exists.
func OldestSequence(s *store.Store, id uint64) (sequence uint64, ok bool) {
	viewQueue(s, id, func(_ *queue.State, q *queue.Queue) {
		for sub := range q.Subs {
			if first := sub.NextUnacked(sub.Floor()); first < q.NextSequence() && (!ok || first < sequence) {
				sequence, ok = first, true
			}
		}
	})
	return sequence, ok
}

// AcceptedAt returns the publish time of the first live message at or after sequence. ok is false if no such message
// exists or it cannot be read.
func AcceptedAt(ctx context.Context, s *store.Store, id, sequence uint64) (at time.Time, ok bool) {
	got, _, err := s.Read(ctx, store.ReadRequest{
		Queue: id, From: sequence, MaxMessages: 1, MaxBytes: 1, IncludeCorrupt: true,
	}, nil)
	if err != nil || len(got) == 0 || got[0].Record == nil {
		return time.Time{}, false
	}
	m, err := txn.DecodeMessage(got[0].Record)
	if err != nil {
		return time.Time{}, false
	}
	return time.UnixMilli(m.TimestampMS), true
}
