// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Retries of MoveMessages and RemoveMessages with sequences are idempotent: messages that an earlier attempt moved or
// removed are acknowledged, so they are skipped. A retry with a search selects from the remaining messages.

const (
	maxChosen          = 10_000  // maximum number of sequences in a request
	maxBatchDeliveries = 262_144 // maximum number of acknowledgements in a transaction
	maxDecisions       = 16      // maximum number of attempts if consumers acknowledge some of the messages
)

// MoveMessages moves selected messages to another queue, or moves dead letters back to their origins.
func (s *Service) MoveMessages(ctx context.Context, req *pb.MoveMessagesRequest) (*pb.MoveMessagesResponse, error) {
	resp, err := s.moveMessages(ctx, req)
	if err != nil {
		return nil, s.status(fmt.Errorf("move messages of %q: %w", req.GetQueue(), err))
	}
	return resp, nil
}

func (s *Service) moveMessages(ctx context.Context, req *pb.MoveMessagesRequest) (*pb.MoveMessagesResponse, error) {
	c, err := s.choose(ctx, req, maxReplayMessages)
	if err != nil {
		return nil, err
	}
	if err := s.serving.Require(c.session, failover.FeatureDeadLetters); err != nil {
		return nil, err
	}
	if err := c.setTarget(ctx, req.GetTo()); err != nil {
		return nil, err
	}
	for decisions := 1; ; decisions++ {
		moved, err := c.move(ctx)
		raced := errors.Is(err, txn.ErrAlreadyAcknowledged) || errors.Is(err, txn.ErrReserved)
		if raced && decisions < maxDecisions {
			continue // consumers have acknowledged some messages, so plan the others again
		}
		if err != nil {
			return nil, err
		}
		return &pb.MoveMessagesResponse{Moved: moved, Skipped: c.count - moved, Progress: c.progress}, nil
	}
}

// RemoveMessages acknowledges selected messages for one or all subscriptions.
func (s *Service) RemoveMessages(
	ctx context.Context, req *pb.RemoveMessagesRequest,
) (*pb.RemoveMessagesResponse, error) {
	c, err := s.choose(ctx, req, maxChosen)
	var removed uint64
	if err == nil {
		removed, err = c.remove(ctx)
	}
	if err != nil {
		return nil, s.status(fmt.Errorf("remove messages of %q: %w", req.GetQueue(), err))
	}
	return &pb.RemoveMessagesResponse{Removed: removed, Progress: c.progress}, nil
}

func (c *chosen) remove(ctx context.Context) (removed uint64, err error) {
	pending, err := c.pending()
	if err != nil || len(pending) == 0 {
		return 0, err
	}
	acks := make(map[uint32][]txn.Range)
	for _, m := range pending {
		for _, sub := range m.Subs {
			acks[sub] = appendSequence(acks[sub], m.Sequence)
		}
	}
	var b txn.Builder
	b.Begin(nil, now(), nil)
	subs := slices.Sorted(maps.Keys(acks))
	for _, sub := range subs {
		b.Ack(c.key.Queue, sub, acks[sub]...)
	}
	result, err := c.commit(ctx, &b, len(subs))
	if err != nil {
		return 0, err
	}
	for i, sub := range subs {
		removed = max(removed, result.Ops[i].Changed)
		c.session.Consumers.Settled(dispatch.Key{Queue: c.key.Queue, Sub: sub}, acks[sub], nil)
	}
	return removed, nil
}

type chosen struct {
	replay

	ranges   []txn.Range // ascending and without overlaps
	count    uint64      // number of sequences in ranges
	progress *pb.SearchProgress
}

