// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/fleet"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/throttle"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const readMessages = 10_000

// isSource returns an error if this pair has another name.
func (m *Manager) isSource(pair string) error {
	if pair != m.o.Pair {
		return fmt.Errorf("%w: this pair is %s, not %s", fleet.ErrUnavailable, m.o.Pair, pair)
	}
	return nil
}

// fenced returns the move with an epoch if its queues are fenced at this pair. It returns an error if the move has
// another target, or is not in the state MoveFenced.
func (m *Manager) fenced(epoch uint64, to string) (move queue.Move, fenced bool, _ error) {
	move, found := query.Move(m.o.Store, epoch)
	if !found {
		return move, false, nil
	}
	if move.State != queue.MoveFenced || to != "" && move.Pair != to {
		return move, false, fmt.Errorf("%w: move %d is %s, with pair %s", apierror.ErrFleetState, epoch, move.State,
			move.Pair)
	}
	return move, true, nil
}

// Source returns the requested queues of this pair, and reports whether the move has fenced them.
func (m *Manager) Source(req *pb.GetMoveSourceRequest) (*pb.GetMoveSourceResponse, error) {
	if _, _, err := m.active(); err != nil {
		return nil, err
	}
	if err := m.isSource(req.GetPair()); err != nil {
		return nil, err
	}
	if n := len(req.GetQueues()); n > txn.MaxMoveQueues {
		return nil, fmt.Errorf("%w: %d queues, limit %d", apierror.ErrInvalid, n, txn.MaxMoveQueues)
	}
	_, fenced, err := m.fenced(req.GetEpoch(), "")
	if err != nil {
		return nil, err
	}
	resp := &pb.GetMoveSourceResponse{Fenced: fenced}
	m.o.Store.View(func(state *queue.State) {
		for _, name := range req.GetQueues() {
			q := state.QueueByName(name)
			if q == nil {
				err = fmt.Errorf("%w: %q", txn.ErrQueueNotFound, name)
				return
			}
			c := q.Config()
			resp.Queues = append(resp.Queues, &pb.MoveSourceQueue{
				Name: name, Id: q.ID(), Prioritized: c.Priorities != 0, NextSequence: q.NextSequence(),
				Messages: q.Messages(), Bytes: q.Bytes(),
			})
		}
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(resp.GetQueues(), func(a, b *pb.MoveSourceQueue) int { return cmp.Compare(a.GetId(), b.GetId()) })
	return resp, nil
}

// Messages sends the live messages of a queue, beginning with the requested sequence.
func (m *Manager) Messages(
	ctx context.Context, req *pb.PullMessagesRequest, send func(*pb.PullMessagesResponse) error,
) error {
	if _, _, err := m.active(); err != nil {
		return err
	}
	r := store.ReadRequest{
		Queue: req.GetQueueId(), From: max(req.GetFrom(), 1), MaxMessages: readMessages, MaxBytes: responseBytes,
		Buffer: new(store.ReadBuffer),
	}
	if req.GetUrgent() {
		ctx = throttle.FullSpeed(ctx)
	}
	pace := m.o.Store.Pace(ctx, 0)
	var list []store.Delivery
	for from := r.From; ; {
		var next uint64
		var err error
		list, next, err = m.o.Store.Read(ctx, r, list[:0])
		if errors.Is(err, store.ErrNoQueue) {
			return fmt.Errorf("%w: queue %d", txn.ErrQueueNotFound, r.Queue)
		}
		if err != nil {
			return fmt.Errorf("read messages: %w", err)
		}
		if len(list) == 0 {
			return nil
		}
		resp, size := &pb.PullMessagesResponse{From: from}, 0
		for i := range list {
			resp.Sequences = append(resp.Sequences, list[i].Sequence)
			resp.Records = append(resp.Records, list[i].Record)
			size += len(list[i].Record)
		}
		if err := send(resp); err != nil {
			return err
		}
		if err := pace.Did(ctx, size); err != nil {
			return fmt.Errorf("read messages: %w", err)
		}
		// No message between the last one and next is live, but the next response must not leave a gap.
		from, r.From = list[len(list)-1].Sequence+1, next
	}
}

// State returns the next part of the state of a fenced queue.
func (m *Manager) State(ctx context.Context, req *pb.PullStateRequest) (*pb.PullStateResponse, error) {
	if _, _, err := m.active(); err != nil {
		return nil, err
	}
	resp, after := &pb.PullStateResponse{}, req.GetAfter()
	for left := responseBytes; left > 0 && !resp.GetLast(); {
		part, err := m.o.Store.ExportState(ctx, req.GetQueueId(), req.GetEpoch(), after, left)
		if err != nil {
			return nil, fmt.Errorf("export the state: %w", err)
		}
		resp.Last = part.Last
		for _, p := range part.Pairs {
			resp.Keys, resp.Values = append(resp.Keys, p.Key), append(resp.Values, p.Value)
			left -= len(p.Key) + len(p.Value)
			after = p.Key
		}
	}
	return resp, nil
}

// Fence fences the queues of a move. If the move has already fenced them, Fence does nothing.
func (m *Manager) Fence(ctx context.Context, req *pb.FenceQueuesRequest) error {
	session, err := m.o.Serving.Session()
	if err != nil {
		return err
	}
	if err := m.isSource(req.GetFrom()); err != nil {
		return err
	}
	if err := m.checkTarget(req.GetTo(), req.GetEpoch()); err != nil {
		return err
	}
	if err := m.o.Serving.Require(session, failover.FeatureQueues); err != nil {
		return err
	}
	if _, fenced, err := m.fenced(req.GetEpoch(), req.GetTo()); err != nil || fenced {
		return err
	}
	err = commit(ctx, session.Primary, func(b *txn.Builder) { b.Fence(req.GetEpoch(), req.GetTo(), req.GetQueueIds()) })
	if err != nil {
		return err
	}
	m.log.Info("queues fenced, because they move to another pair", zap.Uint64("epoch", req.GetEpoch()),
		zap.String("to", req.GetTo()), zap.Int("queues", len(req.GetQueueIds())))
	return nil
}

// Digests returns the digests of the state of the fenced queues of a move.
func (m *Manager) Digests(ctx context.Context, epoch uint64) (*pb.GetMoveDigestsResponse, error) {
	if _, _, err := m.active(); err != nil {
		return nil, err
	}
	move, fenced, err := m.fenced(epoch, "")
	if err == nil && !fenced {
		err = fmt.Errorf("%w: no queue is fenced under epoch %d", apierror.ErrFleetState, epoch)
	}
	if err != nil {
		return nil, err
	}
	resp := &pb.GetMoveDigestsResponse{}
	for _, q := range move.Queues {
		sum, messages, err := m.o.Store.DigestState(ctx, q.ID, epoch)
		if err != nil {
			return nil, fmt.Errorf("digest of %q: %w", q.Name, err)
		}
		resp.Digests = append(resp.Digests, &pb.MoveDigest{QueueId: q.ID, Sha256: sum[:], Messages: messages})
	}
	return resp, nil
}

// Unfence removes the fence of a move. If there is no such fence, it prevents a later fence with the same epoch. The
// target must have canceled the import.
func (m *Manager) Unfence(ctx context.Context, req *pb.UnfenceQueuesRequest) error {
	p, _, err := m.active()
	if err != nil {
		return err
	}
	if err := m.isSource(req.GetFrom()); err != nil {
		return err
	}
	if _, _, err := m.fenced(req.GetEpoch(), req.GetTo()); err != nil {
		return err
	}
	if err := unfence(ctx, p, req.GetEpoch()); err != nil {
		return err
	}
	m.log.Info("fence of queues removed: the move was canceled", zap.Uint64("epoch", req.GetEpoch()))
	return nil
}

func unfence(ctx context.Context, p *replication.Primary, epoch uint64) error {
	// After this record, each publish stream has the results of all its requests that were refused because of the
	// fence. The stream also refuses its later requests: the order of the messages must not change.
	if err := barrier(ctx, p); err != nil {
		return err
	}
	return commit(ctx, p, func(b *txn.Builder) { b.Unfence(epoch) })
}

// barrier commits a record without effect.
func barrier(ctx context.Context, p txn.Committer) error {
	payload, err := txn.Barrier(time.Now())
	if err != nil {
		return fmt.Errorf("encode a record: %w", err)
	}
	if _, err := p.Commit(ctx, payload); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// Drop deletes the fenced queues of a move. The target must have taken them and changed the directory. Drop first
// waits until the copy of the directory at this node contains that change. If this takes longer than findTimeout, the
// error wraps fleet.ErrUnavailable. If the queues are not fenced, Drop does nothing.
func (m *Manager) Drop(ctx context.Context, req *pb.DropMovedRequest) error {
	p, d, err := m.active()
	if err != nil {
		return err
	}
	if err := m.isSource(req.GetFrom()); err != nil {
		return err
	}
	if err := m.checkTarget(req.GetTo(), req.GetEpoch()); err != nil {
		return err
	}
	_, fenced, err := m.fenced(req.GetEpoch(), req.GetTo())
	if err != nil || !fenced {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	err = d.Await(limited, func(s fleet.Status) bool {
		return s.Current && s.Problem == nil && s.Counter >= req.GetEpoch() &&
			!slices.ContainsFunc(d.Moves(), func(i fleet.Move) bool { return i.Epoch == req.GetEpoch() })
	})
	if err != nil {
		return fmt.Errorf("%w: the copy of the directory does not contain the end of the move", fleet.ErrUnavailable)
	}
	if err := commit(ctx, p, func(b *txn.Builder) { b.DropMoved(req.GetEpoch()) }); err != nil {
		return err
	}
	m.log.Info("queues deleted that moved to another pair", zap.Uint64("epoch", req.GetEpoch()),
		zap.String("to", req.GetTo()))
	return nil
}
