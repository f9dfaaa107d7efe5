// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/delivery/filter"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Limits of one call with a filter. The client can continue the search with another call.
const (
	maxSearchMessages = 1_000_000
	maxSearchBytes    = 1 << 30
	searchTimeout     = 5 * time.Second
	// stepTimeout limits the time of one step. The time and the client's cancellation are checked after every
	// checkEvery messages.
	stepTimeout = time.Second
	checkEvery  = 64
)

const (
	// A search for the newest messages reads a window of sequences that precede its position, in ascending order.
	// The size of the window is adapted to the number and size of the messages in it.
	firstWindow = 256
	maxWindow   = 1 << 20
	// If a window has fewer than windowMessages messages, the next window is larger. A window with more than
	// maxWindowMessages messages is read again in smaller parts.
	windowMessages    = 4096
	maxWindowMessages = 20_000
	minSearchBatch    = 1000 // number of messages
)

// search reads a range of a queue in steps.
type search struct {
	service *Service
	session *session.Session
	filter  *filter.Filter    // nil if all messages match
	read    store.ReadRequest // contains the queue and the subscription
	newest  bool
	records bool // return the records; otherwise, return only sequences and record lengths

	from, before uint64 // remaining range
	window       uint64
	maxScanned   uint64
	began        time.Time
	stepped      bool
	stepTimeout  time.Duration
	stepBegan    time.Time
	scanned      uint64
	unevaluated  uint64
	readBytes    int64
	batch        []store.Delivery
}

// begin sets the range and the filter. If the request has no end, the range ends with the last stored message.
func (s *search) begin(req *pb.Search) (err error) {
	if text := req.GetFilter(); text != "" {
		if s.filter, err = filter.CompileSearch(text); err != nil {
			return err
		}
		s.read.Buffer = new(store.ReadBuffer)
	}
	if s.session.Paused() { // INV-2: the data read may be stale
		return apierror.ErrPaused
	}
	first, next, ok := query.SequenceRange(s.service.store, s.read.Queue)
	if !ok {
		return txn.ErrQueueNotFound
	}
	s.before = next
	if before := req.GetBeforeSequence(); before != 0 {
		s.before = min(before, next)
	}
	s.from = min(max(req.GetFromSequence(), first), s.before)
	s.maxScanned = maxSearchMessages
	if n := req.GetMaxScanned(); n != 0 {
		s.maxScanned = min(n, maxSearchMessages)
	}
	s.read.IncludeCorrupt, s.window, s.began, s.stepTimeout = true, firstWindow, time.Now(), stepTimeout
	return nil
}

func (s *search) done() bool { return s.from >= s.before }

// exhausted reports whether a search with a filter has reached a limit of one call.
func (s *search) exhausted() bool {
	return s.filter != nil && s.stepped && (s.scanned >= s.maxScanned || s.readBytes >= maxSearchBytes ||
		time.Since(s.began) >= searchTimeout)
}

func (s *search) progress() *pb.SearchProgress {
	return &pb.SearchProgress{
		FromSequence: s.from, BeforeSequence: s.before, Scanned: s.scanned, Unevaluated: s.unevaluated,
		QueueId: s.read.Queue,
	}
}

// step reads the next part of the range, about maxBytes. It returns the matching messages, limited to most, which must
// be at least 1. It also returns the sequences of the corrupt messages in that part.
func (s *search) step(ctx context.Context, maxBytes int, most uint64) ([]store.Delivery, []uint64, error) {
	if s.session.Paused() { // INV-2: the data read may be stale
		return nil, nil, apierror.ErrPaused
	}
	select {
	case <-s.session.Ended():
		return nil, nil, s.session.Reason()
	default:
	}
	if s.filter != nil { // an evaluation uses more CPU time than a read
		select {
		case s.service.searches <- struct{}{}:
			defer func() { <-s.service.searches }()
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("search: %w", ctx.Err())
		}
	}
	s.stepped, s.stepBegan = true, time.Now()
	s.read.MaxBytes, s.read.MaxMessages = maxBytes, txn.MaxPublishMessages
	if !s.newest {
		return s.ascend(ctx, most)
	}
	for {
		found, corrupt, ok, err := s.descend(ctx, most)
		if ok || err != nil {
			return found, corrupt, err
		}
	}
}

// maxSearches returns the maximum number of searches that may use the CPU concurrently.
func maxSearches() int { return max(runtime.GOMAXPROCS(0)/2, 1) }

