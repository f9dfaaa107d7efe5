// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/fleet"
	"github.com/lockstep-mq/lockstep/fleet/balance"
)

const gib = 1 << 30

func pair(name string, stored, free uint64) balance.Pair {
	return balance.Pair{
		Member: fleet.Member{Name: name, State: fleet.StateOpen}, Live: true, StoredBytes: stored, FreeBytes: free,
	}
}

func queue(name, pair string, bytes uint64) balance.Queue {
	return balance.Queue{Name: name, Pair: pair, Bytes: bytes}
}

// route is a planned move, for comparisons.
type route struct {
	from, to string
	queues   []string
}

func routes(p balance.Plan) (out []route) {
	for _, m := range p.Moves {
		out = append(out, route{m.From, m.To, m.Queues()})
	}
	return out
}

func TestRebalance(t *testing.T) {
	full := func() *balance.Fleet {
		return &balance.Fleet{
			Pairs: []balance.Pair{pair("a", 80*gib, 20*gib), pair("b", 20*gib, 80*gib), pair("c", 50*gib, 50*gib)},
			Queues: []balance.Queue{
				queue("q1", "a", 30*gib), queue("q2", "a", 25*gib), queue("q3", "a", 25*gib), queue("q4", "b", 20*gib),
				queue("q5", "c", 50*gib),
			},
		}
	}
	for name, c := range map[string]struct {
		change func(f *balance.Fleet)
		want   []route
	}{
		"the largest gain": {func(*balance.Fleet) {}, []route{{"a", "b", []string{"q1"}}}},
		"balanced": {func(f *balance.Fleet) {
			f.Pairs[0].StoredBytes, f.Pairs[1].StoredBytes = 55*gib, 46*gib
			f.Pairs[0].FreeBytes, f.Pairs[1].FreeBytes = 45*gib, 54*gib
			f.Queues = []balance.Queue{queue("q1", "a", 2*gib)}
		}, nil},
		"linked": {func(f *balance.Fleet) {
			f.Queues[1].Links = []string{"q3"}
			f.Queues[0].Fixed = balance.Prepared
		}, []route{{"a", "b", []string{"q2", "q3"}}, {"b", "a", []string{"q4"}}}},
		"group": {func(f *balance.Fleet) {
			f.Queues[1].Group, f.Queues[2].Group, f.Queues[0].Fixed = "g", "g", balance.PolicyDeadLetter
		}, []route{{"a", "b", []string{"q2", "q3"}}, {"b", "a", []string{"q4"}}}},
		"rule": {func(f *balance.Fleet) {
			f.Rules = []fleet.Rule{{Pattern: "q*", Pair: "c"}, {Pattern: "q3", Labels: map[string]string{"x": "y"}}}
		}, []route{{"a", "c", []string{"q2"}}}},
		"draining target": {func(f *balance.Fleet) {
			f.Pairs[1].State = fleet.StateDraining
		}, []route{{"a", "c", []string{"q2"}}}},
		"target is not live": {func(f *balance.Fleet) { f.Pairs[1].Live = false }, []route{{"a", "c", []string{"q2"}}}},
		"move in progress": {func(f *balance.Fleet) {
			f.Moves = []fleet.Move{{Epoch: 9, From: "a", To: "b", Queues: []string{"q1"}}}
		}, nil},
		"one pair": {func(f *balance.Fleet) { f.Pairs = f.Pairs[:1] }, nil},
		"no pair":  {func(f *balance.Fleet) { f.Pairs = nil }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := full()
			c.change(f)
			p := balance.Rebalance(f, balance.Options{Threshold: balance.DefaultThreshold})
			require.Equal(t, c.want, routes(p))
			for _, m := range p.Moves {
				require.Equal(t, []balance.Reason{balance.Bytes}, m.Reasons)
			}
		})
	}
}

// Pairs with the same used space are balanced by their publish rates, if these are not negligible.
func TestRebalanceRates(t *testing.T) {
	f := &balance.Fleet{
		Pairs: []balance.Pair{pair("a", gib, 99*gib), pair("b", gib, 99*gib)},
		Queues: []balance.Queue{
			{Name: "q1", Pair: "a", Rate: 600}, {Name: "q2", Pair: "a", Rate: 500}, {Name: "q3", Pair: "b", Rate: 10},
		},
	}
	p := balance.Rebalance(f, balance.Options{Threshold: 10})
	require.Equal(t, []route{{"a", "b", []string{"q2"}}}, routes(p))
	require.Equal(t, []balance.Reason{balance.Rate}, p.Moves[0].Reasons)
	f.Queues[1].Rate = 200
	require.Empty(t, balance.Rebalance(f, balance.Options{Threshold: 10}).Moves)
}

