// SPDX-License-Identifier: Apache-2.0

package serving

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
	"github.com/lockstep-mq/lockstep/server/dispatch"
	"github.com/lockstep-mq/lockstep/server/filter"
	"github.com/lockstep-mq/lockstep/server/prepared"
	"github.com/lockstep-mq/lockstep/server/sweep"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// DeliveryBatchBytes is about how much one message to a consumer or browser holds.
	DeliveryBatchBytes = 1 << 20
	// outboxBytes is about how much waits for a slow consumer's connection.
	outboxBytes = 4 << 20
	// waitingShare is the part of limits.pending-bytes that may wait for the connections of all consumers.
	waitingShare = 4
	// settleRetry is how often acknowledgements that a blocked node did not take are tried again.
	settleRetry = 50 * time.Millisecond
)

// Session is what a node serves clients with while it is active, in one term.
type Session struct {
	// Primary commits.
	Primary *replication.Primary
	// Consumers are those attached.
	Consumers *dispatch.Registry
	// Prepared has transactions prepared and decided.
	Prepared *prepared.Manager
	// sweeper does what is due by the clock.
	sweeper *sweep.Sweeper
	store   *store.Store

	// features, by name, that both nodes have been seen to know.
	features sync.Map

	paused atomic.Bool
	once   sync.Once
	ended  chan struct{}
	reason error // set before ended is closed
}

// NewSession makes the session of a primary. What is delivered is added to counters, unless that is nil. End must be
// called.
func NewSession(
	p *replication.Primary, s *store.Store, l config.Limits, counters *dispatch.Counters, logger *zap.Logger,
) *Session {
	load := newPressure(p.CommitLSN)
	limits := deliveryLimits(l)
	limits.Busy, limits.Counters = load.Busy, counters
	session := &Session{
		Primary: p, ended: make(chan struct{}), store: s,
		Consumers: dispatch.NewRegistry(storeSource{s}, settler{p, s, load}, limits, logger),
	}
	s.OnDue(session.due)
	session.Prepared = prepared.New(s, p, session.Consumers, logger)
	session.sweeper = sweep.New(sweep.Options{
		Store: s, Primary: p, Consumers: session.Consumers, Log: logger, More: []sweep.Task{session.Prepared},
	})
	return session
}

// deliveryLimits are the part that is about deliveries.
func deliveryLimits(l config.Limits) dispatch.Limits {
	return dispatch.Limits{
		Consumers: l.Consumers, Outstanding: l.Outstanding, BatchBytes: DeliveryBatchBytes, OutboxBytes: outboxBytes,
		WaitingBytes: int(max(l.PendingBytes.Bytes()/waitingShare, outboxBytes)),
		Share:        float64(l.DeliveryShare) / 100,
	}
}

// SetLimits changes the limits of deliveries.
func (s *Session) SetLimits(l config.Limits) { s.Consumers.SetLimits(deliveryLimits(l)) }

// SetPaused stops all deliveries, or lets them go on. No delivery begins after SetPaused(true) has returned (INV-2).
func (s *Session) SetPaused(paused bool) {
	s.paused.Store(paused)
	s.Consumers.SetPaused(paused)
}

// Paused tells whether nothing may be delivered.
func (s *Session) Paused() bool { return s.paused.Load() }

// End ends all consumers and streams with the given reason, stops the primary, and waits for the dispatchers and the
// sweeper. The order matters: a task may wait for a commit regardless of its context, and only the primary's Stop
// answers that one.
func (s *Session) End(reason error) {
	s.once.Do(func() {
		s.reason = reason
		close(s.ended)
	})
	s.sweeper.Cancel()
	s.Consumers.Stop(reason)
	s.Primary.Stop()
	s.sweeper.Wait()
	s.store.OnDue(nil)
	s.Consumers.Wait()
}

// due hands messages over to the dispatchers that have become deliverable.
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

// Ended is closed when the session has ended; Reason then tells why.
func (s *Session) Ended() <-chan struct{} { return s.ended }

// Reason tells why the session ended. Only to be called after Ended is closed.
func (s *Session) Reason() error { return s.reason }

// storeSource is the store as a dispatcher sees it.
type storeSource struct{ store *store.Store }

// Read reads what a subscription has not acknowledged.
func (s storeSource) Read(
	ctx context.Context, key dispatch.Key, from uint64, maxMessages, maxBytes int, dst []dispatch.Message,
) ([]dispatch.Message, uint64, error) {
	return s.store.Read(ctx, store.ReadRequest{
		Queue: key.Queue, Sub: key.Sub, From: from, MaxMessages: maxMessages, MaxBytes: maxBytes, MarkDamaged: true,
	}, dst)
}

// ReadLanes reads what a subscription of a queue with priorities has not acknowledged.
func (s storeSource) ReadLanes(
	ctx context.Context, key dispatch.Key, lanes *store.Lanes, maxMessages, maxBytes int, dst []dispatch.Message,
) ([]dispatch.Message, uint64, error) {
	return s.store.Read(ctx, store.ReadRequest{
		Queue: key.Queue, Sub: key.Sub, Lanes: lanes, MaxMessages: maxMessages, MaxBytes: maxBytes, MarkDamaged: true,
	}, dst)
}

// Priorities of messages.
func (s storeSource) Priorities(id uint64, sequences []uint64) []uint8 {
	return s.store.Priorities(id, sequences)
}

