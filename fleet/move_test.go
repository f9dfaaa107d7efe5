// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// moveWorld is a fleet of three pairs.
type moveWorld struct {
	t       *testing.T
	client  *clientv3.Client
	a, b, c *pair
}

func newMoveWorld(t *testing.T) *moveWorld {
	t.Helper()
	w := &moveWorld{t: t, client: start(t).client(t)}
	w.a, w.b, w.c = newPair(t, w.client, "a"), newPair(t, w.client, "b"), newPair(t, w.client, "c")
	for _, p := range []*pair{w.a, w.b, w.c} {
		p.join(t)
		require.NoError(t, p.PutRule(t.Context(), Rule{Pattern: p.name + ".*", Pair: p.name}))
	}
	return w
}

// create creates queues at the pair that their names determine.
func (w *moveWorld) create(p *pair, names ...string) {
	w.t.Helper()
	for _, name := range names {
		o, err := p.Assign(w.t.Context(), name, "")
		require.NoError(w.t, err)
		require.Equal(w.t, p.name, o.Pair)
		p.create(name, o.Epoch)
	}
}

func (w *moveWorld) entry(name string) entryValue {
	w.t.Helper()
	all, _, err := w.a.entries(w.t.Context())
	require.NoError(w.t, err)
	return all[name].entryValue
}

// intents returns the epochs of the moves in etcd.
func (w *moveWorld) intents() (epochs []uint64) {
	w.t.Helper()
	c := newContents(w.a.prefix)
	_, err := w.a.Directory.list(w.t.Context(), "", func(kv *mvccpb.KeyValue) { c.put(string(kv.Key), kv.Value) })
	require.NoError(w.t, err)
	for epoch := range c.moves {
		epochs = append(epochs, epoch)
	}
	require.Empty(w.t, c.invalid)
	return epochs
}

func TestMove(t *testing.T) {
	w := newMoveWorld(t)
	ctx := t.Context()
	w.create(w.a, "a.1{g}", "a.2", "a.3")
	m, err := w.b.BeginMove(ctx, []string{"a.3", "a.1{g}", "a.2"})
	require.NoError(t, err)
	require.Equal(t, Move{Epoch: m.Epoch, From: "a", To: "b", Queues: []string{"a.1{g}", "a.2", "a.3"}}, m)
	require.Equal(t, []uint64{m.Epoch}, w.intents())
	require.Equal(t, "a", w.entry("a.2").Pair, "the entries do not change")
	require.Greater(t, m.Epoch, w.entry("a.3").Epoch)

	delete(w.a.queues, "a.3") // after the take, a.3 was deleted
	require.NoError(t, w.b.FinishMove(ctx, Move{Epoch: m.Epoch, From: "a", Queues: []string{"a.1{g}", "a.2"}}))
	require.Equal(t, entryValue{Pair: "b", Epoch: m.Epoch, Term: 1, Group: "g"}, w.entry("a.1{g}"))
	require.Equal(t, entryValue{Pair: "b", Epoch: m.Epoch, Term: 1}, w.entry("a.2"))
	require.Zero(t, w.entry("a.3"))
	require.Empty(t, w.intents())
	o, err := w.a.Assign(ctx, "a.4{g}", "")
	require.NoError(t, err)
	require.Equal(t, "b", o.Pair, "the group has moved")
	require.NoError(t, w.b.FinishMove(ctx, Move{Epoch: m.Epoch, From: "a", Queues: []string{"a.1{g}", "a.2"}}), "a retry")
}

// A directory that was restored from a copy without the end of a move is detected.
func TestRestoredBeforeEndOfMove(t *testing.T) {
	w := newMoveWorld(t)
	ctx := t.Context()
	w.create(w.a, "a.1")
	m, err := w.b.BeginMove(ctx, []string{"a.1"})
	require.NoError(t, err)
	before, err := w.client.Get(ctx, w.b.prefix, clientv3.WithPrefix())
	require.NoError(t, err)
	require.NoError(t, w.b.FinishMove(ctx, m))
	_, err = w.client.Delete(ctx, w.b.prefix, clientv3.WithPrefix())
	require.NoError(t, err)
	for _, kv := range before.Kvs {
		_, err = w.client.Put(ctx, string(kv.Key), string(kv.Value))
		require.NoError(t, err)
	}
	_, err = w.b.Assign(ctx, "b.1", "")
	require.ErrorIs(t, err, ErrRestored)
}

func TestRefusedMove(t *testing.T) {
	w := newMoveWorld(t)
	ctx := t.Context()
	w.create(w.a, "a.1", "a.2")
	w.create(w.b, "b.1")
	w.create(w.c, "c.1")
	_, err := w.b.BeginMove(ctx, []string{"a.1"})
	require.NoError(t, err)
	many := make([]string, MaxMoveQueues+1)
	for i := range many {
		many[i] = fmt.Sprintf("a.%03d", i)
	}
	for _, c := range []struct {
		to     *pair
		queues []string
		want   error
	}{
		{w.b, nil, ErrInvalid},
		{w.b, many, ErrInvalid},
		{w.b, []string{"a.2", "a.2"}, ErrInvalid},
		{w.b, []string{"none"}, ErrInvalid},
		{w.b, []string{"b.1"}, ErrInvalid},
		{w.b, []string{"a.2", "c.1"}, ErrInvalid},
		{w.b, []string{"a.1"}, ErrMoving},
		{w.c, []string{"a.2", "a.1"}, ErrMoving},
	} {
		_, err := c.to.BeginMove(ctx, c.queues)
		require.ErrorIs(t, err, c.want, c.queues)
	}
	require.NoError(t, w.a.SetState(ctx, "c", StateDraining))
	_, err = w.c.BeginMove(ctx, []string{"a.2"})
	require.ErrorIs(t, err, ErrNoPair, "the target is draining")
	_, err = w.b.BeginMove(ctx, []string{"c.1"})
	require.NoError(t, err, "the source is draining")
	w.b.set(func(s *PairState) { s.Term = 0 })
	_, err = w.b.BeginMove(ctx, []string{"a.2"})
	require.ErrorIs(t, err, ErrNotActive)
}

