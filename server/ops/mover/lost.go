// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/fleet"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// errTargetRuns is returned if a node of a removed pair responds, and its log contains the move.
var errTargetRuns = errors.New("a node of the removed pair is running; stop it permanently")

// checkTarget returns an error if the directory is not loaded, or if the target of a move was removed from the fleet.
func (m *Manager) checkTarget(pair string, epoch uint64) error {
	d := m.o.Member.Directory()
	if d == nil {
		return fmt.Errorf("%w: not loaded", fleet.ErrUnavailable)
	}
	if _, lost := d.LostTarget(pair, epoch); lost {
		return fmt.Errorf("%w: pair %s was removed from the fleet (lockstep fleet forget)", apierror.ErrFleetState, pair)
	}
	return nil
}

// endLost ends the moves from this pair to pairs that were removed from the fleet. It reports whether one of them must
// be tried again.
func (w *worker) endLost(ctx context.Context) (again bool) {
	for _, move := range query.Moves(w.m.o.Store) {
		if move.State != queue.MoveFenced || ctx.Err() != nil {
			continue
		}
		addresses, lost := w.d.LostTarget(move.Pair, move.Epoch)
		var err error
		if lost {
			err = w.endLostMove(ctx, &move, addresses)
		}
		if w.recordLost(move.Epoch, err) && ctx.Err() == nil {
			w.log.Warn("move to a removed pair not ended, will be retried", zap.Uint64("epoch", move.Epoch), zap.Error(err))
		}
		again = again || err != nil
	}
	return again
}

// recordLost records the result of an attempt to end a move, for Stats. It reports whether err is an error that differs
// from that of the previous attempt.
func (w *worker) recordLost(epoch uint64, err error) (changed bool) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if err == nil {
		delete(w.m.lost, epoch)
		return false
	}
	old := w.m.lost[epoch]
	w.m.lost[epoch] = err
	return old == nil || old.Error() != err.Error()
}

// endLostMove removes the fence of a move to a pair that was removed from the fleet (INV-28), and then commits the
// new ownership epoch of the queues. First, it assigns the queues to this pair in the directory. While another pair
// owns one of the names, it returns a *fleet.ConflictError.
func (w *worker) endLostMove(ctx context.Context, move *queue.Move, addresses []string) error {
	if err := w.checkStopped(ctx, move, addresses); err != nil {
		return err
	}
	m := fleet.Move{Epoch: move.Epoch, From: w.m.o.Pair, To: move.Pair}
	for _, q := range move.Queues {
		m.Queues = append(m.Queues, q.Name)
	}
	slices.Sort(m.Queues)
	fields := []zap.Field{zap.Uint64("epoch", m.Epoch), zap.String("to", m.To), zap.Strings("queues", m.Queues)}
	epoch, err := w.d.Reclaim(ctx, m)
	if err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	if err := w.step(ctx, "reclaim"); err != nil {
		return err
	}
	if err := unfence(ctx, w.p, m.Epoch); err != nil {
		return err
	}
	w.log.Warn("fence of queues removed: the target was removed from the fleet", fields...)
	for _, name := range m.Queues {
		err := commit(ctx, w.p, func(b *txn.Builder) { b.OwnQueue(name, epoch) })
		if _, refused := errors.AsType[txn.Code](err); err != nil && !refused { // deleted, or moved again
			return err
		}
	}
	return nil
}

// checkStopped returns errTargetRuns if a node at one of the addresses is the active of the removed pair. A new pair
// with the same name and addresses does not have the move in its log.
func (w *worker) checkStopped(ctx context.Context, move *queue.Move, addresses []string) error {
	for _, address := range addresses {
		c, err := w.pairs.client(address)
		if err != nil {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, findTimeout)
		_, err = c.GetMoveSource(limited, &pb.GetMoveSourceRequest{Epoch: move.Epoch, Pair: move.Pair})
		cancel()
		if errors.Is(fromStatus(err), apierror.ErrFleetState) {
			return fmt.Errorf("%w: %s", errTargetRuns, address)
		}
	}
	return nil
}