func (s *search) ascend(ctx context.Context, most uint64) (found []store.Delivery, corrupt []uint64, err error) {
	s.read.MaxMessages = int(min(most, txn.MaxPublishMessages))
	if s.filter != nil { // a read first locates all messages, so limit their number
		s.read.MaxMessages = min(max(len(s.batch)+len(s.batch)/4, minSearchBatch), txn.MaxPublishMessages)
	}
	rest, corrupt, next, err := s.readFrom(ctx, s.from)
	if err != nil {
		return nil, nil, err
	}
	var n int
	found, n, err = s.matching(ctx, nil, rest)
	if err != nil {
		return nil, nil, err
	}
	if s.from = next; n < len(rest) {
		s.from = rest[n].Sequence
	}
	s.scanned += uint64(n)
	if uint64(len(found)) > most {
		found = found[:most]
		s.from = found[most-1].Sequence + 1
	}
	return found, corrupt, nil
}

// readFrom reads messages of the range, starting at sequence from. next is the sequence to continue from, or the end
// of the range if no messages remain.
func (s *search) readFrom(
	ctx context.Context, from uint64,
) (batch []store.Delivery, corrupt []uint64, next uint64, err error) {
	s.read.From, s.read.Before = from, s.before
	s.batch, next, err = s.service.store.Read(ctx, s.read, s.batch[:0])
	if err != nil {
		return nil, nil, 0, err
	}
	if len(s.batch) == 0 && next == from {
		return nil, nil, s.before, nil
	}
	s.readBytes += recordBytes(s.batch)
	batch, corrupt = withoutCorrupt(s.batch)
	return batch, corrupt, next, nil
}

// descend reads the window of sequences that precedes the position. If the window has too many or too large
// messages, or their evaluation takes too long, descend reduces the window and returns ok = false.
func (s *search) descend(
	ctx context.Context, most uint64,
) (found []store.Delivery, corrupt []uint64, ok bool, err error) {
	size := min(s.window, s.before-s.from)
	low, limited, scanned, unevaluated := s.before-size, false, 0, s.unevaluated
	s.stepBegan = time.Now()
	for at := low; at < s.before; {
		rest, damaged, next, err := s.readFrom(ctx, at)
		if err != nil {
			return nil, nil, false, err
		}
		at = next
		scanned += len(rest)
		corrupt = append(corrupt, damaged...)
		var n int
		if found, n, err = s.matching(ctx, found, rest); err != nil {
			return nil, nil, false, err
		}
		if extra := len(found) - int(min(most, maxWindow)); extra > 0 {
			found, limited = slices.Delete(found, 0, extra), true
		}
		tooLarge := len(found) > 1 && recordBytes(found) > int64(s.read.MaxBytes)
		slow := n < len(rest)
		if size > 1 && (slow || tooLarge || scanned > maxWindowMessages) {
			if s.window = size / 2; slow {
				s.window = max(size/8, 1)
			}
			s.unevaluated = unevaluated
			return nil, nil, false, nil
		}
	}
	s.before = low
	s.scanned += uint64(scanned)
	slices.Reverse(found)
	slices.Reverse(corrupt)
	if limited {
		s.before = found[len(found)-1].Sequence
		corrupt = slices.DeleteFunc(corrupt, func(seq uint64) bool { return seq < s.before })
	}
	if scanned < windowMessages && recordBytes(found) < int64(s.read.MaxBytes)/4 {
		s.window = min(2*s.window, maxWindow)
	}
	return found, corrupt, true, nil
}

// matching appends the matching messages of a batch to found. It stops early when stepTimeout has passed. It
// returns the number of messages that it has evaluated.
func (s *search) matching(
	ctx context.Context, found, batch []store.Delivery,
) (all []store.Delivery, evaluated int, err error) {
	if s.filter == nil {
		return append(found, batch...), len(batch), nil
	}
	for i := range batch {
		if i > 0 && i%checkEvery == 0 {
			if err := ctx.Err(); err != nil {
				return nil, 0, fmt.Errorf("search: %w", err)
			}
			if time.Since(s.stepBegan) > s.stepTimeout {
				return found, i, nil
			}
		}
		m := &batch[i]
		result, err := s.filter.Evaluate(m.Record)
		switch {
		case err != nil:
			return nil, 0, fmt.Errorf("sequence %d: %w", m.Sequence, err)
		case result == filter.Unevaluated:
			s.unevaluated++
		case result == filter.Matches && s.records:
			found = append(found, *m)
			found[len(found)-1].Record = bytes.Clone(m.Record) // the next read overwrites the record
		case result == filter.Matches:
			found = append(found, *m)
		}
	}
	return found, len(batch), nil
}