// Groups with the same source and target are combined, up to the limits of a move.
func TestCombinedMoves(t *testing.T) {
	f := &balance.Fleet{Pairs: []balance.Pair{pair("a", 0, 100*gib), pair("b", 0, 100*gib)}}
	for i := range 120 {
		f.Queues = append(f.Queues, queue(fmt.Sprintf("q%03d", i), "a", 1<<20))
	}
	f.Queues = append(f.Queues, queue("large", "a", gib))
	p := balance.Drain(f, "a", nil)
	require.Len(t, p.Moves, 4)
	require.Equal(t, []string{"large"}, p.Moves[0].Queues())
	for i, want := range []int{50, 50, 20} {
		require.Len(t, p.Moves[i+1].Queues(), want)
	}
	require.Empty(t, p.Left)
}

func TestDrain(t *testing.T) {
	f := &balance.Fleet{
		Pairs: []balance.Pair{pair("a", 40*gib, 60*gib), pair("b", 20*gib, 80*gib), pair("c", 50*gib, 50*gib)},
		Queues: []balance.Queue{
			queue("big", "a", 75*gib), queue("dead", "a", gib), queue("eu", "a", gib), queue("fixed", "a", gib),
			queue("free", "a", gib), queue("moving", "a", gib), queue("orders", "a", gib), queue("us", "a", gib),
			queue("other", "b", gib),
		},
		Rules: []fleet.Rule{{Pattern: "eu", Pair: "c"}, {Pattern: "us", Pair: "a"}},
		Moves: []fleet.Move{{Epoch: 3, From: "a", To: "b", Queues: []string{"moving"}}},
	}
	f.Queues[3].Fixed = balance.PolicyDeadLetter
	f.Queues[6].Links = []string{"dead"}
	for i := range 51 {
		q := queue(fmt.Sprintf("many%02d", i), "a", 0)
		q.Group = "many"
		f.Queues = append(f.Queues, q)
	}
	left := func(p balance.Plan) map[string]balance.Reason {
		out := map[string]balance.Reason{}
		for _, l := range p.Left {
			out[l.Queues[0]] = l.Reason
		}
		return out
	}
	p := balance.Drain(f, "a", nil)
	require.Equal(t, map[string]balance.Reason{
		"big": balance.NoSpace, "fixed": balance.PolicyDeadLetter, "us": balance.Forbidden, "many00": balance.TooManyQueues,
	}, left(p))
	require.ElementsMatch(t, []route{
		{"a", "b", []string{"dead", "orders"}}, {"a", "b", []string{"free"}}, {"a", "c", []string{"eu"}},
	}, routes(p))
	p = balance.Drain(f, "a", []string{"c"})
	for _, m := range p.Moves {
		require.Equal(t, "c", m.To)
	}
	f.Pairs[1].Live, f.Pairs[2].State = false, fleet.StateDraining
	p = balance.Drain(f, "a", nil)
	require.Empty(t, p.Moves)
	require.Equal(t, balance.NoPair, left(p)["free"])
	require.Empty(t, balance.Drain(f, "x", nil).Moves)
}

// A group of which a queue is being moved does not move to another pair.
func TestMovingGroup(t *testing.T) {
	f := &balance.Fleet{
		Pairs:  []balance.Pair{pair("a", 3*gib, 97*gib), pair("b", gib, 99*gib), pair("c", 0, 100*gib)},
		Queues: []balance.Queue{queue("dead", "a", gib), queue("member", "a", gib), queue("moving", "a", gib)},
		Moves:  []fleet.Move{{Epoch: 3, From: "a", To: "b", Queues: []string{"moving"}}},
	}
	f.Queues[0].Group, f.Queues[2].Group, f.Queues[1].Links = "g", "g", []string{"moving"}
	require.Empty(t, balance.Rebalance(f, balance.Options{Threshold: 0.1}).Moves)
	p := balance.Drain(f, "a", nil)
	require.Empty(t, p.Moves)
	require.Len(t, p.Left, 1)
	require.Equal(t, []string{"dead", "member"}, p.Left[0].Queues)
	require.Equal(t, balance.Moving, p.Left[0].Reason)
}

// random returns a random fleet.
func random(r *rand.Rand) *balance.Fleet {
	f := &balance.Fleet{}
	names := []string{"a", "b", "c", "d", "e"}[:1+r.IntN(5)]
	stored := map[string]uint64{}
	for i := range r.IntN(60) {
		q := queue(fmt.Sprintf("q%02d", i), names[r.IntN(len(names))], r.Uint64N(1<<r.IntN(30)))
		if r.IntN(2) == 0 {
			q.Rate = r.Uint64N(1 << r.IntN(16))
		}
		if r.IntN(4) == 0 {
			q.Group = fmt.Sprint(r.IntN(5))
		}
		if r.IntN(5) == 0 && i > 0 {
			q.Links = []string{fmt.Sprintf("q%02d", r.IntN(i))}
		}
		if r.IntN(10) == 0 {
			q.Fixed = balance.PolicyDeadLetter
		}
		stored[q.Pair] += q.Bytes
		f.Queues = append(f.Queues, q)
	}
	for _, name := range names {
		p := pair(name, stored[name], r.Uint64N(1<<(20+r.IntN(14))))
		if p.Labels = map[string]string{"zone": fmt.Sprint(r.IntN(2))}; r.IntN(8) == 0 {
			p.State = fleet.StateDraining
		}
		p.Live = r.IntN(8) != 0
		f.Pairs = append(f.Pairs, p)
	}
	for _, pattern := range []string{"q1*", "q2?", "q33"} {
		if r.IntN(2) == 0 {
			f.Rules = append(f.Rules, fleet.Rule{Pattern: pattern, Labels: map[string]string{"zone": fmt.Sprint(r.IntN(2))}})
		}
	}
	return f
}

