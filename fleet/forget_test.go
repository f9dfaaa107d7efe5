// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// lose ends the load of a pair.
func (w *moveWorld) lose(p *pair) {
	w.t.Helper()
	_, err := w.client.Delete(w.t.Context(), w.a.key(dirLoad, p.name))
	require.NoError(w.t, err)
}

// A live pair cannot be removed. A lost pair is removed with its names, and cannot change the directory afterwards.
// Another pair can have its name.
func TestForget(t *testing.T) {
	w := newMoveWorld(t)
	ctx := t.Context()
	var names []string
	for i := range batchQueues + 1 {
		names = append(names, fmt.Sprintf("b.%d{g}", i))
	}
	w.create(w.b, names...)
	w.create(w.a, "a.1")
	_, err := w.a.Forget(ctx, "b")
	require.ErrorIs(t, err, ErrLive)
	_, err = w.a.Forget(ctx, "a")
	require.ErrorIs(t, err, ErrInvalid)
	_, err = w.a.Forget(ctx, "z")
	require.ErrorIs(t, err, ErrNotMember)

	w.lose(w.b)
	require.Equal(t, StateOpen, stateOf(t, w.client, "b"))
	forgotten, err := w.a.Forget(ctx, "b")
	require.NoError(t, err)
	require.Equal(t, Forgotten{Queues: len(names)}, forgotten)
	_, err = w.a.Forget(ctx, "b")
	require.ErrorIs(t, err, ErrNotMember)
	require.Zero(t, w.entry(names[0]))
	require.Equal(t, "a", w.entry("a.1").Pair)

	require.NoError(t, w.a.PutRule(ctx, Rule{Pattern: "b.*", Pair: "c"}))
	o, err := w.c.Assign(ctx, names[0], "")
	require.NoError(t, err)
	require.Equal(t, "c", o.Pair, "the name and its placement group are free")
	require.Greater(t, o.Epoch, w.b.queues[names[0]])

	// The lost pair returns, without and with a copy of the directory.
	for _, loaded := range []bool{false, true} {
		if loaded {
			w.b.loadCopy(t)
		}
		for name, err := range map[string]error{
			"assign":    second(w.b.Assign(ctx, "b.new", "")),
			"update":    w.b.UpdateMember(ctx, w.b.member()),
			"reconcile": second(w.b.Reconcile(ctx, w.b.list, nil)),
			"rebuild":   second(w.b.Rebuild(ctx, w.b.member(), nil, w.b.list)),
			"state":     w.b.SetState(ctx, "a", StateDraining),
			"rule":      w.b.PutRule(ctx, Rule{Pattern: "x", Pair: "b"}),
			"move":      second(w.b.BeginMove(ctx, []string{"a.1"})),
			"restore":   w.b.RestoreMove(ctx, Move{Epoch: 900, From: "a", Queues: []string{"a.1"}}),
			"finish":    w.b.FinishMove(ctx, Move{Epoch: 900, From: "a", Queues: []string{"a.1"}}),
			"leave":     w.b.Leave(ctx, w.b.list),
		} {
			require.Error(t, err, name)
			if loaded && name != "leave" {
				require.ErrorIs(t, err, ErrForgotten, name)
			}
		}
	}
	require.Zero(t, w.entry("b.new"))
	require.Equal(t, "a", w.entry("a.1").Pair)
	require.Equal(t, "c", w.entry(names[0]).Pair)
	require.NoError(t, w.b.PutLoad(ctx, Load{}))
	w.b.queues = map[string]uint64{}
	require.NoError(t, w.b.Leave(ctx, w.b.list), "without queues, the membership in the log can end")
	w.b.set(func(s *PairState) { s.FleetID = "" })
	_, _, err = w.b.Join(ctx, w.b.member(), w.b.list)
	require.ErrorIs(t, err, ErrForgotten)

	again := newPair(t, w.client, "b")
	again.opts.PairID = "id-b2"
	again.join(t)
	require.Equal(t, StateOpen, stateOf(t, w.client, "b"))
}

