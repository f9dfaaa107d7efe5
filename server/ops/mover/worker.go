// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/fleet"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

func (w *worker) step(ctx context.Context, name string) error { return w.m.o.Step(ctx, name) }

// worker performs moves in one term.
type worker struct {
	m     *Manager
	p     *replication.Primary
	d     *fleet.Directory
	pairs *pairs
	log   *zap.Logger
}

// pass advances all moves as far as possible. It reports whether one of them must be tried again.
func (w *worker) pass(ctx context.Context) (again bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	defer close(ended)
	go func() { // nothing can be committed when the role ends
		select {
		case <-w.p.Stopped():
			cancel()
		case <-ended:
		}
	}()
	for _, move := range w.moves() {
		for {
			done, err := w.advance(ctx, move)
			if ctx.Err() != nil {
				return false
			}
			if err != nil {
				w.failed(move, err)
				again = true
			}
			if err != nil || done {
				break
			}
		}
	}
	return again
}

// moves returns the moves to this pair in the log and in the directory, in the order of their epochs.
func (w *worker) moves() []fleet.Move {
	all := map[uint64]fleet.Move{}
	for _, move := range query.Moves(w.m.o.Store) {
		if move.State == queue.MoveFenced {
			continue
		}
		m := fleet.Move{Epoch: move.Epoch, From: move.Pair, To: w.m.o.Pair}
		for _, q := range move.Queues {
			m.Queues = append(m.Queues, q.Name)
		}
		slices.Sort(m.Queues)
		all[m.Epoch] = m
	}
	for _, intent := range w.d.Moves() {
		if intent.To == w.m.o.Pair {
			all[intent.Epoch] = intent
		}
	}
	moves := make([]fleet.Move, 0, len(all))
	for _, epoch := range slices.Sorted(maps.Keys(all)) {
		moves = append(moves, all[epoch])
	}
	return moves
}

func (w *worker) failed(move fleet.Move, err error) {
	changed := false
	w.m.update(move, func(p *Progress) {
		changed = p.Err == nil || p.Err.Error() != err.Error()
		p.Err = err
	})
	if changed {
		w.log.Warn("move of queues failed, will be retried", zap.Uint64("epoch", move.Epoch), zap.Error(err))
	}
}

// advance executes the next phase of a move. done reports whether the move has ended.
func (w *worker) advance(ctx context.Context, move fleet.Move) (done bool, _ error) {
	logged, begun := query.Move(w.m.o.Store, move.Epoch)
	if (!begun || logged.State == queue.MoveImporting) && w.d.IsForgotten(move.From) {
		return false, w.cancel(ctx, move, errForgotten)
	}
	if !begun {
		if move.Epoch <= query.Fleet(w.m.o.Store).ImportEpoch {
			return true, w.drop(ctx, move) // it has ended, or an import with a higher epoch has begun
		}
		return false, w.begin(ctx, move)
	}
	switch logged.State {
	case queue.MoveImporting:
		return false, w.transfer(ctx, move, &logged)
	case queue.MoveTaken:
		return true, w.finish(ctx, move)
	case queue.MoveCanceled:
		return true, w.undo(ctx, move, &logged)
	case queue.MoveFenced:
	}
	return true, nil
}

var errForgotten = errors.New("the source was removed from the fleet (lockstep fleet forget)")

var errSuperseded = errors.New("a move with a higher epoch began first; try again")

// drop deletes the intent of a move that this pair cannot execute.
func (w *worker) drop(ctx context.Context, move fleet.Move) error {
	if err := w.d.CancelMove(ctx, move.Epoch); err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	w.m.update(move, func(p *Progress) {
		if p.Phase != PhaseDone && p.Phase != PhaseNotMoved {
			p.Phase, p.Reason = PhaseNotMoved, errSuperseded
		}
	})
	return nil
}

