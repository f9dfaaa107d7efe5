// SPDX-License-Identifier: Apache-2.0

package expiry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	maxExpireBytes = 1 << 18
	maxRefill      = 1024
	// maxExpiring limits the number of entries queued in memory. Further entries remain in the schedule.
	maxExpiring            = 1 << 13
	postponedRetryInterval = time.Second
)

// expiry removes or dead-letters expired messages in small transactions (see backoff). It postpones messages in
// flight, messages that a prepared transaction will acknowledge, and messages that do not fit into the dead-letter
// queue.
type expiry struct {
	o    Options
	wake chan struct{}
	full map[uint64]bool // queues for which a full dead-letter queue was logged; used only by RunOnce
	pace backoff         // used only by RunOnce

	mu        sync.Mutex // guards the fields below
	waiting   []txn.Due
	unread    scheduleRange // entries that did not fit into waiting
	postponed int64         // earliest time of a postponed entry; queue.NeverMS if none is postponed
	since     time.Time
}

// scheduleRange contains the entries after the entry `after`, up to and including the entry upTo. It is empty if
// upTo has no time.
type scheduleRange struct{ after, upTo txn.Due }

func (s *scheduleRange) empty() bool { return s.upTo.TimeMS == 0 }

func newExpiry(o Options) *expiry {
	return &expiry{o: o, wake: make(chan struct{}, 1), full: make(map[uint64]bool), postponed: queue.NeverMS}
}

func (*expiry) Name() string { return "expired messages" }

func (x *expiry) Wake() <-chan struct{} { return x.wake }

// add queues due entries in order. RunOnce reads entries that do not fit from the schedule later.
func (x *expiry) add(entries []txn.Due) {
	if len(entries) == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.unread.empty() { // preserve the order of the schedule
		n := sort.Search(len(entries), func(i int) bool { return entries[i].Compare(x.unread.after) > 0 })
		if n < len(entries) && entries[len(entries)-1].Compare(x.unread.upTo) > 0 {
			x.unread.upTo = entries[len(entries)-1]
		}
		entries = entries[:n]
	}
	room := min(len(entries), max(0, maxExpiring-len(x.waiting)))
	x.waiting = append(x.waiting, entries[:room]...)
	if left := entries[room:]; len(left) > 0 {
		x.unread.after = left[0]
		x.unread.after.Kind-- // the position immediately before that entry
		if last := left[len(left)-1]; last.Compare(x.unread.upTo) > 0 {
			x.unread.upTo = last
		}
	}
	select {
	case x.wake <- struct{}{}:
	default: // a signal is already pending
	}
}

// postpone records the earliest time of the postponed entries. The caller must hold mu.
func (x *expiry) postpone(entries []txn.Due) {
	for _, e := range entries {
		if x.postponed == queue.NeverMS {
			x.since = time.Now()
		}
		x.postponed = min(x.postponed, e.TimeMS)
	}
}

// takePostponed returns and clears the earliest time of a postponed entry if the retry is due. Otherwise it returns
// queue.NeverMS.
func (x *expiry) takePostponed(now time.Time) int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.postponed == queue.NeverMS || len(x.waiting) > 0 || !x.unread.empty() ||
		now.Sub(x.since) < postponedRetryInterval {
		return queue.NeverMS
	}
	postponed := x.postponed
	x.postponed = queue.NeverMS
	return postponed
}

func (x *expiry) RunOnce(ctx context.Context) (time.Duration, error) {
	x.pace.begin()
	for {
		if err := x.refill(); err != nil {
			return 0, err
		}
		x.mu.Lock()
		batch := slices.Clone(x.waiting[:min(len(x.waiting), x.pace.batch())])
		done := len(batch) == 0 && x.unread.empty()
		x.mu.Unlock()
		if done {
			return time.Hour, nil
		}
		postponed, err := x.expire(ctx, batch)
		if err != nil {
			return 0, err
		}
		x.mu.Lock()
		x.waiting = x.waiting[len(batch):]
		x.postpone(postponed)
		x.mu.Unlock()
	}
}