// choose selects the messages of a request: those with the requested sequences, or at most `most` messages of a
// search.
func (s *Service) choose(ctx context.Context, req interface {
	GetQueue() string
	GetSubscription() string
	GetQueueId() uint64
	GetSequences() []*pb.SequenceRange
	GetSearch() *pb.Search
}, most uint64,
) (*chosen, error) {
	if err := s.rules.Check(ctx, access.Manage, req.GetQueue()); err != nil {
		return nil, err
	}
	c := &chosen{replay: replay{service: s}}
	var err error
	if c.session, err = s.serving.Session(); err != nil {
		return nil, err
	}
	switch which := req.GetSearch(); {
	case which != nil && len(req.GetSequences()) > 0:
		return nil, fmt.Errorf("%w: sequences and a search; specify one of them", apierror.ErrInvalid)
	case which != nil && which.GetFilter() == "":
		return nil, fmt.Errorf("%w: search without a filter", apierror.ErrInvalid)
	case which == nil && len(req.GetSequences()) == 0:
		return nil, fmt.Errorf("%w: no sequences specified", apierror.ErrInvalid)
	}
	if c.ranges, err = ranges(req.GetSequences(), maxChosen); err != nil {
		return nil, err
	}
	c.ranges = union(c.ranges)
	for _, r := range c.ranges {
		if r.Last-r.First >= maxChosen-c.count {
			return nil, fmt.Errorf("%w: more than %d sequences; use several requests", txn.ErrTooLarge, maxChosen)
		}
		c.count += r.Last - r.First + 1
	}
	if req.GetSubscription() == "" {
		c.key.Queue, err = s.find(req.GetQueue())
	} else {
		c.key.Queue, c.key.Sub, err = s.findSub(req.GetQueue(), req.GetSubscription())
	}
	if err != nil {
		return nil, withSubscription(err, req.GetSubscription())
	}
	if err := checkQueueID(c.key.Queue, req.GetQueueId()); err != nil || req.GetSearch() == nil {
		return c, err
	}
	if err := c.find(ctx, req.GetSearch(), most); err != nil {
		return nil, err
	}
	return c, nil
}

// find selects the first messages of a search, at most `most`. It stops earlier when more messages might not fit in
// one transaction, or at the limits of one call.
func (c *chosen) find(ctx context.Context, which *pb.Search, most uint64) error {
	q := search{
		service: c.service, session: c.session,
		read: store.ReadRequest{Queue: c.key.Queue, Sub: c.key.Sub, Delayed: true},
	}
	if err := q.begin(which); err != nil {
		return err
	}
	maxBytes := min(session.DeliveryBatchBytes, int(c.service.limits.Load().TransactionBytes)/2)
	sizeBytes := 0
	for !q.done() && !q.exhausted() && c.count < most && sizeBytes < maxBytes {
		found, _, err := q.step(ctx, session.DeliveryBatchBytes, most-c.count)
		if err != nil {
			return err
		}
		for _, m := range found {
			if sizeBytes += len(m.Record); sizeBytes > maxBytes && c.count > 0 {
				q.from = m.Sequence
				break
			}
			c.ranges = appendSequence(c.ranges, m.Sequence)
			c.count++
		}
	}
	c.progress = q.progress()
	return nil
}

func (c *chosen) pending() ([]query.Pending, error) {
	if c.session.Paused() { // INV-2: the data read may be stale
		return nil, apierror.ErrPaused
	}
	return query.PendingMessages(c.service.store, c.key.Queue, c.key.Sub, c.ranges, maxChosen)
}

// move moves the remaining messages in one transaction and returns their number. A message of several subscriptions
// is moved from the first of them and acknowledged for the others. If the message is already acknowledged for the
// first subscription, the whole transaction is refused.
func (c *chosen) move(ctx context.Context) (moved uint64, err error) {
	pending, err := c.pending()
	if err != nil || len(pending) == 0 {
		return 0, err
	}
	if c.service.serving.DiskLow() {
		return 0, apierror.ErrDiskLow
	}
	plan, err := c.plan(ctx, pending)
	if err != nil || len(plan.moves) == 0 {
		return 0, err
	}
	var b txn.Builder
	b.Begin(nil, now(), nil)
	ops := plan.append(&b, c.key.Queue)
	if ops > txn.MaxOps {
		return 0, fmt.Errorf("%w: %d operations exceed the transaction limit of %d; move fewer messages per request",
			txn.ErrTooLarge, ops, txn.MaxOps)
	}
	result, err := c.commit(ctx, &b, ops)
	if err != nil {
		return 0, err
	}
	for i := range plan.moves {
		moved += result.Ops[i].Changed
	}
	for sub, acks := range plan.acks {
		c.session.Consumers.Settled(dispatch.Key{Queue: c.key.Queue, Sub: sub}, acks, nil)
	}
	for sub, takes := range plan.from {
		c.session.Consumers.Settled(dispatch.Key{Queue: c.key.Queue, Sub: sub}, takes, nil)
	}
	return moved, nil
}

type movePlan struct {
	moves []moveGroup
	// from contains the messages to move from each subscription. acks contains the messages to acknowledge for a
	// subscription.
	from, acks map[uint32][]txn.Range
	required   bool // the transaction is refused if a message in from is already acknowledged
}

type moveGroup struct {
	sub      uint32
	target   uint64
	messages []dispatch.Message
}