// begin commits the begin of the import.
func (w *worker) begin(ctx context.Context, move fleet.Move) error {
	w.m.update(move, func(p *Progress) { p.Phase = PhaseWaiting })
	_, source, err := w.pairs.find(ctx, w.d, move)
	if err != nil {
		return w.orCancel(ctx, move, err)
	}
	var queues []txn.ImportQueue
	for _, q := range source.GetQueues() {
		queues = append(queues, txn.ImportQueue{Name: q.GetName(), Source: q.GetId(), Prioritized: q.GetPrioritized()})
	}
	w.m.setOpen(move.Epoch, true)
	if err := w.step(ctx, "begin"); err != nil {
		return err
	}
	err = commit(ctx, w.p, func(b *txn.Builder) { b.ImportBegin(move.Epoch, move.From, queues) })
	return w.orCancel(ctx, move, err)
}

// orCancel cancels the move if an error is permanent. It returns the other errors.
func (w *worker) orCancel(ctx context.Context, move fleet.Move, err error) error {
	if err == nil || !permanent(err) {
		return err
	}
	return w.cancel(ctx, move, err)
}

// permanent reports whether an error cannot be removed by another attempt.
func permanent(err error) bool {
	_, refused := errors.AsType[txn.Code](err)
	return refused || errors.Is(err, txn.ErrQueueNotFound) || errors.Is(err, txn.ErrQueueInUse) ||
		errors.Is(err, apierror.ErrFleetState) || errors.Is(err, apierror.ErrInvalid) ||
		errors.Is(err, errDiffer)
}

func (w *worker) cancel(ctx context.Context, move fleet.Move, reason error) error {
	err := commit(ctx, w.p, func(b *txn.Builder) { b.CancelImport(move.Epoch) })
	switch {
	case errors.Is(err, txn.ErrMoveChanged): // it was taken or canceled, or cannot begin
		return nil
	case err != nil:
		return errors.Join(reason, err)
	}
	w.log.Warn("move of queues canceled", zap.Uint64("epoch", move.Epoch), zap.Error(reason))
	w.m.update(move, func(p *Progress) {
		if p.Phase != PhaseCanceled { // by an operator
			p.Phase, p.Reason = PhaseCanceled, reason
		}
	})
	return nil
}

// transfer copies the queues until this pair has taken them, or the move is canceled.
func (w *worker) transfer(ctx context.Context, move fleet.Move, logged *queue.Move) error {
	same := func(m fleet.Move) bool { return m.Epoch == move.Epoch }
	if w.d.Status().Current && !slices.ContainsFunc(w.d.Moves(), same) {
		if err := w.d.RestoreMove(ctx, move); err != nil {
			return fmt.Errorf("fleet: %w", err)
		}
	}
	if err := w.step(ctx, "copy"); err != nil {
		return err
	}
	t := &transfer{worker: w, move: move}
	var source *pb.GetMoveSourceResponse
	var err error
	if t.source, source, err = w.pairs.find(ctx, w.d, move); err != nil {
		return w.orCancel(ctx, move, err)
	}
	for _, q := range source.GetQueues() {
		t.bytes += q.GetBytes()
	}
	if !source.GetFenced() {
		w.m.setOpen(move.Epoch, true)
		if err := t.check(source, logged); err != nil {
			return w.cancel(ctx, move, err)
		}
		if err := t.copy(ctx); err != nil {
			return w.orCancel(ctx, move, err)
		}
	}
	return t.takeFenced(ctx)
}

// transfer is the copy of the queues of a move.
type transfer struct {
	*worker

	move   fleet.Move
	source pb.FleetServiceClient
	bytes  uint64 // of all live messages
}

// check verifies that the queues of the source are those of the import.
func (t *transfer) check(source *pb.GetMoveSourceResponse, logged *queue.Move) error {
	ids := map[uint64]string{}
	for _, q := range source.GetQueues() {
		ids[q.GetId()] = q.GetName()
	}
	for _, q := range logged.Queues {
		if ids[q.Source] != q.Name {
			return fmt.Errorf("%w: %q was deleted at the source", txn.ErrQueueNotFound, q.Name)
		}
	}
	return nil
}

