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
	"golang.org/x/sync/errgroup"

	"github.com/lockstep-mq/lockstep/fleet"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
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
	pairs pairs
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
	if again = w.endLost(ctx); ctx.Err() != nil {
		return false
	}
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
	if !begun && move.Epoch <= query.Fleet(w.m.o.Store).ImportEpoch {
		return true, w.drop(ctx, move) // it has ended, or an import with a higher epoch has begun
	}
	if (!begun || logged.State == queue.MoveImporting) && w.d.IsForgotten(move.From) {
		return false, w.cancel(ctx, move, errForgotten)
	}
	if !begun {
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

// drop deletes the intent of a move that has ended, or that this pair cannot execute.
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

// begin commits the start of the import.
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

// permanent reports whether another attempt cannot succeed after an error.
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
	w.m.canceled(move, reason)
	return nil
}

// transfer copies the queues and takes them, or cancels the move after a permanent error. After another error, it can
// be called again.
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
	t := &transfer{worker: w, move: move, verified: map[uint64]uint64{}, imported: make(chan struct{}, 1)}
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

	// verified contains the lowest sequences that are not verified yet, by the IDs of the queues at this pair.
	verified map[uint64]uint64
	imported chan struct{} // receives a value after an import; capacity 1
	// urgent is set when both pairs must not slow down the copy in favor of their clients.
	urgent bool
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

// copy pulls and verifies messages until a pass is short, or the maximum number of passes is reached. It then prepares
// the fence. If the source has written a checkpoint for that, further passes follow.
func (t *transfer) copy(ctx context.Context) error {
	prepared, last := false, maxPasses
	for pass := 1; ; pass++ {
		t.m.update(t.move, func(p *Progress) {
			p.Phase, p.Passes, p.Err = PhaseCopying, pass, nil
			p.RemainingBytes = t.bytes - min(t.bytes, p.CopiedBytes)
		})
		t.urgent = pass > pacedPasses
		began := time.Now()
		if err := t.copyPass(ctx); err != nil {
			return err
		}
		if time.Since(began) > shortPass && pass < last {
			continue
		}
		if prepared {
			return nil
		}
		var err error
		if prepared, err = t.prepare(ctx); err != nil || !prepared {
			return err
		}
		last = pass + preparedPasses
	}
}

// logged returns the state of the import. It returns txn.ErrMoveChanged if the import has not begun, or has ended.
func (t *transfer) logged() (queue.Move, error) {
	logged, begun := query.Move(t.m.o.Store, t.move.Epoch)
	if !begun || logged.State != queue.MoveImporting {
		return logged, txn.ErrMoveChanged
	}
	return logged, nil
}

// pullAll pulls the messages that were published before the requests. It skips queues with a complete copy of the
// messages.
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
		Epoch: t.move.Epoch, QueueId: q.Source, From: q.Next, Urgent: t.urgent,
	})
	if err != nil {
		return fromStatus(err)
	}
	l := newPipeline(ctx, t.p)
	l.committed = func(size uint64) {
		t.m.update(t.move, func(p *Progress) {
			p.CopiedBytes += size
			p.RemainingBytes -= min(p.RemainingBytes, size)
		})
		select {
		case t.imported <- struct{}{}:
		default:
		}
	}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return l.finish(nil)
		}
		if err != nil {
			return l.finish(fromStatus(err))
		}
		sequences, records := resp.GetSequences(), resp.GetRecords()
		if len(sequences) != len(records) || len(sequences) == 0 {
			return l.finish(fmt.Errorf("%w: response with %d sequences and %d messages", txn.ErrMalformed, len(sequences),
				len(records)))
		}
		size := uint64(0)
		for _, rec := range records {
			size += uint64(len(rec))
		}
		err = l.submit(size, func(b *txn.Builder) {
			b.BeginImport(q.ID, t.move.Epoch, resp.GetFrom())
			for i, rec := range records {
				b.Import(sequences[i], rec)
			}
			b.EndImport()
		})
		if err != nil {
			return l.finish(err)
		}
	}
}

var errSlow = fmt.Errorf("queues were not taken within %v after the fence was requested", fenceLimit)