func (c *chosen) plan(ctx context.Context, pending []query.Pending) (*movePlan, error) {
	p := &movePlan{from: make(map[uint32][]txn.Range), acks: make(map[uint32][]txn.Range)}
	sizeBytes, taken := 0, 0
	for len(pending) > 0 {
		run := 1
		for run < len(pending) && run < maxReplayMessages && pending[run].Sequence == pending[0].Sequence+uint64(run) {
			run++
		}
		batch, _, err := c.service.store.Read(ctx, store.ReadRequest{
			Queue: c.key.Queue, From: pending[0].Sequence, MaxMessages: run, MaxBytes: session.DeliveryBatchBytes,
			IncludeCorrupt: true,
		}, nil)
		if err != nil {
			return nil, err
		}
		done := 0
		for ; done < len(batch) && done < run && batch[done].Sequence <= pending[run-1].Sequence; done++ {
			m := batch[done]
			at := int(m.Sequence - pending[0].Sequence) // batch may lack some sequences of pending
			target, rec, err := c.relabel(ctx, m)
			if err != nil {
				return nil, err
			}
			if target == txn.NoQueue {
				continue
			}
			taken += len(pending[at].Subs)
			if sizeBytes += len(rec); taken > maxBatchDeliveries {
				return nil, fmt.Errorf("%w: more than %d acknowledgements over all subscriptions; move fewer "+
					"messages per request", txn.ErrTooLarge, maxBatchDeliveries)
			}
			if err := c.service.checkTransactionBytes(sizeBytes); err != nil {
				return nil, fmt.Errorf("move fewer messages per request: %w", err)
			}
			p.add(pending[at].Subs, target, dispatch.Message{Sequence: m.Sequence, Record: rec})
		}
		if done == 0 {
			pending = pending[run:] // these messages were acknowledged in the meantime
			continue
		}
		read := int(batch[done-1].Sequence-pending[0].Sequence) + 1
		pending = pending[read:]
	}
	if p.required {
		if err := c.service.serving.Require(c.session, failover.FeatureQueues); err != nil {
			return nil, fmt.Errorf("the queue has several subscriptions: %w", err)
		}
	}
	return p, nil
}

func (p *movePlan) add(subs []uint32, target uint64, m dispatch.Message) {
	at := slices.IndexFunc(p.moves, func(g moveGroup) bool { return g.sub == subs[0] && g.target == target })
	if at < 0 {
		at, p.moves = len(p.moves), append(p.moves, moveGroup{sub: subs[0], target: target})
	}
	p.moves[at].messages = append(p.moves[at].messages, m)
	p.from[subs[0]] = appendSequence(p.from[subs[0]], m.Sequence)
	for _, other := range subs[1:] {
		p.acks[other] = appendSequence(p.acks[other], m.Sequence)
		p.required = true
	}
}

// append adds the operations of the plan to a transaction, the moves first. It returns the number of operations.
func (p *movePlan) append(b *txn.Builder, queue uint64) (ops int) {
	for _, g := range p.moves {
		b.BeginMove(queue, g.sub, g.target)
		for _, m := range g.messages {
			b.Move(m.Sequence, m.Record)
		}
		b.EndMove()
	}
	ops = len(p.moves)
	if !p.required {
		return ops
	}
	// These operations are checked before the moves are applied, and have no effect after the moves.
	for _, sub := range slices.Sorted(maps.Keys(p.from)) {
		b.Take(queue, sub, p.from[sub]...)
	}
	for _, sub := range slices.Sorted(maps.Keys(p.acks)) {
		b.Ack(queue, sub, p.acks[sub]...)
	}
	return ops + len(p.from) + len(p.acks)
}

func appendSequence(to []txn.Range, sequence uint64) []txn.Range {
	if n := len(to); n > 0 && to[n-1].Last+1 == sequence {
		to[n-1].Last = sequence
		return to
	}
	return append(to, txn.Range{First: sequence, Last: sequence})
}

// union sorts ranges, and merges ranges that overlap or are adjacent. It reuses the memory of the argument.
func union(in []txn.Range) []txn.Range {
	slices.SortFunc(in, func(a, b txn.Range) int { return cmp.Compare(a.First, b.First) })
	out := in[:0]
	for _, r := range in {
		if n := len(out); n > 0 && r.First-1 <= out[n-1].Last {
			out[n-1].Last = max(out[n-1].Last, r.Last)
			continue
		}
		out = append(out, r)
	}
	return out
}