// copy pulls messages until a pass is short.
func (t *transfer) copy(ctx context.Context) error {
	for pass := 1; ; pass++ {
		t.m.update(t.move, func(p *Progress) {
			p.Phase, p.Passes, p.Err = PhaseCopying, pass, nil
			p.RemainingBytes = t.bytes - min(t.bytes, p.CopiedBytes)
		})
		began := time.Now()
		if err := t.pullAll(ctx); err != nil {
			return err
		}
		if pass == maxPasses || time.Since(began) <= shortPass {
			return nil
		}
	}
}

// logged returns the state of the import.
func (t *transfer) logged() (queue.Move, error) {
	logged, begun := query.Move(t.m.o.Store, t.move.Epoch)
	if !begun || logged.State != queue.MoveImporting {
		return logged, txn.ErrMoveChanged
	}
	return logged, nil
}

// pullAll pulls the messages of all queues that were published until the request.
func (t *transfer) pullAll(ctx context.Context) error {
	logged, err := t.logged()
	if err != nil {
		return err
	}
	for _, q := range logged.Queues {
		if q.After != nil || q.Complete {
			continue // the state follows the messages
		}
		if err := t.pull(ctx, q); err != nil {
			return fmt.Errorf("copy messages of %q: %w", q.Name, err)
		}
	}
	return nil
}

func (t *transfer) pull(ctx context.Context, q queue.MovedQueue) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := t.source.PullMessages(ctx, &pb.PullMessagesRequest{
		Epoch: t.move.Epoch, QueueId: q.Source, From: q.Next,
	})
	if err != nil {
		return fromStatus(err)
	}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fromStatus(err)
		}
		sequences, records := resp.GetSequences(), resp.GetRecords()
		if len(sequences) != len(records) || len(sequences) == 0 {
			return fmt.Errorf("%w: response with %d sequences and %d messages", txn.ErrMalformed, len(sequences),
				len(records))
		}
		size := uint64(0)
		err = commit(ctx, t.p, func(b *txn.Builder) {
			b.BeginImport(q.ID, t.move.Epoch, resp.GetFrom())
			for i, rec := range records {
				b.Import(sequences[i], rec)
				size += uint64(len(rec))
			}
			b.EndImport()
		})
		if err != nil {
			return err
		}
		t.m.update(t.move, func(p *Progress) {
			p.CopiedBytes += size
			p.RemainingBytes -= min(p.RemainingBytes, size)
		})
	}
}

var errSlow = fmt.Errorf("queues were not taken within %v after the fence was requested", fenceLimit)

// takeFenced fences the queues, transfers the rest, and takes them. If this does not succeed in time, it cancels the
// move.
func (t *transfer) takeFenced(ctx context.Context) error {
	t.m.setOpen(t.move.Epoch, false)
	t.m.update(t.move, func(p *Progress) { p.Phase = PhaseFenced })
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, fenceLimit)
	defer cancel()
	for {
		err := t.tryTake(limited)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			pause := time.Since(began)
			t.m.update(t.move, func(p *Progress) { p.Phase, p.Pause, p.Err, p.RemainingBytes = PhaseTaken, pause, nil, 0 })
			t.m.o.Paused(pause)
			t.log.Info("queues of another pair taken", zap.Uint64("epoch", t.move.Epoch),
				zap.String("from", t.move.From), zap.Strings("queues", t.move.Queues), zap.Duration("pause", pause))
			return nil
		case permanent(err):
			return t.cancel(ctx, t.move, err)
		case limited.Err() != nil:
			return t.cancel(ctx, t.move, fmt.Errorf("%w: %w", errSlow, err))
		}
		timer := time.NewTimer(retryFenced)
		select {
		case <-timer.C:
		case <-limited.Done():
			timer.Stop()
		}
		// The source may have another active.
		if source, _, err := t.pairs.find(limited, t.d, t.move); err == nil {
			t.source = source
		}
	}
}

