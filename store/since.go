// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// FirstSince finds the first message of a queue, among those that some subscription has still to acknowledge or that
// are retained, from sequence from on, that was published at a time or later, in milliseconds since 1970: its sequence,
// and its time. Without one it returns the sequence that the next message will get, and ok is false.
//
// The times of a queue's messages rise with their sequences, but for what the clocks of two nodes differ by, and for
// messages that were moved to it. It reads single messages, about as many as the number of sequences has binary digits,
// whatever there is between them. Messages that are damaged are stepped over.
//
// Errors: ErrNoQueue, ErrIndexDamaged, ErrClosed, ErrFailed.
func (s *Store) FirstSince(
	ctx context.Context, queue, from uint64, sinceMS int64,
) (sequence uint64, publishedMS int64, ok bool, err error) {
	var buffer ReadBuffer
	return searchTime(from, func() (uint64, error) { return s.end(queue) },
		func(from uint64) (uint64, int64, bool, error) { return s.publishedAt(ctx, queue, from, &buffer) }, sinceMS)
}

// PublishedAt tells when the first message was published, from a sequence on, that FirstSince looks at, and its
// sequence; ok is false if there is none.
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

// searchTime is FirstSince with another way to read: read gives the first message from a sequence on.
func searchTime(
	from uint64, end func() (uint64, error), read func(from uint64) (seq uint64, ms int64, ok bool, err error),
	sinceMS int64,
) (sequence uint64, publishedMS int64, ok bool, err error) {
	last, err := end()
	if err != nil {
		return 0, 0, false, err
	}
	// What is below low is too old, and sequence is the first one known that is not.
	sequence = last
	low, high := max(from, 1), last
	for low < high {
		middle := low + (high-low)/2
		seq, ms, found, err := read(middle)
		switch {
		case err != nil:
			return 0, 0, false, err
		case !found || seq >= high:
			high = middle // nothing is left between the two
		case ms < sinceMS:
			low = seq + 1
		default:
			sequence, publishedMS, ok, high = seq, ms, true, middle
		}
	}
	return sequence, publishedMS, ok, nil
}
