// SPDX-License-Identifier: Apache-2.0

// Package session implements the session in which an active node serves clients.
package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/server/delivery/expiry"
	"github.com/lockstep-mq/lockstep/server/delivery/filter"
	"github.com/lockstep-mq/lockstep/server/delivery/twophase"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// DeliveryBatchBytes is the approximate maximum size of one gRPC message to a consumer or to a client that browses.
	DeliveryBatchBytes = 1 << 20
	outboxBytes        = 4 << 20
	// The connections of all consumers may buffer at most limits.pending-bytes divided by waitingFraction, or outboxBytes
	// if that is more.
	waitingFraction = 4
	settleRetry     = 50 * time.Millisecond
)

// Session serves clients in one term in which the node is active.
type Session struct {
	Primary   *replication.Primary
	Consumers *dispatch.Registry
	Prepared  *twophase.Manager
	expiry    *expiry.Runner
	store     *store.Store

	// features contains the names of the features that Require found on both nodes.
	features sync.Map

	paused atomic.Bool
	once   sync.Once
	ended  chan struct{}
	reason error // set before ended is closed
}

// Options configures NewSession.
type Options struct {
	Limits config.Limits
	// Counters counts deliveries, if it is not nil.
	Counters *dispatch.Counters
	// Deleted, if not nil, is called after the deletion of a temporary queue in a fleet, with the ownership epoch of the
	// queue. It must not block.
	Deleted func(queue string, epoch uint64)
}

// NewSession creates the session of a primary. The caller must call End or Leave.
func NewSession(p *replication.Primary, s *store.Store, o Options, logger *zap.Logger) *Session {
	load := newPressure(p.CommitLSN)
	limits := deliveryLimits(o.Limits)
	limits.Busy, limits.Counters = load.Busy, o.Counters
	session := &Session{
		Primary: p, ended: make(chan struct{}), store: s,
		Consumers: dispatch.NewRegistry(storeSource{s}, settler{p, s, load}, limits, logger),
	}
	s.OnDue(session.due)
	session.Prepared = twophase.New(s, p, session.Consumers, logger)
	session.expiry = expiry.New(expiry.Options{
		Store: s, Primary: p, Consumers: session.Consumers, Log: logger, More: []expiry.Task{session.Prepared},
		Deleted: o.Deleted,
	})
	return session
}

func deliveryLimits(l config.Limits) dispatch.Limits {
	return dispatch.Limits{
		Consumers: l.Consumers, Outstanding: l.Outstanding, BatchBytes: DeliveryBatchBytes, OutboxBytes: outboxBytes,
		BufferedBytes: int(max(l.PendingBytes.Bytes()/waitingFraction, outboxBytes)),
		CPUFraction:   float64(l.DeliveryShare) / 100,
	}
}

// SetLimits changes the limits of deliveries.
func (s *Session) SetLimits(l config.Limits) { s.Consumers.SetLimits(deliveryLimits(l)) }

// SetPaused pauses or resumes all deliveries. No delivery begins after SetPaused(true) has returned (INV-2).
func (s *Session) SetPaused(paused bool) {
	s.paused.Store(paused)
	s.Consumers.SetPaused(paused)
}

// Paused reports whether deliveries are paused.
func (s *Session) Paused() bool { return s.paused.Load() }

// End ends all consumers and streams with the given reason, stops the primary, and waits for the dispatchers and
// tasks.
func (s *Session) End(reason error) {
	s.stop(reason)
	s.Primary.Stop()
	s.wait()
}

// Leave is like End, but does not stop the primary. The primary must already reject transactions.
func (s *Session) Leave(reason error) {
	s.stop(reason)
	s.wait()
}

func (s *Session) stop(reason error) {
	s.once.Do(func() {
		s.reason = reason
		close(s.ended)
	})
	s.expiry.Cancel()
	s.Consumers.Stop(reason)
}

func (s *Session) wait() {
	s.expiry.Wait()
	s.store.OnDue(nil)
	s.Consumers.Wait()
}