// tryTake is an attempt to take the queues.
func (t *transfer) tryTake(ctx context.Context) error {
	logged, err := t.logged()
	if err != nil {
		return err
	}
	request := &pb.FenceQueuesRequest{Epoch: t.move.Epoch, To: t.m.o.Pair, From: t.move.From}
	for _, q := range logged.Queues {
		request.QueueIds = append(request.QueueIds, q.Source)
	}
	slices.Sort(request.QueueIds)
	if err := t.step(ctx, "fence"); err != nil {
		return err
	}
	if _, err := t.source.FenceQueues(ctx, request); err != nil {
		return fmt.Errorf("fence: %w", fromStatus(err))
	}
	if err := t.step(ctx, "messages"); err != nil {
		return err
	}
	if err := t.pullAll(ctx); err != nil {
		return err
	}
	if err := t.step(ctx, "state"); err != nil {
		return err
	}
	for _, q := range logged.Queues {
		if err := t.pullState(ctx, q); err != nil {
			return fmt.Errorf("copy the state of %q: %w", q.Name, err)
		}
	}
	if err := t.step(ctx, "compare"); err != nil {
		return err
	}
	if err := t.compare(ctx); err != nil {
		return err
	}
	if err := t.step(ctx, "take"); err != nil {
		return err
	}
	return commit(ctx, t.p, func(b *txn.Builder) { b.TakeMoved(t.move.Epoch) })
}

func (t *transfer) pullState(ctx context.Context, q queue.MovedQueue) error {
	for after, complete := q.After, q.Complete; !complete; {
		resp, err := t.source.PullState(ctx, &pb.PullStateRequest{Epoch: t.move.Epoch, QueueId: q.Source, After: after})
		if err != nil {
			return fromStatus(err)
		}
		keys, values := resp.GetKeys(), resp.GetValues()
		if len(keys) != len(values) || len(keys) == 0 && !resp.GetLast() {
			return fmt.Errorf("%w: response with %d keys and %d values", txn.ErrMalformed, len(keys), len(values))
		}
		pairs := make([]txn.StatePair, len(keys))
		for i := range keys {
			pairs[i] = txn.StatePair{Key: keys[i], Value: values[i]}
		}
		err = commit(ctx, t.p, func(b *txn.Builder) { b.ImportState(q.ID, t.move.Epoch, after, pairs, resp.GetLast()) })
		if err != nil {
			return err
		}
		if complete = resp.GetLast(); !complete {
			after = keys[len(keys)-1]
		}
	}
	return nil
}

var errDiffer = errors.New("copy of the queue differs from the source")

// compare compares the digests of both copies, unless the queues are too large.
func (t *transfer) compare(ctx context.Context) error {
	if t.bytes > maxDigestBytes {
		t.log.Info("digests of queues not compared, because of their size", zap.Uint64("epoch", t.move.Epoch),
			zap.Uint64("bytes", t.bytes))
		return nil
	}
	logged, err := t.logged()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		resp *pb.GetMoveDigestsResponse
		err  error
	}
	answers := make(chan answer, 1)
	go func() { // concurrently, because the queues are fenced
		resp, err := t.source.GetMoveDigests(ctx, &pb.GetMoveDigestsRequest{Epoch: t.move.Epoch})
		answers <- answer{resp, err}
	}()
	own := map[uint64]store.MoveDigest{}
	for _, q := range logged.Queues {
		if own[q.Source], err = t.m.o.Store.DigestMoved(ctx, q.ID, t.move.Epoch); err != nil {
			return fmt.Errorf("digest of %q: %w", q.Name, err)
		}
	}
	a := <-answers
	if a.err != nil {
		return fmt.Errorf("digests of the source: %w", fromStatus(a.err))
	}
	if len(a.resp.GetDigests()) != len(own) {
		return fmt.Errorf("%w: %d queues, not %d", errDiffer, len(a.resp.GetDigests()), len(own))
	}
	for _, theirs := range a.resp.GetDigests() {
		ours := own[theirs.GetQueueId()]
		if !bytes.Equal(ours.SHA256[:], theirs.GetSha256()) || ours.Messages != theirs.GetMessages() {
			return fmt.Errorf("%w: queue %d of the source, %d and %d messages", errDiffer, theirs.GetQueueId(),
				theirs.GetMessages(), ours.Messages)
		}
	}
	return nil
}

