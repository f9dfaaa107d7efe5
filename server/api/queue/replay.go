// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const maxReplayMessages = 256 // maximum number of messages in one transaction

// ReplayDeadLetters moves dead letters back to their origins, or to another queue.
func (s *Service) ReplayDeadLetters(
	ctx context.Context, req *pb.ReplayDeadLettersRequest,
) (*pb.ReplayDeadLettersResponse, error) {
	resp, err := s.replayDeadLetters(ctx, req)
	if err != nil {
		return nil, s.status(fmt.Errorf("replay the dead letters of %q: %w", req.GetQueue(), err))
	}
	return resp, nil
}

func (s *Service) replayDeadLetters(
	ctx context.Context, req *pb.ReplayDeadLettersRequest,
) (*pb.ReplayDeadLettersResponse, error) {
	if err := s.rules.Check(ctx, access.Manage, req.GetQueue()); err != nil {
		return nil, err
	}
	session, err := s.sessionWith(failover.FeatureDeadLetters)
	if err != nil {
		return nil, err
	}
	r := replay{service: s, session: session}
	if r.key.Queue, r.key.Sub, err = s.findSub(req.GetQueue(), req.GetSubscription()); err != nil {
		return nil, withSubscription(err, req.GetSubscription())
	}
	if err := r.setTarget(ctx, req.GetTo()); err != nil {
		return nil, err
	}
	return r.run(ctx, &pb.Search{
		Filter: req.GetFilter(), FromSequence: req.GetFromSequence(), BeforeSequence: req.GetBeforeSequence(),
	}, req.GetLimit())
}

type replay struct {
	service *Service
	session *session.Session
	key     dispatch.Key
	to      uint64 // ID of the target queue; txn.NoQueue selects the origin of each message
	resp    pb.ReplayDeadLettersResponse
}

// setTarget sets the target queue. If name is empty, the target of each message is its origin.
func (r *replay) setTarget(ctx context.Context, name string) (err error) {
	if name == "" {
		return nil
	}
	if err := r.service.rules.Check(ctx, access.Publish, name); err != nil {
		return fmt.Errorf("to: %w", err)
	}
	if r.to, err = r.service.find(name); err != nil {
		return fmt.Errorf("to %q: %w", name, crossPair(err))
	}
	if r.to == r.key.Queue {
		return fmt.Errorf("%w: %q is the source queue; specify another queue", apierror.ErrInvalid, name)
	}
	return nil
}

// run moves the messages that the subscription contains at the start of the call. It ignores messages that are
// published later. With a filter, it stops at the limits of one call.
func (r *replay) run(ctx context.Context, which *pb.Search, limit uint64) (*pb.ReplayDeadLettersResponse, error) {
	q := search{
		service: r.service, session: r.session, records: true,
		read: store.ReadRequest{Queue: r.key.Queue, Sub: r.key.Sub, Delayed: true},
	}
	if err := q.begin(which); err != nil {
		return nil, err
	}
	if limit == 0 {
		limit = q.before
	}
	for !q.done() && !q.exhausted() && r.resp.GetMoved() < limit {
		if r.service.serving.DiskLow() {
			return nil, apierror.ErrDiskLow
		}
		most := min(limit-r.resp.GetMoved(), maxReplayMessages)
		batch, corrupt, err := q.step(ctx, session.DeliveryBatchBytes, most)
		if err != nil {
			return nil, err
		}
		r.resp.Skipped += uint64(len(corrupt))
		if err := r.moveFittingPrefix(ctx, batch); err != nil {
			return nil, r.failure(err)
		}
	}
	if q.filter != nil {
		r.resp.Progress = q.progress()
	}
	return &r.resp, nil
}

// failure adds the number of moved messages to an error. After an error of the node, or if the owner of a queue is
// unknown, the outcome of the request is reported as unknown if earlier batches were executed.
func (r *replay) failure(err error) error {
	moved := r.resp.GetMoved()
	switch {
	case moved == 0:
		return err
	case apierror.ConcernsNode(err), apierror.ConcernsOwner(err):
		return fmt.Errorf("%w: failed after %d moved messages: %w", replication.ErrOutcomeUnknown, moved, err)
	default:
		return fmt.Errorf("failed after %d moved messages: %w", moved, err)
	}
}

