// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// loseAt waits until a move is at a step, and then stops the target permanently.
func (w *world) loseAt(step string) (epoch uint64) {
	reached := make(chan struct{})
	w.step = func(ctx context.Context, s string) error {
		if s != step {
			return nil
		}
		close(reached)
		<-ctx.Done()
		return ctx.Err()
	}
	epoch = w.move("q")
	<-reached
	w.net.SetCut("127.0.0.1", "127.0.0.2", true)
	return epoch
}

// remove removes pair b from the directory, after it can no longer reach it.
func (w *world) remove() {
	w.t.Helper()
	w.net.SetCut("127.0.0.2", "127.0.0.3", true)
	_, err := w.a.dir.Forget(w.t.Context(), "b")
	require.NoError(w.t, err)
}

func (w *world) awaitOwner(owns bool) {
	w.t.Helper()
	for began := time.Now(); w.a.owns("q") != owns; w.wait(latency) {
		require.Less(w.t, time.Since(began), bound)
	}
}

// If the target of a move is lost and removed, the source serves the fenced queues again, under a higher ownership
// epoch, whether the target has taken them or not. A delayed request of the target has no effect.
func TestTargetLost(t *testing.T) {
	for _, step := range []string{"messages", "take", "finish", "drop"} {
		t.Run(step, func(t *testing.T) {
			simulate(t, func(w *world) {
				const stored = 100
				id := w.fill("q", stored, txn.Config{})
				before := w.a.messages("q")
				epoch := w.loseAt(step)
				w.wait(time.Minute)
				require.False(t, w.a.owns("q"), "not removed")
				w.remove()
				w.awaitOwner(true)
				require.Equal(t, before, w.a.messages("q"))
				require.NoError(t, w.a.publish(id, stored, 0))
				w.wait(time.Second)
				owned, exists := query.OwnershipEpoch(w.a.store, "q")
				require.True(t, exists)
				require.Greater(t, owned, epoch)
				owner, _, err := w.a.dir.Owner("q")
				require.NoError(t, err)
				require.Equal(t, []any{"a", owned}, []any{owner.Pair, owner.Epoch})

				fence := &pb.FenceQueuesRequest{Epoch: epoch, From: "a", To: "b", QueueIds: []uint64{id}}
				require.ErrorIs(t, w.a.m.Fence(w.t.Context(), fence), apierror.ErrFleetState)
				drop := &pb.DropMovedRequest{Epoch: epoch, From: "a", To: "b"}
				require.ErrorIs(t, w.a.m.Drop(w.t.Context(), drop), apierror.ErrFleetState)
				require.True(t, w.a.owns("q"))
			})
		})
	}
}

// While a node of the removed pair responds, the fence remains, because the pair may serve the queues.
func TestLostTargetResponds(t *testing.T) {
	simulate(t, func(w *world) {
		w.fill("q", 10, txn.Config{})
		epoch := w.loseAt("finish")
		w.net.SetCut("127.0.0.1", "127.0.0.2", false)
		w.remove()
		w.a.m.Stats()
		w.wait(FencedAfter)
		w.a.m.Stats()
		w.wait(FencedAfter)
		require.False(t, w.a.owns("q"))
		require.Len(t, w.a.m.Stats().Fenced, 1)
		owned, _ := query.OwnershipEpoch(w.a.store, "q")
		require.Less(t, owned, epoch)
		w.net.SetCut("127.0.0.1", "127.0.0.2", true)
		w.awaitOwner(true)
		require.Empty(t, w.a.m.Stats().Fenced)
	})
}

// While a third pair owns a name of the move, the source keeps its fenced copy. It serves the queue again after the
// queue of the third pair was deleted.
func TestLostTargetNameInUse(t *testing.T) {
	simulate(t, func(w *world) {
		w.fill("q", 10, txn.Config{})
		before := w.a.messages("q")
		w.loseAt("drop")
		c := w.newPair("c", "127.0.0.4")
		defer c.stop()
		m, err := c.dir.BeginMove(w.t.Context(), []string{"q"})
		require.NoError(t, err)
		require.NoError(t, c.dir.FinishMove(w.t.Context(), m))
		w.remove()
		w.a.m.Stats()
		w.wait(FencedAfter)
		w.a.m.Stats()
		w.wait(FencedAfter)
		require.Len(t, w.a.m.Stats().Fenced, 1)
		require.False(t, w.a.owns("q"))
		require.Equal(t, before, w.a.messages("q"))
		require.NoError(t, c.dir.Release(w.t.Context(), "q", m.Epoch))
		w.awaitOwner(true)
		require.Empty(t, w.a.m.Stats().Fenced)
		require.Equal(t, before, w.a.messages("q"))
	})
}

// A source that is restarted after it has assigned the queues to itself removes the fence then.
func TestReclaimResumes(t *testing.T) {
	simulate(t, func(w *world) {
		id := w.fill("q", 10, txn.Config{})
		w.loseAt("take")
		reached := make(chan struct{}, 1)
		var first atomic.Bool
		first.Store(true)
		w.a.m.o.Step = func(ctx context.Context, step string) error {
			if step != "reclaim" || !first.CompareAndSwap(true, false) {
				return nil
			}
			reached <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}
		w.remove()
		<-reached
		require.False(t, w.a.owns("q"))
		w.a.restart()
		w.awaitOwner(true)
		require.NoError(t, w.a.publish(id, 10, 0))
	})
}

// After the source of a move was removed, the target drops the intent of the move even if its log refuses the
// cancellation, because an import with a higher epoch has begun.
func TestDropAfterSourceRemoved(t *testing.T) {
	simulate(t, func(w *world) {
		w.fill("q", 10, txn.Config{})
		w.b.m.Deactivate()
		m, err := w.b.dir.BeginMove(w.t.Context(), []string{"q"})
		require.NoError(t, err)
		w.b.commit(func(b *txn.Builder) { b.CancelImport(m.Epoch + 1) })
		w.net.SetCut("127.0.0.1", "127.0.0.3", true)
		w.wait(2 * bound) // until the load of the source has expired
		_, err = w.b.dir.Forget(w.t.Context(), "a")
		require.NoError(t, err)
		for !w.b.dir.IsForgotten("a") {
			w.wait(latency)
		}
		w.b.m.Activate(w.b.primary)
		w.wait(time.Minute)
		require.Empty(t, w.b.dir.Moves())
	})
}
