// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The queues of a move to a removed pair are assigned to the source again, with a higher epoch: before and after the
// end of the move, and after Forget has removed the entries of the target.
func TestReclaim(t *testing.T) {
	w := newMoveWorld(t)
	ctx := t.Context()
	w.create(w.a, "a.fenced{g}", "a.taken", "a.removed")
	var moves []Move
	for _, name := range []string{"a.fenced{g}", "a.taken", "a.removed"} {
		m, err := w.b.BeginMove(ctx, []string{name})
		require.NoError(t, err)
		moves = append(moves, m)
		_, err = w.a.Reclaim(ctx, m)
		require.ErrorIs(t, err, ErrLive)
	}
	require.NoError(t, w.b.FinishMove(ctx, Move{Epoch: moves[2].Epoch, From: "a", Queues: moves[2].Queues}))
	w.lose(w.b)
	_, err := w.a.Forget(ctx, "b")
	require.NoError(t, err)
	require.Zero(t, w.entry("a.removed"))
	require.NoError(t, w.c.PutRule(ctx, Rule{Pattern: "a.*", Pair: "c"}))

	w.a.loadCopy(t)
	_, lost := w.a.LostTarget("c", moves[0].Epoch)
	require.False(t, lost)
	addresses, lost := w.a.LostTarget("b", moves[0].Epoch)
	require.True(t, lost)
	require.Equal(t, w.b.member().Addresses, addresses)
	for range 2 { // repeated after a crash
		for _, m := range moves {
			epoch, err := w.a.Reclaim(ctx, m)
			require.NoError(t, err)
			require.Greater(t, epoch, moves[2].Epoch)
			e := w.entry(m.Queues[0])
			require.Equal(t, "a", e.Pair)
			require.Equal(t, epoch, e.Epoch)
			require.Equal(t, Tag(m.Queues[0]), e.Group)
		}
	}
	require.Empty(t, w.intents())
	o, err := w.c.Assign(ctx, "a.removed", "")
	require.NoError(t, err)
	require.Equal(t, "a", o.Pair)

	// Another pair has the name of the removed one.
	again := newPair(t, w.client, "b")
	again.opts.PairID = "id-b2"
	again.join(t)
	w.a.loadCopy(t)
	_, lost = w.a.LostTarget("b", moves[2].Epoch)
	require.True(t, lost)
	next, err := again.BeginMove(ctx, []string{"a.taken"})
	require.NoError(t, err)
	_, lost = w.a.LostTarget("b", next.Epoch)
	require.False(t, lost)
	_, err = w.a.Reclaim(ctx, next)
	require.ErrorIs(t, err, ErrLive)
	_, err = w.a.Reclaim(ctx, moves[1])
	require.ErrorIs(t, err, ErrMoving)
	require.NoError(t, again.FinishMove(ctx, Move{Epoch: next.Epoch, From: "a", Queues: next.Queues}))
	_, err = w.a.Reclaim(ctx, moves[1])
	var conflict *ConflictError
	require.ErrorAs(t, err, &conflict, "the queue belongs to the new pair")
	require.Equal(t, "b", w.entry("a.taken").Pair)
	require.Equal(t, next.Epoch, w.entry("a.taken").Epoch)
}

// A queue that the removed target has moved on, or that a third pair has created, is not assigned to the source.
func TestReclaimOfOtherPair(t *testing.T) {
	w := newMoveWorld(t)
	ctx := t.Context()
	w.create(w.a, "a.next", "a.created")
	var moves []Move
	for _, name := range []string{"a.next", "a.created"} {
		m, err := w.b.BeginMove(ctx, []string{name})
		require.NoError(t, err)
		require.NoError(t, w.b.FinishMove(ctx, Move{Epoch: m.Epoch, From: "a", Queues: m.Queues}))
		moves = append(moves, m)
	}
	next, err := w.c.BeginMove(ctx, []string{"a.next"})
	require.NoError(t, err)
	w.lose(w.b)
	forgotten, err := w.a.Forget(ctx, "b")
	require.NoError(t, err)
	require.Equal(t, []uint64{next.Epoch}, forgotten.Waiting)
	_, err = w.a.Reclaim(ctx, moves[0])
	require.ErrorIs(t, err, ErrMoving, "the next target may have taken the queue")
	require.NoError(t, w.c.FinishMove(ctx, Move{Epoch: next.Epoch, From: "b", Queues: next.Queues}))
	require.NoError(t, w.c.PutRule(ctx, Rule{Pattern: "a.*", Pair: "c"}))
	_, err = w.c.Assign(ctx, "a.created", "")
	require.NoError(t, err)
	for _, m := range moves {
		var conflict *ConflictError
		_, err = w.a.Reclaim(ctx, m)
		require.ErrorAs(t, err, &conflict)
		require.Equal(t, "c", w.entry(m.Queues[0]).Pair)
	}
}