// moveFittingPrefix moves the messages of a batch that precede the first message that does not fit into its target
// queue. If a message does not fit, it returns txn.ErrQueueFull.
func (r *replay) moveFittingPrefix(ctx context.Context, batch []store.Delivery) error {
	skipped := r.resp.GetSkipped()
	err := r.move(ctx, batch)
	if !errors.Is(err, txn.ErrQueueFull) || len(batch) == 1 {
		return err
	}
	r.resp.Skipped = skipped // the retries count the skipped messages again
	half := len(batch) / 2
	if err := r.moveFittingPrefix(ctx, batch[:half]); err != nil {
		return err
	}
	return r.moveFittingPrefix(ctx, batch[half:])
}

func (r *replay) move(ctx context.Context, batch []store.Delivery) error {
	var targets []uint64 // in the order of their first message
	moves := make(map[uint64][]dispatch.Message)
	var acks []txn.Range
	for _, m := range batch {
		target, rec, err := r.relabel(ctx, m)
		if err != nil {
			return err
		}
		if target == txn.NoQueue {
			r.resp.Skipped++
			continue
		}
		if moves[target] == nil {
			targets = append(targets, target)
		}
		moves[target] = append(moves[target], dispatch.Message{Sequence: m.Sequence, Record: rec})
		acks = append(acks, txn.Range{First: m.Sequence, Last: m.Sequence})
	}
	if len(targets) == 0 {
		return nil
	}
	var b txn.Builder
	b.Begin(nil, now(), nil)
	for _, target := range targets {
		b.BeginMove(r.key.Queue, r.key.Sub, target)
		for _, m := range moves[target] {
			b.Move(m.Sequence, m.Record)
		}
		b.EndMove()
	}
	result, err := r.commit(ctx, &b, len(targets))
	if err != nil {
		return err
	}
	for i, target := range targets {
		changed := result.Ops[i].Changed
		r.resp.Moved += changed
		// The others were acknowledged in the meantime, or a prepared transaction holds them.
		r.resp.Skipped += uint64(len(moves[target])) - changed
	}
	r.session.Consumers.Settled(r.key, acks, nil)
	return nil
}

func (r *replay) commit(ctx context.Context, b *txn.Builder, ops int) (*txn.Result, error) {
	payload, err := b.Finish()
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	result, err := r.session.Primary.Commit(ctx, payload)
	if err == nil {
		err = result.Err()
	}
	if err == nil && len(result.Ops) != ops {
		err = fmt.Errorf("%w: %d results of %d operations", txn.ErrMalformed, len(result.Ops), ops)
	}
	return result, err
}

// expires reports whether a message is older than the TTL of a target queue, which would expire it immediately.
func (r *replay) expires(target uint64, m *txn.Message) bool {
	ttl := query.TTL(r.service.store, target)
	return ttl > 0 && now()-m.TimestampMS >= ttl
}

// relabel returns the target queue of a message, and its record without the dead-letter information. If the
// message cannot be moved, the target is txn.NoQueue.
func (r *replay) relabel(ctx context.Context, m store.Delivery) (target uint64, rec []byte, err error) {
	if m.Record == nil {
		return txn.NoQueue, nil, nil // the message is corrupt
	}
	message, err := txn.DecodeMessage(m.Record)
	if err != nil {
		return txn.NoQueue, nil, fmt.Errorf("sequence %d: %w", m.Sequence, err)
	}
	target = r.to
	if l := message.DeadLetter(); l != nil && target == txn.NoQueue {
		found, err := r.service.lookup(l.Queue, "")
		switch {
		case isElsewhere(err), err == nil && found.QueueID == r.key.Queue:
			return txn.NoQueue, nil, nil
		case err != nil:
			return txn.NoQueue, nil, fmt.Errorf("sequence %d: %w", m.Sequence, err)
		}
		if err := r.service.rules.Check(ctx, access.Publish, l.Queue); err != nil {
			return txn.NoQueue, nil, fmt.Errorf("sequence %d: %w", m.Sequence, err)
		}
		target = found.QueueID
	}
	if target == txn.NoQueue || r.expires(target, &message) {
		return txn.NoQueue, nil, nil
	}
	rec, err = txn.Relabel(m.Record, nil)
	if err != nil {
		return txn.NoQueue, nil, fmt.Errorf("sequence %d: %w", m.Sequence, err)
	}
	return target, rec, nil
}

// isElsewhere reports whether an error proves that this pair does not have a queue. An unknown owner is no proof.
func isElsewhere(err error) bool {
	return errors.Is(err, txn.ErrQueueNotFound) || errors.Is(err, apierror.ErrNotOwner) ||
		errors.Is(err, apierror.ErrPartitioned)
}