// finish changes the directory after the take, lets the source delete its copy, and forgets the move.
func (w *worker) finish(ctx context.Context, move fleet.Move) error {
	w.m.update(move, func(p *Progress) { p.Phase = PhaseTaken })
	owned := fleet.Move{Epoch: move.Epoch, From: move.From, To: move.To}
	query.OwnedQueues(w.m.o.Store, func(q query.OwnedQueue) {
		if q.Epoch == move.Epoch {
			owned.Queues = append(owned.Queues, q.Name)
		}
	})
	if err := w.step(ctx, "finish"); err != nil {
		return err
	}
	if err := w.d.FinishMove(ctx, owned); err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	if err := w.step(ctx, "drop"); err != nil {
		return err
	}
	if err := w.dropAtSource(ctx, move); err != nil {
		return fmt.Errorf("delete the copy of the source: %w", err)
	}
	if err := w.forget(ctx, move); err != nil {
		return err
	}
	w.m.update(move, func(p *Progress) { p.Phase, p.Err = PhaseDone, nil })
	return nil
}

// dropAtSource lets the source delete its copy. A source that was removed from the fleet keeps it.
func (w *worker) dropAtSource(ctx context.Context, move fleet.Move) error {
	if w.d.IsForgotten(move.From) {
		return nil
	}
	request := &pb.DropMovedRequest{Epoch: move.Epoch, To: w.m.o.Pair, From: move.From}
	return w.pairs.call(ctx, w.d, move.Epoch, move.From, func(ctx context.Context, c pb.FleetServiceClient) error {
		_, err := c.DropMoved(ctx, request)
		return err
	})
}

// undo removes the fence of the source after a cancellation, deletes the intent, and forgets the move.
func (w *worker) undo(ctx context.Context, move fleet.Move, logged *queue.Move) error {
	w.m.update(move, func(p *Progress) { p.Phase = PhaseCanceled })
	if err := w.step(ctx, "unfence"); err != nil {
		return err
	}
	// If the import has not begun, no fence was requested. A source that was removed from the fleet keeps its fence.
	if logged.Pair != "" && !w.d.IsForgotten(logged.Pair) {
		request := &pb.UnfenceQueuesRequest{Epoch: move.Epoch, To: w.m.o.Pair, From: logged.Pair}
		err := w.pairs.call(ctx, w.d, move.Epoch, logged.Pair, func(ctx context.Context, c pb.FleetServiceClient) error {
			_, err := c.UnfenceQueues(ctx, request)
			return err
		})
		if err != nil {
			return fmt.Errorf("remove the fence of the source: %w", err)
		}
	}
	w.m.setOpen(move.Epoch, true)
	if err := w.d.CancelMove(ctx, move.Epoch); err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	if err := w.forget(ctx, move); err != nil {
		return err
	}
	w.m.update(move, func(p *Progress) { p.Phase, p.Err = PhaseNotMoved, nil })
	return nil
}

func (w *worker) forget(ctx context.Context, move fleet.Move) error {
	if err := w.step(ctx, "forget"); err != nil {
		return err
	}
	err := commit(ctx, w.p, func(b *txn.Builder) { b.ForgetMove(move.Epoch) })
	if errors.Is(err, txn.ErrMoveChanged) {
		return nil // by a previous attempt
	}
	return err
}
