// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/fleet"
)

// state is the state of the fleet after the moves that were planned.
type state struct {
	pairs  []Pair // sorted by name
	index  map[string]int
	usable []bool // pairs that are compared, and that can be targets
	stored []uint64
	space  []uint64 // used and free
	rate   []uint64
	queues []int
	units  []*unit // sorted by name
}

// unit is a group of queues that move together.
type unit struct {
	queues      []string // sorted
	bytes, rate uint64
	origin, at  int    // pairs
	permitted   []bool // by pair
	rule        string // patterns of the rules that apply
	fixed       Reason
	detail      string
	reasons     []Reason
}

func newState(f *Fleet) *state {
	s := &state{
		pairs: slices.SortedFunc(slices.Values(f.Pairs), func(a, b Pair) int { return strings.Compare(a.Name, b.Name) }),
		index: map[string]int{},
	}
	n := len(s.pairs)
	s.usable, s.queues = make([]bool, n), make([]int, n)
	s.stored, s.space, s.rate = make([]uint64, n), make([]uint64, n), make([]uint64, n)
	for i, p := range s.pairs {
		s.index[p.Name] = i
		s.usable[i], s.stored[i], s.space[i] = s.open(i), p.StoredBytes, p.StoredBytes+p.FreeBytes
	}
	moving := map[string]fleet.Move{}
	for _, m := range f.Moves {
		for _, name := range m.Queues {
			moving[name] = m
		}
	}
	byUnit, leaving := map[string][]Queue{}, map[string]fleet.Move{}
	roots := linked(f.Queues)
	for _, q := range f.Queues {
		root := roots[key(q)]
		if m, is := moving[q.Name]; is && m.From == q.Pair {
			leaving[root] = m
			s.arrive(q, m)
			continue
		}
		if i, known := s.index[q.Pair]; known {
			byUnit[root] = append(byUnit[root], q)
			s.rate[i] += q.Rate
			s.queues[i]++
		}
	}
	for root, queues := range byUnit {
		u := s.newUnit(f, queues, moving)
		if m, is := leaving[root]; is && u.fixed == "" {
			u.fixed, u.detail = movingBy(m)
		}
		s.units = append(s.units, u)
	}
	slices.SortFunc(s.units, func(a, b *unit) int { return strings.Compare(a.queues[0], b.queues[0]) })
	s.raise()
	return s
}

// raise raises the used and the total space of a pair, if its load is outdated and less than the size of its queues.
func (s *state) raise() {
	sums := make([]uint64, len(s.pairs))
	for _, u := range s.units {
		sums[u.at] += u.bytes
	}
	for i, sum := range sums {
		s.stored[i] = max(s.stored[i], sum)
		s.space[i] = max(s.space[i], s.stored[i])
	}
}

func (s *state) open(i int) bool { return s.pairs[i].Live && s.pairs[i].State == fleet.StateOpen }

// arrive counts a queue at the target of its move, instead of at its source.
func (s *state) arrive(q Queue, m fleet.Move) {
	if from, known := s.index[m.From]; known {
		s.stored[from] -= min(s.stored[from], q.Bytes)
	}
	if to, known := s.index[m.To]; known {
		s.stored[to] += min(q.Bytes, s.space[to]-s.stored[to])
		s.rate[to] += q.Rate
		s.queues[to]++
	}
}

// key identifies a queue. During a move, two pairs can have queues with the same name.
func key(q Queue) string { return q.Pair + "\x00" + q.Name }

// linked returns, for each queue, the key that represents its group.
func linked(queues []Queue) map[string]string {
	parent := make(map[string]string, len(queues))
	for _, q := range queues {
		parent[key(q)] = key(q)
	}
	root := func(k string) string {
		for parent[k] != k {
			parent[k] = parent[parent[k]]
			k = parent[k]
		}
		return k
	}
	join := func(a, b string) {
		if _, known := parent[b]; known {
			parent[root(a)] = root(b)
		}
	}
	groups := map[string]string{}
	for _, q := range queues {
		for _, name := range q.Links {
			join(key(q), key(Queue{Name: name, Pair: q.Pair}))
		}
		if q.Group == "" {
			continue
		}
		join(key(q), key(Queue{Name: q.Group, Pair: q.Pair})) // the queue with the name of the group
		group := q.Pair + "\x00" + q.Group
		if first, found := groups[group]; found {
			join(key(q), first)
		} else {
			groups[group] = key(q)
		}
	}
	out := make(map[string]string, len(queues))
	for k := range parent {
		out[k] = root(k)
	}
	return out
}

func (s *state) newUnit(f *Fleet, queues []Queue, moving map[string]fleet.Move) *unit {
	slices.SortFunc(queues, func(a, b Queue) int { return strings.Compare(a.Name, b.Name) })
	u := &unit{origin: s.index[queues[0].Pair], permitted: make([]bool, len(s.pairs))}
	u.at = u.origin
	for i := range u.permitted {
		u.permitted[i] = true
	}
	patterns := map[string]bool{}
	for _, q := range queues {
		u.queues = append(u.queues, q.Name)
		u.bytes, u.rate = u.bytes+q.Bytes, u.rate+q.Rate
		if u.fixed == "" {
			u.fixed, u.detail = q.Fixed, q.Detail
		}
		if m, is := moving[q.Name]; is && u.fixed == "" {
			u.fixed, u.detail = movingBy(m)
		}
		rule, found := fleet.RuleOf(f.Rules, q.Name)
		if !found {
			continue
		}
		patterns[rule.Pattern] = true
		for i, p := range s.pairs {
			u.permitted[i] = u.permitted[i] && rule.Permits(p.Member)
		}
	}
	u.rule = strings.Join(slices.Sorted(maps.Keys(patterns)), ", ")
	if len(u.queues) > fleet.MaxMoveQueues && u.fixed == "" {
		u.fixed = TooManyQueues
		u.detail = fmt.Sprintf("%d linked queues, a move can have %d", len(u.queues), fleet.MaxMoveQueues)
	}
	return u
}