// A pair does not leave during a move, and an intent is deleted by its target only.
func TestLeaveDuringMove(t *testing.T) {
	w := newMoveWorld(t)
	ctx := t.Context()
	w.create(w.a, "a.1")
	m, err := w.b.BeginMove(ctx, []string{"a.1"})
	require.NoError(t, err)
	require.ErrorIs(t, w.b.Leave(ctx, w.b.list), ErrMoving)
	delete(w.a.queues, "a.1")
	require.ErrorIs(t, w.a.Leave(ctx, w.a.list), ErrMoving)
	require.ErrorIs(t, w.c.CancelMove(ctx, m.Epoch), ErrInvalid)
	require.NoError(t, w.b.CancelMove(ctx, m.Epoch))
	require.NoError(t, w.b.CancelMove(ctx, m.Epoch), "a retry")
	require.NoError(t, w.a.Leave(ctx, w.a.list))
	require.NoError(t, w.b.Leave(ctx, w.b.list))
}

// FinishMove needs no intent, and a lost intent is written again.
func TestLostIntent(t *testing.T) {
	w := newMoveWorld(t)
	ctx := t.Context()
	w.create(w.a, "a.1")
	m, err := w.b.BeginMove(ctx, []string{"a.1"})
	require.NoError(t, err)
	_, err = w.client.Delete(ctx, w.b.moveKey(m.Epoch))
	require.NoError(t, err)
	require.NoError(t, w.b.RestoreMove(ctx, m))
	require.NoError(t, w.b.RestoreMove(ctx, m), "a retry")
	require.Equal(t, []uint64{m.Epoch}, w.intents())
	_, err = w.c.BeginMove(ctx, []string{"a.1"})
	require.ErrorIs(t, err, ErrMoving)
	_, err = w.client.Delete(ctx, w.b.moveKey(m.Epoch))
	require.NoError(t, err)
	require.NoError(t, w.b.FinishMove(ctx, m))
	require.Equal(t, "b", w.entry("a.1").Pair)
	require.Empty(t, w.intents())
}

// FinishMove does not replace an entry of a third pair, or a newer one.
func TestConflictOfMove(t *testing.T) {
	w := newMoveWorld(t)
	ctx := t.Context()
	w.create(w.a, "a.1")
	m, err := w.b.BeginMove(ctx, []string{"a.1"})
	require.NoError(t, err)
	for _, e := range []entryValue{{Pair: "c", Epoch: 1}, {Pair: "a", Epoch: m.Epoch + 1}} {
		_, err := w.client.Put(ctx, w.a.key(dirQueues, "a.1"), encode(e))
		require.NoError(t, err)
		var conflict *ConflictError
		require.ErrorAs(t, w.b.FinishMove(ctx, m), &conflict)
		require.Equal(t, []Conflict{{"a.1", m.Epoch, e.Pair, e.Epoch}}, conflict.Conflicts)
	}
	require.Equal(t, []uint64{m.Epoch}, w.intents())
}

// Neither a queue that is fenced at the source, nor a queue that was taken before FinishMove, is a conflict.
func TestReconcileDuringMove(t *testing.T) {
	w := newMoveWorld(t)
	ctx := t.Context()
	w.create(w.a, "a.1")
	m, err := w.b.BeginMove(ctx, []string{"a.1"})
	require.NoError(t, err)
	w.b.create("a.1", m.Epoch)
	moving := false
	for _, p := range []*pair{w.a, w.b} {
		p.opts.Moving = func(string) bool { return moving }
	}
	reconcile := func(p *pair) int {
		report, err := p.Reconcile(ctx, p.list, nil)
		require.NoError(t, err)
		require.Zero(t, report.Added+report.Updated+report.Removed)
		return len(report.Conflicts)
	}
	require.Equal(t, 1, reconcile(w.b))
	moving = true
	require.Zero(t, reconcile(w.b), "taken")
	require.NoError(t, w.b.FinishMove(ctx, m))
	require.Zero(t, reconcile(w.a), "fenced")
	require.Zero(t, reconcile(w.b))
	moving = false
	require.Equal(t, 1, reconcile(w.a))
}

// The copy contains the moves and groups.
func TestCopyOfMoves(t *testing.T) {
	w := newMoveWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.c.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
	}()
	w.create(w.a, "a.1{g}", "a.2{g}")
	m, err := w.b.BeginMove(ctx, []string{"a.1{g}", "a.2{g}"})
	require.NoError(t, err)
	require.NoError(t, w.c.Await(ctx, func(Status) bool { return len(w.c.Moves()) == 1 }))
	require.Equal(t, []Move{m}, w.c.Moves())
	require.Equal(t, m.Queues, w.c.Group("g"))
	require.Equal(t, w.a.member().Addresses, w.c.PairAddresses("a"))
	require.NoError(t, w.b.FinishMove(ctx, m))
	require.NoError(t, w.c.Await(ctx, func(Status) bool { return len(w.c.Moves()) == 0 }))
	o, found, err := w.c.Owner("a.2{g}")
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, "b", o.Pair)
}
