// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// FirstSince finds the first message of a queue at or after sequence from that was published at or after sinceMS, in
// milliseconds since 1970. It considers messages that a subscription has not yet acknowledged, or that are retained.
// It returns the message's sequence and time. If no message matches, it returns the sequence of the next message, and
// ok is false.
//
// The times of a queue's messages ascend with their sequences, except for clock differences between the nodes and for
// moved messages. The search is binary: the number of single-message reads is about the number of binary digits of
// the sequence range. Corrupt messages are skipped.
//
// Errors: ErrNoQueue, ErrIndexDamaged, ErrClosed, ErrFailed.
func (s *Store) FirstSince(
	ctx context.Context, queue, from uint64, sinceMS int64,
) (sequence uint64, publishedMS int64, ok bool, err error) {
	var buffer ReadBuffer
	return searchTime(from, func() (uint64, error) { return s.end(queue) },
		func(from uint64) (uint64, int64, bool, error) { return s.publishedAt(ctx, queue, from, &buffer) }, sinceMS)
}

// PublishedAt returns the sequence and time of the first message at or after a sequence that FirstSince considers; ok
// is false if no such message exists.
func (s *Store) PublishedAt(
	ctx context.Context, queue, from uint64,
) (sequence uint64, publishedMS int64, ok bool, err error) {
	return s.publishedAt(ctx, queue, from, nil)
}

func (s *Store) publishedAt(
	ctx context.Context, queue, from uint64, buffer *ReadBuffer,
) (sequence uint64, publishedMS int64, ok bool, err error) {
	var found [1]Delivery
	for {
		list, next, err := s.Read(ctx, ReadRequest{
			Queue: queue, From: from, MaxMessages: 1, MarkDamaged: true, Buffer: buffer,
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

func (s *Store) end(queue uint64) (uint64, error) {
	next, ok := s.NextSequence(queue)
	if !ok {
		if err := s.usable(); err != nil {
			return 0, err
		}
		return 0, ErrNoQueue
	}
	return next, nil
}

// searchTime is FirstSince with a custom read function: read returns the first message at or after a sequence.
func searchTime(
	from uint64, end func() (uint64, error), read func(from uint64) (seq uint64, ms int64, ok bool, err error),
	sinceMS int64,
) (sequence uint64, publishedMS int64, ok bool, err error) {
	last, err := end()
	if err != nil {
		return 0, 0, false, err
	}
	// Messages below low are too old. sequence is the first message known not to be.
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