// apply executes a plan.
func apply(f *balance.Fleet, p balance.Plan) {
	at := func(name string) *balance.Pair {
		return &f.Pairs[slices.IndexFunc(f.Pairs, func(p balance.Pair) bool { return p.Name == name })]
	}
	for _, m := range p.Moves {
		for _, name := range m.Queues() {
			q := &f.Queues[slices.IndexFunc(f.Queues, func(q balance.Queue) bool { return q.Name == name })]
			from, to := at(m.From), at(m.To)
			from.StoredBytes, from.FreeBytes = from.StoredBytes-q.Bytes, from.FreeBytes+q.Bytes
			to.StoredBytes, to.FreeBytes = to.StoredBytes+q.Bytes, to.FreeBytes-q.Bytes
			q.Pair = m.To
		}
	}
}

func spread(loads []balance.Load, value func(balance.Load) float64) float64 {
	low, high := math.Inf(1), math.Inf(-1)
	for _, l := range loads {
		low, high = min(low, value(l)), max(high, value(l))
	}
	return max(0, high-low)
}

// checkMoves verifies the rules of each move: the states of the pairs, placement rules, whole groups, and limits.
func checkMoves(t *testing.T, f *balance.Fleet, p balance.Plan) {
	t.Helper()
	pairs, queues, moved := map[string]balance.Pair{}, map[string]balance.Queue{}, map[string]string{}
	for _, p := range f.Pairs {
		pairs[p.Name] = p
	}
	for _, q := range f.Queues {
		queues[q.Name] = q
	}
	for _, m := range p.Moves {
		to := pairs[m.To]
		require.True(t, to.Live && to.State == fleet.StateOpen)
		require.LessOrEqual(t, len(m.Queues()), fleet.MaxMoveQueues)
		for _, name := range m.Queues() {
			require.Equal(t, m.From, queues[name].Pair)
			require.Empty(t, queues[name].Fixed)
			require.NotContains(t, moved, name)
			moved[name] = m.To
			rule, found := fleet.RuleOf(f.Rules, name)
			require.True(t, !found || rule.Permits(to.Member), "%s to %s", name, m.To)
		}
	}
	for _, a := range f.Queues {
		for _, b := range f.Queues {
			if a.Pair == b.Pair && (a.Group != "" && a.Group == b.Group || slices.Contains(a.Links, b.Name)) {
				require.Equal(t, moved[a.Name], moved[b.Name], "%s and %s", a.Name, b.Name)
			}
		}
	}
}

// For random fleets, a plan moves only permitted queues, increases no imbalance above the threshold, and leaves nothing
// to move unless MaxMoves has limited it.
func TestPlanProperties(t *testing.T) {
	planned := 0
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		f := random(r)
		o := balance.Options{Threshold: 1 + 20*r.Float64()}
		if seed%3 == 0 {
			o.MaxMoves = 1 + r.IntN(3)
		}
		p := balance.Rebalance(f, o)
		planned += len(p.Moves)
		checkMoves(t, f, p)
		for _, value := range []func(balance.Load) float64{
			func(l balance.Load) float64 { return l.Used }, func(l balance.Load) float64 { return l.Share },
		} {
			before, after := spread(p.Before, value), spread(p.After, value)
			require.LessOrEqual(t, after, max(before, o.Threshold)+1e-9, "seed %d", seed)
		}
		if o.MaxMoves > 0 {
			require.LessOrEqual(t, len(p.Moves), o.MaxMoves)
		}
		apply(f, p)
		again := balance.Rebalance(f, balance.Options{Threshold: o.Threshold})
		require.Equal(t, p.After, again.Before, "seed %d", seed)
		if o.MaxMoves == 0 {
			require.Empty(t, again.Moves, "seed %d", seed)
		}
		source := f.Pairs[r.IntN(len(f.Pairs))].Name
		drained := balance.Drain(f, source, nil)
		checkMoves(t, f, drained)
		apply(f, drained)
		require.Empty(t, balance.Drain(f, source, nil).Moves, "seed %d", seed)
	}
	require.Greater(t, planned, 1000, "the fleets are not trivial")
}