// TTL is how long after it came to the queue a message expires.
func (s storeSource) TTL(id uint64) int64 { return s.store.TTL(id) }

// RedeliveryDelays returns how long messages are to wait that were given back.
func (s storeSource) RedeliveryDelays(key dispatch.Key, sequences []uint64) []time.Duration {
	return s.store.RedeliveryDelays(key.Queue, key.Sub, sequences)
}

// Order tells what the queue asks for beside the order of sequence.
func (s storeSource) Order(id uint64) (prioritized, exclusive bool) { return s.store.DeliveryOrder(id) }

// NextSequence is the sequence that the queue's next message will get.
func (s storeSource) NextSequence(id uint64) (next uint64, ok bool) {
	return s.store.NextSequence(id)
}

// MaxDeliveries is how many times a message is delivered to a subscription at most.
func (s storeSource) MaxDeliveries(key dispatch.Key) uint64 {
	return s.store.MaxDeliveries(key.Queue, key.Sub)
}

// Filters changes whenever a filter was altered.
func (s storeSource) Filters() uint64 { return s.store.Filters() }

// Exhausted returns those of the sequences that were delivered as often as they may be.
func (s storeSource) Exhausted(key dispatch.Key, sequences []uint64) []uint64 {
	return s.store.Exhausted(key.Queue, key.Sub, sequences)
}

// Filter compiles the filter of a subscription, if it has one.
func (s storeSource) Filter(key dispatch.Key) (func([]byte) bool, error) {
	text := s.store.Filter(key.Queue, key.Sub)
	if text == "" {
		return nil, nil //nolint:nilnil // it gets all messages
	}
	f, err := filter.Compile(text)
	if err != nil {
		return nil, fmt.Errorf("%q, which another release has taken: %w", text, err)
	}
	return f.Match, nil
}

// Watch tells of changes of the queue.
func (s storeSource) Watch(id uint64) (<-chan struct{}, func()) { return s.store.Watch(id) }

// settler commits what consumers acknowledge.
type settler struct {
	primary *replication.Primary
	store   *store.Store
	load    *pressure
}

// Settle commits acks and releases. A node that is blocked is waited for: the consumers keep their messages, and the
// acks are idempotent, so that an unknown outcome is no harm (a release may then count twice).
func (s settler) Settle(ctx context.Context, key dispatch.Key, acks, releases []dispatch.Range) error {
	var b txn.Builder
	b.Begin(nil, time.Now().UnixMilli(), nil)
	if len(acks) > 0 {
		b.Ack(key.Queue, key.Sub, acks...)
	}
	if len(releases) > 0 {
		b.Release(key.Queue, key.Sub, releases...)
	}
	payload, err := b.Finish()
	if err != nil {
		return fmt.Errorf("encode acknowledgements: %w", err)
	}
	return s.commit(ctx, payload)
}

// Move moves dead messages to where their queue says, as many as there is room for. One that was moved by an attempt
// with an unknown outcome is acknowledged then, and is not moved again.
func (s settler) Move(ctx context.Context, key dispatch.Key, dead []dispatch.Dead) (waiting []uint64, err error) {
	from, err := s.store.Origin(key.Queue, key.Sub)
	if err != nil {
		return nil, err
	}
	var records [][]byte // nil if they are dropped
	full := &dispatch.FullError{Queue: from.Queue, DeadLetter: from.DeadLetterName}
	if from.DeadLetter != txn.NoQueue {
		if records, err = relabeled(&from, dead); err != nil {
			return nil, err
		}
		dead, records, waiting, full.Never = fitting(s.store.RoomIn(from.DeadLetter), dead, records)
	}
	for len(dead) > 0 {
		err = s.moveAll(ctx, key, from.DeadLetter, dead, records)
		if !errors.Is(err, txn.ErrQueueFull) {
			break
		}
		// The room is taken: there may still be some for the first ones.
		half := len(dead) / 2
		for _, m := range dead[half:] {
			waiting = append(waiting, m.Sequence)
		}
		dead, records, full.Never, err = dead[:half], records[:half], false, nil
	}
	if err != nil || len(waiting) == 0 {
		return nil, err
	}
	slices.Sort(waiting)
	return waiting, full
}

// relabeled returns the records of dead messages as the dead-letter queue gets them.
func relabeled(from *store.Origin, dead []dispatch.Dead) (records [][]byte, err error) {
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

// fitting returns the dead messages that there is room for, the oldest ones, and the sequences of the others. A message
// that will never fit holds up no other; never reports that all of the others are of that kind.
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
			never = false // the others would overtake it
			waiting = append(waiting, dead[i].Sequence)
		}
	}
	return fit, fitRecords, waiting, never
}

// moveAll moves messages in one transaction.
func (s settler) moveAll(
	ctx context.Context, key dispatch.Key, target uint64, dead []dispatch.Dead, records [][]byte,
) error {
	var b txn.Builder
	b.Begin(nil, time.Now().UnixMilli(), nil)
	b.BeginMove(key.Queue, key.Sub, target)
	for i := range dead {
		var rec []byte
		if records != nil {
			rec = records[i]
		}
		b.Move(dead[i].Sequence, rec)
	}
	b.EndMove()
	payload, err := b.Finish()
	if err != nil {
		return fmt.Errorf("encode dead letters: %w", err)
	}
	return s.commit(ctx, payload)
}

// commit waits for a node that is blocked.
func (s settler) commit(ctx context.Context, payload []byte) error {
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