// takeFenced fences the queues, transfers the rest, and takes them. If this does not succeed in time, it cancels the
// move.
func (t *transfer) takeFenced(ctx context.Context) error {
	t.m.setOpen(t.move.Epoch, false)
	t.m.update(t.move, func(p *Progress) { p.Phase = PhaseFenced })
	t.urgent = true
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

// tryTake fences the queues, transfers the rest, compares the digests of both copies, and takes the queues.
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
	digests, err := t.pullRest(ctx, &logged)
	if err != nil {
		return err
	}
	if err := t.step(ctx, "compare"); err != nil {
		return err
	}
	if err := t.compare(ctx, &logged, digests); err != nil {
		return err
	}
	if err := t.step(ctx, "take"); err != nil {
		return err
	}
	return commit(ctx, t.p, func(b *txn.Builder) { b.TakeMoved(t.move.Epoch) })
}

// pullRest transfers the state of the queues. At the same time, it verifies the last messages, and requests the digests
// of the state from the source.
func (t *transfer) pullRest(ctx context.Context, logged *queue.Move) (digests []*pb.MoveDigest, err error) {
	g, limited := errgroup.WithContext(ctx)
	g.Go(func() error { return t.verifyAll(limited) })
	g.Go(func() error {
		resp, err := t.source.GetMoveDigests(limited, &pb.GetMoveDigestsRequest{Epoch: t.move.Epoch})
		if err != nil {
			return fmt.Errorf("digests of the source: %w", fromStatus(err))
		}
		digests = resp.GetDigests()
		return nil
	})
	g.Go(func() error {
		// A transaction that is committed after an attempt has failed would make the next attempt fail.
		l := newPipeline(ctx, t.p)
		for _, q := range logged.Queues {
			if err := t.pullState(limited, l, q); err != nil {
				return l.finish(fmt.Errorf("copy the state of %q: %w", q.Name, err))
			}
		}
		return l.finish(nil)
	})
	err = g.Wait()
	return digests, err
}

func (t *transfer) pullState(ctx context.Context, l *pipeline, q queue.MovedQueue) error {
	for after, complete := q.After, q.Complete; !complete; {
		resp, err := t.source.PullState(ctx, &pb.PullStateRequest{Epoch: t.move.Epoch, QueueId: q.Source, After: after})
		if err != nil {
			return fromStatus(err)
		}
		keys, values := resp.GetKeys(), resp.GetValues()
		if len(keys) != len(values) || len(keys) == 0 && !resp.GetLast() {
			return fmt.Errorf("%w: response with %d keys and %d values", txn.ErrMalformed, len(keys), len(values))
		}
		for len(keys) > 0 {
			n := sameKind(keys)
			pairs := make([]txn.StatePair, n)
			for i := range n {
				pairs[i] = txn.StatePair{Key: keys[i], Value: values[i]}
			}
			from := after
			err := l.submit(0, func(b *txn.Builder) { b.ImportState(q.ID, t.move.Epoch, from, pairs, false) })
			if err != nil {
				return err
			}
			after, keys, values = keys[n-1], keys[n:], values[n:]
		}
		if complete = resp.GetLast(); complete {
			err := l.submit(0, func(b *txn.Builder) { b.ImportState(q.ID, t.move.Epoch, after, nil, true) })
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// sameKind returns the number of leading keys that have the same kind, which is the first byte of a key.
func sameKind(keys [][]byte) (n int) {
	for n < len(keys) && bytes.HasPrefix(keys[n], keys[0][:min(1, len(keys[0]))]) {
		n++
	}
	return n
}

// compare compares the digests of the state of both copies.
func (t *transfer) compare(ctx context.Context, logged *queue.Move, digests []*pb.MoveDigest) error {
	theirs := map[uint64]*pb.MoveDigest{}
	for _, d := range digests {
		theirs[d.GetQueueId()] = d
	}
	for _, q := range logged.Queues {
		ours, messages, err := t.m.o.Store.DigestState(ctx, q.ID, t.move.Epoch)
		if err != nil {
			return fmt.Errorf("digest of %q: %w", q.Name, err)
		}
		d := theirs[q.Source]
		if !bytes.Equal(ours[:], d.GetSha256()) || messages != d.GetMessages() {
			return fmt.Errorf("%w: state of %q, %d and %d messages", errDiffer, q.Name, d.GetMessages(), messages)
		}
	}
	return nil
}

// finish changes the directory after the take, requests the source to delete its copy, and forgets the move.
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

// dropAtSource requests the source to delete its copy. A source that was removed from the fleet keeps it.
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