func (s *Session) due(messages []queue.DueMessage) {
	for len(messages) > 0 {
		of := messages[0].Queue
		var sequences []uint64
		for ; len(messages) > 0 && messages[0].Queue == of; messages = messages[1:] {
			sequences = append(sequences, messages[0].Sequence)
		}
		s.Consumers.Due(of, sequences)
	}
}

// Ended returns a channel that is closed when the session ends, before the consumers have stopped. After that, Reason
// returns the reason.
func (s *Session) Ended() <-chan struct{} { return s.ended }

// Reason returns why the session ended. It must be called only after the channel of Ended is closed.
func (s *Session) Reason() error { return s.reason }

// storeSource adapts the store to dispatch.Source.
type storeSource struct{ store *store.Store }

func (s storeSource) Read(
	ctx context.Context, key dispatch.Key, from uint64, maxMessages, maxBytes int, dst []dispatch.Message,
) ([]dispatch.Message, uint64, error) {
	return s.store.Read(ctx, store.ReadRequest{
		Queue: key.Queue, Sub: key.Sub, From: from, MaxMessages: maxMessages, MaxBytes: maxBytes, IncludeCorrupt: true,
	}, dst)
}

func (s storeSource) ReadPriorities(
	ctx context.Context, key dispatch.Key, lanes *store.Lanes, maxMessages, maxBytes int, dst []dispatch.Message,
) ([]dispatch.Message, uint64, error) {
	return s.store.Read(ctx, store.ReadRequest{
		Queue: key.Queue, Sub: key.Sub, Lanes: lanes, MaxMessages: maxMessages, MaxBytes: maxBytes, IncludeCorrupt: true,
	}, dst)
}

func (s storeSource) Priorities(id uint64, sequences []uint64) []uint8 {
	return query.Priorities(s.store, id, sequences)
}

func (s storeSource) TTL(id uint64) int64 { return query.TTL(s.store, id) }

func (s storeSource) Paused(key dispatch.Key) bool { return query.Paused(s.store, key.Queue, key.Sub) }

func (s storeSource) AckTimeout(key dispatch.Key) time.Duration {
	return time.Duration(query.AckTimeout(s.store, key.Queue, key.Sub)) * time.Millisecond
}

func (s storeSource) RedeliveryDelays(key dispatch.Key, sequences []uint64) []time.Duration {
	return query.RedeliveryDelays(s.store, key.Queue, key.Sub, sequences)
}

func (s storeSource) Order(id uint64) (prioritized, exclusive bool) {
	return query.DeliveryOrder(s.store, id)
}

func (s storeSource) NextSequence(id uint64) (next uint64, ok bool) {
	return query.NextSequence(s.store, id)
}

func (s storeSource) MaxDeliveries(key dispatch.Key) uint64 {
	return query.MaxDeliveries(s.store, key.Queue, key.Sub)
}

func (s storeSource) Filters() uint64 { return s.store.Filters() }

func (s storeSource) Exhausted(key dispatch.Key, sequences []uint64) []uint64 {
	return query.Exhausted(s.store, key.Queue, key.Sub, sequences)
}

func (s storeSource) Filter(key dispatch.Key) (func([]byte) bool, error) {
	text := query.Filter(s.store, key.Queue, key.Sub)
	if text == "" {
		return nil, nil //nolint:nilnil // no filter: all messages match
	}
	f, err := filter.Compile(text)
	if err != nil {
		return nil, fmt.Errorf("%q, accepted by another release: %w", text, err)
	}
	return f.Match, nil
}

func (s storeSource) Watch(id uint64) (<-chan struct{}, func()) { return s.store.Watch(id) }

type settler struct {
	primary *replication.Primary
	store   *store.Store
	load    *pressure
}

// Settle commits acks and releases. While the node is blocked, it waits.
func (s settler) Settle(ctx context.Context, key dispatch.Key, acks, releases []dispatch.Range) error {
	return s.commit(ctx, func(b *txn.Builder) {
		if len(acks) > 0 {
			b.Ack(key.Queue, key.Sub, acks...)
		}
		if len(releases) > 0 {
			b.Release(key.Queue, key.Sub, releases...)
		}
	})
}