func (x *expiry) refill() error {
	x.mu.Lock()
	from := x.unread
	enough := len(x.waiting) > 0 || from.empty()
	x.mu.Unlock()
	if enough {
		return nil
	}
	entries, _, err := x.o.Store.Scheduled(from.after, from.upTo.TimeMS, maxRefill)
	if err != nil {
		return fmt.Errorf("read the schedule: %w", err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.unread.after != from.after {
		return nil // the range now starts earlier
	}
	for _, e := range entries {
		if e.Kind == txn.DueExpire {
			x.waiting = append(x.waiting, e)
		}
	}
	x.unread.after = from.upTo
	if len(entries) > 0 {
		x.unread.after = entries[len(entries)-1]
	}
	if x.unread.after.Compare(x.unread.upTo) >= 0 {
		x.unread = scheduleRange{}
	}
	return nil
}

func (x *expiry) expire(ctx context.Context, entries []txn.Due) (postponed []txn.Due, err error) {
	byQueue := make(map[uint64][]txn.Due)
	for _, e := range entries {
		byQueue[e.Queue] = append(byQueue[e.Queue], e)
	}
	var drop []txn.Due
	for _, id := range slices.Sorted(maps.Keys(byQueue)) {
		entries := x.postponeHeld(id, byQueue[id], &postponed)
		subs := query.DeadLetters(x.o.Store, id)
		if len(subs) == 0 {
			drop = append(drop, entries...)
			continue
		}
		left, err := x.move(ctx, id, subs, entries)
		if postponed = append(postponed, left...); err != nil {
			return postponed, err
		}
	}
	if len(drop) > 0 {
		err = x.commit(ctx, drop, nil)
	}
	return postponed, err
}

// postponeHeld appends the entries of messages that are in flight or in a prepared transaction to postponed. It
// returns the other entries.
func (x *expiry) postponeHeld(id uint64, entries []txn.Due, postponed *[]txn.Due) []txn.Due {
	sequences := make([]uint64, len(entries))
	for i := range entries {
		sequences[i] = entries[i].Sequence
	}
	held := append(x.o.Consumers.InFlight(id, sequences), query.ReservedSequences(x.o.Store, id, sequences)...)
	if len(held) == 0 {
		return entries
	}
	slices.Sort(held)
	return slices.DeleteFunc(entries, func(e txn.Due) bool {
		_, is := slices.BinarySearch(held, e.Sequence)
		if is {
			*postponed = append(*postponed, e)
		}
		return is
	})
}

func (x *expiry) move(ctx context.Context, id uint64, subs []uint32, entries []txn.Due) (postponed []txn.Due,
	err error,
) {
	slices.SortFunc(entries, func(a, b txn.Due) int { return cmp.Compare(a.Sequence, b.Sequence) })
	entries = slices.CompactFunc(entries, func(a, b txn.Due) bool { return a.Sequence == b.Sequence })
	most := len(entries)
	for len(entries) > 0 {
		records, n, err := x.read(ctx, id, entries[:min(most, len(entries))])
		if err == nil {
			err = x.moveBatch(ctx, id, subs, entries[:n], records)
		}
		full := (*dispatch.FullError)(nil)
		switch {
		case errors.As(err, &full) && n > 1:
			most = n / 2 // a smaller batch may fit
			continue
		case full != nil && full.Oversized: // the message does not block others
			x.recordFull(id, full)
			postponed = append(postponed, entries[0])
			entries = entries[1:]
			most = len(entries)
			continue
		case full != nil:
			x.recordFull(id, full)
			return append(postponed, entries...), nil //nolint:nilerr // recordFull reports it; the entries are retried
		case errors.Is(err, txn.ErrQueueNotFound), errors.Is(err, txn.ErrSubscriptionNotFound),
			errors.Is(err, store.ErrNoQueue): // deleted in the meantime
			return append(postponed, entries...), nil
		case err != nil:
			return append(postponed, entries...), err
		}
		entries = entries[n:]
	}
	if len(postponed) == 0 {
		delete(x.full, id)
	}
	return postponed, nil
}

// moveBatch moves messages to the dead-letter queue of each subscription, with one transaction per subscription. The
// last transaction also removes the messages from their queue.
func (x *expiry) moveBatch(ctx context.Context, id uint64, subs []uint32, batch []txn.Due, records [][]byte) error {
	for i, sub := range subs {
		key := dispatch.Key{Queue: id, Sub: sub}
		origin, err := query.OriginOf(x.o.Store, id, sub)
		if err != nil {
			return err
		}
		moves, err := x.moves(key, &origin, batch, records)
		if err != nil {
			return err
		}
		switch {
		case i == len(subs)-1:
			err = x.commit(ctx, batch, moves)
		case moves != nil:
			err = propose(ctx, x.o.Primary, moves)
		}
		if errors.Is(err, txn.ErrQueueFull) { // other messages have filled the queue in the meantime
			return &dispatch.FullError{Queue: origin.Queue, DeadLetter: origin.DeadLetterName}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// read reads the records of the first n entries, about maxExpireBytes in total, and returns n. The record of an
// acknowledged or corrupt message is nil.
func (x *expiry) read(ctx context.Context, id uint64, entries []txn.Due) (records [][]byte, n int, err error) {
	bytes := 0
	for n = 0; n < len(entries) && (n == 0 || bytes < maxExpireBytes); n++ {
		seq := entries[n].Sequence
		found, _, err := x.o.Store.Read(ctx, store.ReadRequest{
			Queue: id, From: seq, MaxMessages: 1, MaxBytes: 1, IncludeCorrupt: true,
		}, nil)
		if err != nil {
			return nil, 0, err
		}
		var rec []byte
		if len(found) == 1 && found[0].Sequence == seq {
			rec = found[0].Record
		}
		records = append(records, rec)
		bytes += len(rec)
	}
	return records, n, nil
}

// moves returns a function that moves messages to the dead-letter queue in a transaction: those that the subscription
// still needs, except corrupt ones. The function is nil if there are no such messages, or if the subscription has no
// dead-letter queue. If some of them do not fit into the dead-letter queue, the error is a *dispatch.FullError.
func (x *expiry) moves(
	key dispatch.Key, origin *query.Origin, entries []txn.Due, records [][]byte,
) (func(*txn.Builder), error) {
	if origin.DeadLetter == txn.NoQueue {
		return nil, nil //nolint:nilnil // nothing to move
	}
	now, room := time.Now().UnixMilli(), query.RoomIn(x.o.Store, origin.DeadLetter)
	var sequences []uint64
	var moved [][]byte
	for i, e := range entries {
		deliveries, needs := query.Needs(x.o.Store, key.Queue, key.Sub, e.Sequence)
		if !needs || records[i] == nil {
			continue
		}
		rec, err := txn.Relabel(records[i], &txn.DeadLetter{
			Queue: origin.Queue, Subscription: origin.Subscription, Sequence: e.Sequence, Reason: txn.DeadExpired,
			Deliveries: deliveries, MovedMS: now,
		})
		if err != nil {
			return nil, err
		}
		if !room.Add(len(rec)) {
			return nil, &dispatch.FullError{
				Queue: origin.Queue, DeadLetter: origin.DeadLetterName, Oversized: room.Never(len(rec)),
			}
		}
		sequences, moved = append(sequences, e.Sequence), append(moved, rec)
	}
	if len(moved) == 0 {
		return nil, nil //nolint:nilnil // nothing to move
	}
	return func(b *txn.Builder) {
		b.BeginMove(key.Queue, key.Sub, origin.DeadLetter)
		for i, rec := range moved {
			b.Move(sequences[i], rec)
		}
		b.EndMove()
	}, nil
}

// commit removes messages from the queue. If moves is not nil, the same transaction contains the moves. After the
// commit, commit pauses.
func (x *expiry) commit(ctx context.Context, batch []txn.Due, moves func(*txn.Builder)) error {
	begin := time.Now()
	err := propose(ctx, x.o.Primary, func(b *txn.Builder) {
		if moves != nil {
			moves(b)
		}
		b.Due(batch...)
	})
	if err != nil {
		return err
	}
	byQueue := make(map[uint64][]dispatch.Range)
	for _, e := range batch {
		byQueue[e.Queue] = append(byQueue[e.Queue], dispatch.Range{First: e.Sequence, Last: e.Sequence})
	}
	for id, expired := range byQueue {
		x.o.Consumers.Acknowledged(id, expired)
	}
	pause(ctx, x.pace.pause(time.Since(begin)), nil)
	return nil
}

func (x *expiry) recordFull(id uint64, full *dispatch.FullError) {
	x.o.recordFull(x.full, id, full,
		"expired messages deferred: dead-letter queue is full; consume from it, or raise its limits")
}

// recordFull records a full dead-letter queue, and logs it the first time.
func (o *Options) recordFull(logged map[uint64]bool, id uint64, full *dispatch.FullError, message string) {
	o.Consumers.RecordFull(full)
	if !logged[id] {
		o.Log.Warn(message, zap.String("queue", full.Queue), zap.String("dead_letter_queue", full.DeadLetter),
			zap.Bool("too_large", full.Oversized))
	}
	logged[id] = true
}

const (
	minBatch = 256
	// urgencyInterval is the interval after which the batch size is quadrupled, at most twice.
	urgencyInterval = time.Minute
	// maxPause limits a pause.
	maxPause = 8 * time.Millisecond
)

// backoff limits the rate of background work. Each transaction is followed by a pause. If the work takes more than a
// minute, transactions become larger and pauses shorter.
type backoff struct{ since time.Time }

func (l *backoff) begin() { l.since = time.Now() }

func (l *backoff) urgency() int { return int(min(time.Since(l.since)/urgencyInterval, 2)) }

func (l *backoff) batch() int { return minBatch << (2 * l.urgency()) }

func (l *backoff) pause(took time.Duration) time.Duration {
	return min(took*[...]time.Duration{7, 3, 1}[l.urgency()], maxPause)
}