func second[T any](_ T, err error) error { return err }

// loadCopy loads the copy of the directory.
func (p *pair) loadCopy(t *testing.T) {
	t.Helper()
	c, _, err := p.Directory.load(t.Context())
	require.NoError(t, err)
	p.update(func() { p.copy, p.current = c, true })
}

// A restored directory can be rebuilt without a lost pair.
func TestForgetDuringRebuild(t *testing.T) {
	w := newMoveWorld(t)
	ctx := t.Context()
	w.create(w.b, "b.1")
	w.lose(w.b)
	_, err := w.client.Put(ctx, w.a.prefix+keyCounter, "1")
	require.NoError(t, err)
	w.a.set(func(s *PairState) { s.MaxEpoch = 99 })
	report, err := w.a.Rebuild(ctx, w.a.member(), nil, w.a.list)
	require.NoError(t, err)
	require.Equal(t, []string{"b", "c"}, report.Waiting)
	report, err = w.c.Rebuild(ctx, w.c.member(), nil, w.c.list)
	require.NoError(t, err)
	require.Equal(t, []string{"b"}, report.Waiting)
	forgotten, err := w.a.Forget(ctx, "b")
	require.NoError(t, err)
	require.Equal(t, 1, forgotten.Queues)
	report, err = w.c.Rebuild(ctx, w.c.member(), nil, w.c.list)
	require.NoError(t, err)
	require.Empty(t, report.Waiting)
}

// The names of queues that move from a lost pair remain until the target has ended the move. Intents of moves to a lost
// pair are deleted.
func TestForgetDuringMoves(t *testing.T) {
	w := newMoveWorld(t)
	ctx := t.Context()
	w.create(w.b, "b.taken", "b.canceled", "b.other")
	w.create(w.a, "a.1", "a.2")
	taken, err := w.c.BeginMove(ctx, []string{"b.taken"})
	require.NoError(t, err)
	canceled, err := w.c.BeginMove(ctx, []string{"b.canceled"})
	require.NoError(t, err)
	to1, err := w.b.BeginMove(ctx, []string{"a.1"})
	require.NoError(t, err)
	to2, err := w.b.BeginMove(ctx, []string{"a.2"})
	require.NoError(t, err)
	w.lose(w.b)
	forgotten, err := w.a.Forget(ctx, "b")
	require.NoError(t, err)
	require.Equal(t, Forgotten{
		Queues: 1, Moves: []uint64{to1.Epoch, to2.Epoch}, Waiting: []uint64{taken.Epoch, canceled.Epoch},
	}, forgotten)
	require.Equal(t, StateForgotten, stateOf(t, w.client, "b"))
	require.Equal(t, "b", w.entry("b.taken").Pair)
	require.Equal(t, "a", w.entry("a.1").Pair)
	w.c.loadCopy(t)
	require.True(t, w.c.IsForgotten("b"))
	require.False(t, w.c.IsForgotten("a"))
	_, err = w.c.BeginMove(ctx, []string{"b.canceled"})
	require.ErrorIs(t, err, ErrMoving)
	require.ErrorIs(t, w.a.SetState(ctx, "b", StateOpen), ErrForgotten)

	require.NoError(t, w.c.FinishMove(ctx, Move{Epoch: taken.Epoch, From: "b", Queues: []string{"b.taken"}}))
	require.NoError(t, w.c.CancelMove(ctx, canceled.Epoch))
	forgotten, err = w.a.Forget(ctx, "b")
	require.NoError(t, err)
	require.Equal(t, Forgotten{Queues: 1}, forgotten)
	require.Equal(t, "c", w.entry("b.taken").Pair)
	require.Zero(t, w.entry("b.canceled"))
	kvs, err := w.client.Get(ctx, w.a.key(dirPairs, "b"), clientv3.WithCountOnly())
	require.NoError(t, err)
	require.Zero(t, kvs.Count)
	w.c.loadCopy(t)
	require.True(t, w.c.IsForgotten("b"))
	require.Empty(t, w.intents())
}