// Move moves dead messages to the dead-letter queue. Without a dead-letter queue, it discards them. If some messages
// do not fit, it returns their sequences and a *dispatch.FullError.
func (s settler) Move(ctx context.Context, key dispatch.Key, dead []dispatch.Dead) (waiting []uint64, err error) {
	from, err := query.OriginOf(s.store, key.Queue, key.Sub)
	if err != nil {
		return nil, err
	}
	var records [][]byte // nil if the messages are discarded
	full := &dispatch.FullError{Queue: from.Queue, DeadLetter: from.DeadLetterName}
	if from.DeadLetter != txn.NoQueue {
		if records, err = relabeled(&from, dead); err != nil {
			return nil, err
		}
		dead, records, waiting, full.Oversized = fitting(query.RoomIn(s.store, from.DeadLetter), dead, records)
	}
	for len(dead) > 0 {
		err = s.moveAll(ctx, key, from.DeadLetter, dead, records)
		if !errors.Is(err, txn.ErrQueueFull) {
			break
		}
		// The queue has filled up in the meantime. The first half of the messages may still fit.
		half := len(dead) / 2
		for _, m := range dead[half:] {
			waiting = append(waiting, m.Sequence)
		}
		dead, records, full.Oversized, err = dead[:half], records[:half], false, nil
	}
	if err != nil || len(waiting) == 0 {
		return nil, err
	}
	slices.Sort(waiting)
	return waiting, full
}

func relabeled(from *query.Origin, dead []dispatch.Dead) (records [][]byte, err error) {
	now := time.Now().UnixMilli()
	for i := range dead {
		m := &dead[i]
		rec, err := txn.Relabel(m.Record, &txn.DeadLetter{
			Queue: from.Queue, Subscription: from.Subscription, Sequence: m.Sequence, Reason: m.Reason,
			Deliveries: m.Deliveries, MovedMS: now,
		})
		if err != nil {
			return nil, fmt.Errorf("sequence %d: %w", m.Sequence, err)
		}
		records = append(records, rec)
	}
	return records, nil
}

// fitting returns the oldest dead messages that fit, their records, and the sequences of the remaining messages.
// never reports whether none of the remaining messages can ever fit. In that case, they do not block other messages.
func fitting(
	room queue.Room, dead []dispatch.Dead, records [][]byte,
) (fit []dispatch.Dead, fitRecords [][]byte, waiting []uint64, never bool) {
	never = true
	for i, rec := range records {
		switch {
		case room.Never(len(rec)):
			waiting = append(waiting, dead[i].Sequence)
		case never && room.Add(len(rec)):
			fit, fitRecords = append(fit, dead[i]), append(fitRecords, rec)
		default:
			never = false // later messages would overtake this one
			waiting = append(waiting, dead[i].Sequence)
		}
	}
	return fit, fitRecords, waiting, never
}

func (s settler) moveAll(
	ctx context.Context, key dispatch.Key, target uint64, dead []dispatch.Dead, records [][]byte,
) error {
	return s.commit(ctx, func(b *txn.Builder) {
		b.BeginMove(key.Queue, key.Sub, target)
		for i := range dead {
			var rec []byte
			if records != nil {
				rec = records[i]
			}
			b.Move(dead[i].Sequence, rec)
		}
		b.EndMove()
	})
}

// commit commits a transaction. It waits while the node is blocked.
func (s settler) commit(ctx context.Context, fill func(*txn.Builder)) error {
	payload, err := txn.Build(time.Now(), fill)
	if err != nil {
		return fmt.Errorf("encode the outcomes of consumers: %w", err)
	}
	for {
		s.load.settling.Add(1)
		result, err := s.primary.Commit(ctx, payload)
		if err == nil {
			return result.Err()
		}
		s.load.settling.Add(-1)
		if !errors.Is(err, replication.ErrBlocked) || ctx.Err() != nil {
			return err
		}
		timer := time.NewTimer(settleRetry)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}