func movingBy(m fleet.Move) (Reason, string) {
	return Moving, fmt.Sprintf("move %d to pair %s", m.Epoch, m.To)
}

// move changes the pair of a group.
func (s *state) move(u *unit, to int) {
	s.stored[u.at] -= u.bytes
	s.rate[u.at] -= u.rate
	s.queues[u.at] -= len(u.queues)
	s.stored[to] += u.bytes
	s.rate[to] += u.rate
	s.queues[to] += len(u.queues)
	u.at = to
}

// fits reports whether the reserve of a pair remains free after a move to it.
func (s *state) fits(to int, bytes uint64) bool {
	return s.stored[to]+bytes <= s.space[to]-s.space[to]/reserve
}

// rated returns the publish rate of all usable pairs; 0 if it is ignored.
func (s *state) rated() (total uint64) {
	for i, r := range s.rate {
		if s.usable[i] {
			total += r
		}
	}
	if total < MinRate {
		return 0
	}
	return total
}

// moves returns the moves from the present to the planned state. It combines groups with the same source and target, up
// to the limits of a move.
func (s *state) moves() []Move {
	type route struct{ from, to int }
	var moves []Move
	last := map[route]int{} // index of the last move
	for _, u := range s.units {
		if u.at == u.origin {
			continue
		}
		r := route{u.origin, u.at}
		at, found := last[r]
		if !found || moves[at].queues()+len(u.queues) > fleet.MaxMoveQueues || moves[at].Bytes+u.bytes > MaxMoveBytes {
			at = len(moves)
			last[r] = at
			moves = append(moves, Move{From: s.pairs[r.from].Name, To: s.pairs[r.to].Name})
		}
		m := &moves[at]
		m.Groups = append(m.Groups, u.queues)
		m.Bytes, m.Rate = m.Bytes+u.bytes, m.Rate+u.rate
		m.Reasons = slices.Compact(slices.Sorted(slices.Values(slices.Concat(m.Reasons, u.reasons))))
	}
	slices.SortStableFunc(moves, func(a, b Move) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Rate, a.Rate))
	})
	return moves
}

func (m *Move) queues() (n int) {
	for _, g := range m.Groups {
		n += len(g)
	}
	return n
}

func (s *state) loads() (loads []Load) {
	total := s.rated()
	for i, p := range s.pairs {
		if s.usable[i] {
			loads = append(loads, Load{
				Pair: p.Name, Queues: s.queues[i], StoredBytes: s.stored[i], FreeBytes: s.space[i] - min(s.space[i], s.stored[i]),
				Rate: s.rate[i], Used: 100 * fraction(s.stored[i], s.space[i]), Share: 100 * fraction(s.rate[i], total),
			})
		}
	}
	return loads
}

func fraction(a, b uint64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// part is a part of the load of pairs.
type part struct {
	reason Reason
	value  func(s *state, i int) float64
	weight func(s *state, i int) float64
	mean   func(s *state) float64
}

// parts returns the parts that are compared.
func (s *state) parts() []part {
	space, stored, pairs := uint64(0), uint64(0), 0
	for i := range s.pairs {
		if s.usable[i] {
			space, stored, pairs = space+s.space[i], stored+s.stored[i], pairs+1
		}
	}
	parts := []part{{
		reason: Bytes,
		value:  func(s *state, i int) float64 { return fraction(s.stored[i], s.space[i]) },
		weight: func(s *state, i int) float64 { return fraction(s.space[i], space) },
		mean:   func(*state) float64 { return fraction(stored, space) },
	}}
	if total := s.rated(); total > 0 {
		equal := fraction(1, uint64(pairs))
		parts = append(parts, part{
			reason: Rate,
			value:  func(s *state, i int) float64 { return fraction(s.rate[i], total) },
			weight: func(*state, int) float64 { return equal },
			mean:   func(*state) float64 { return equal },
		})
	}
	return parts
}

// extremes returns the usable pairs with the lowest and the highest value; -1 without a usable pair.
func (p *part) extremes(s *state) (low, high int) {
	low, high = -1, -1
	for i := range s.pairs {
		if !s.usable[i] {
			continue
		}
		if low < 0 || p.value(s, i) < p.value(s, low) {
			low = i
		}
		if high < 0 || p.value(s, i) > p.value(s, high) {
			high = i
		}
	}
	return low, high
}

// spread returns the imbalance of the part.
func (p *part) spread(s *state) float64 {
	low, high := p.extremes(s)
	if low < 0 {
		return 0
	}
	return p.value(s, high) - p.value(s, low)
}
