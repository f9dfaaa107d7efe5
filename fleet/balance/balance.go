// SPDX-License-Identifier: Apache-2.0

// Package balance plans moves of queues between the pairs of a fleet (decision 0041).
//
// A plan is computed from a description of the fleet, and has no effect. Queues that refer to each other, and queues of
// a placement group, form a group, which moves as a whole. No queue moves to a pair that its placement rule forbids, to
// a pair that is not open and live, or to a pair that would then have less free space than its reserve.
//
// # Rebalance
//
// The load of a pair has two parts: the used fraction of its space, and its share of the messages that are published
// in the fleet. The imbalance of a part is the difference between the highest and the lowest value of all open and
// live pairs. While the imbalance of a part exceeds the threshold, a group moves from the pair with the highest
// value, or, if that is not possible, to the pair with the lowest. Of the possible moves, the one that reduces the
// variance of both parts the most is planned first. A move is only planned if it reduces the variance, and if it
// increases no imbalance above the threshold. Therefore, planning ends, no imbalance above the threshold becomes
// worse, and after the moves of a complete plan, the next plan is empty.
package balance

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/fleet"
)

const (
	// DefaultThreshold is the default of the CLI for Options.Threshold.
	DefaultThreshold = 10
	// MinRate is the number of published messages per second below which the publish rates of a fleet are ignored.
	MinRate = 1000
	// MaxMoveBytes is the maximum size of a move with more than one group.
	MaxMoveBytes = 256 << 20
	// reserve determines the free space that remains on the target of a move: 1/reserve of its space.
	reserve = 10
	// maxSteps is the maximum number of planning steps of Rebalance. A step moves one group.
	maxSteps = 10_000
	// minGain is the minimum reduction of the variance. It exceeds rounding errors.
	minGain = 1e-12
)

// Pair is a registered pair.
type Pair struct {
	fleet.Member

	// Live reports whether the load of the pair is known.
	Live                   bool
	StoredBytes, FreeBytes uint64
}

// Queue is a queue of a pair.
type Queue struct {
	Name string
	// Pair is the owner.
	Pair string
	// Group is the placement group; empty if the queue belongs to none.
	Group string
	Bytes uint64
	// Rate is the number of published messages per second.
	Rate uint64
	// Links are the queues of the same pair to which this queue refers: dead-letter queues and forward targets.
	Links []string
	// Fixed is the reason why the queue cannot be moved, and Detail describes it; empty if it can be moved.
	Fixed  Reason
	Detail string
}

// Fleet describes the state of a fleet.
type Fleet struct {
	Pairs  []Pair
	Queues []Queue
	Rules  []fleet.Rule
	// Moves are the moves that have not ended. Their queues count at the target.
	Moves []fleet.Move
}

// Reason is the reason for a move, or the reason why queues cannot be moved.
type Reason string

// Reasons for moves.
const (
	// Bytes means that the imbalance of the used fractions exceeds the threshold.
	Bytes Reason = "bytes"
	// Rate means that the imbalance of the publish rates exceeds the threshold.
	Rate Reason = "rate"
	// Draining means that the move is part of a plan of Drain.
	Draining Reason = "drain"
)

// Reasons why queues cannot be moved.
const (
	// TooManyQueues means that the group has more queues than a move can have.
	TooManyQueues Reason = "too-many-queues"
	// NoPair means that no possible target is open and live.
	NoPair Reason = "no-pair"
	// Forbidden means that placement rules forbid all possible targets that are open and live.
	Forbidden Reason = "placement-rule"
	// NoSpace means that no permitted target has enough free space.
	NoSpace Reason = "no-space"
	// Moving means that a queue of the group is part of a move that has not ended.
	Moving Reason = "moving"
	// PolicyDeadLetter means that a queue of the group is the dead-letter queue of a policy.
	PolicyDeadLetter Reason = "policy-dead-letter"
	// Prepared means that a prepared transaction uses a queue of the group.
	Prepared Reason = "prepared-transaction"
	// AccessDenied means that the caller has no right on a queue of the group. The callers set it, not this package.
	AccessDenied Reason = "access-denied"
	// Failed means that a move of the group was attempted and did not succeed. The CLI uses it, not this package.
	Failed Reason = "failed"
)

// Move is a planned move.
type Move struct {
	From, To string
	// Groups are the names of the queues by group. Each group can be moved separately.
	Groups      [][]string
	Bytes, Rate uint64
	Reasons     []Reason
}

// Queues returns the names of all queues, sorted.
func (m *Move) Queues() []string { return slices.Sorted(slices.Values(slices.Concat(m.Groups...))) }

// Left is a group that cannot be moved.
type Left struct {
	Queues []string
	Reason Reason
	Detail string
}

// Load is the load of a pair.
type Load struct {
	Pair                         string
	Queues                       int
	StoredBytes, FreeBytes, Rate uint64
	// Used is the used fraction of the space, and Share the fraction of the fleet's publish rate, in percent.
	Used, Share float64
}

// Plan is the result of Rebalance or Drain.
type Plan struct {
	Moves []Move
	// Before and After are the loads of the open and live pairs, sorted by name.
	Before, After []Load
	// Left are the groups of a drained pair that cannot be moved.
	Left []Left
}

// Options configures Rebalance.
type Options struct {
	// Threshold is the imbalance in percentage points up to which nothing is moved. It must be positive.
	Threshold float64
	// MaxMoves is the maximum number of moves; 0 means no limit.
	MaxMoves int
}

// Rebalance plans the moves that reduce the imbalance of a fleet to the threshold, as far as possible.
func Rebalance(f *Fleet, o Options) Plan {
	s := newState(f)
	p := Plan{Before: s.loads()}
	for range maxSteps {
		reason, u, to := s.next(o.Threshold / 100)
		if u == nil {
			break
		}
		from := u.at
		s.move(u, to)
		if u.reasons = append(u.reasons, reason); o.MaxMoves > 0 && len(s.moves()) > o.MaxMoves {
			s.move(u, from)
			break
		}
	}
	p.Moves, p.After = s.moves(), s.loads()
	return p
}

// Drain plans moves of all queues of a pair. The argument to lists the possible targets; if it is empty, all other
// pairs are possible. For an unknown pair, the plan contains no moves.
func Drain(f *Fleet, pair string, to []string) Plan {
	s := newState(f)
	p := Plan{Before: s.loads()}
	source, found := s.index[pair]
	if !found {
		return p
	}
	for i := range s.pairs {
		s.usable[i] = s.usable[i] && i != source && (len(to) == 0 || slices.Contains(to, s.pairs[i].Name))
	}
	var units []*unit
	for _, u := range s.units {
		if u.at == source {
			units = append(units, u)
		}
	}
	slices.SortStableFunc(units, func(a, b *unit) int { return cmp.Compare(b.bytes, a.bytes) })
	for _, u := range units {
		target, reason := s.target(u)
		if reason == "" {
			s.move(u, target)
			u.reasons = []Reason{Draining}
			continue
		}
		p.Left = append(p.Left, Left{Queues: u.queues, Reason: reason, Detail: u.detail})
	}
	slices.SortFunc(p.Left, func(a, b Left) int { return strings.Compare(a.Queues[0], b.Queues[0]) })
	p.Moves = s.moves()
	for i := range s.pairs {
		s.usable[i] = s.open(i)
	}
	p.After = s.loads()
	return p
}

// target returns the target for a group of a drained pair: of the permitted pairs with enough space, the one with the
// lowest load afterwards. If the group cannot be moved, it returns the reason, and sets u.detail if that is a rule.
func (s *state) target(u *unit) (best int, _ Reason) {
	if u.fixed != "" {
		return 0, u.fixed
	}
	reason := NoPair
	found, bestLoad := false, [3]int{}
	for i := range s.pairs {
		switch {
		case !s.usable[i]:
			continue
		case !u.permitted[i]:
			if reason == NoPair {
				reason = Forbidden
			}
			continue
		case !s.fits(i, u.bytes):
			reason = NoSpace
			continue
		}
		load := [3]int{
			int(100 * fraction(s.stored[i]+u.bytes, s.space[i])), int(100 * fraction(s.rate[i]+u.rate, s.rated())), s.queues[i],
		}
		if !found || slices.Compare(load[:], bestLoad[:]) < 0 {
			found, best, bestLoad = true, i, load
		}
	}
	if found {
		return best, ""
	}
	if reason == Forbidden {
		u.detail = u.rule
	}
	return 0, reason
}

// next returns the next group to move, and its target. If there is no further move, the group is nil.
func (s *state) next(threshold float64) (reason Reason, _ *unit, to int) {
	parts := s.parts()
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(b.spread(s), a.spread(s)) })
	for _, p := range parts {
		if p.spread(s) <= threshold {
			break
		}
		low, high := p.extremes(s)
		for _, fits := range []func(from, to int) bool{
			func(from, _ int) bool { return from == high },
			func(_, to int) bool { return to == low },
		} {
			if u, to := s.best(parts, threshold, fits); u != nil {
				return p.reason, u, to
			}
		}
	}
	return "", nil, 0
}

// best returns the permitted move with the highest gain between the pairs for which fits returns true.
func (s *state) best(parts []part, threshold float64, fits func(from, to int) bool) (best *unit, target int) {
	bestGain := minGain
	for _, u := range s.units {
		if u.fixed != "" || !s.usable[u.at] {
			continue
		}
		for to := range s.pairs {
			if !s.usable[to] || to == u.at || !fits(u.at, to) || !u.permitted[to] || !s.fits(to, u.bytes) {
				continue
			}
			if gain := s.gain(parts, u, to); gain > bestGain && s.tolerable(parts, u, to, threshold) {
				best, target, bestGain = u, to, gain
			}
		}
	}
	return best, target
}

// gain returns the reduction of the variance by a move.
func (s *state) gain(parts []part, u *unit, to int) (gain float64) {
	from := u.at
	gain = s.variance(parts, from) + s.variance(parts, to)
	s.move(u, to)
	gain -= s.variance(parts, from) + s.variance(parts, to)
	s.move(u, from)
	return gain
}

// variance returns the part of the variance that a pair contributes.
func (s *state) variance(parts []part, i int) (sum float64) {
	for _, p := range parts {
		d := p.value(s, i) - p.mean(s)
		sum += p.weight(s, i) * d * d
	}
	return sum
}

// tolerable reports whether a move increases no imbalance above the threshold.
func (s *state) tolerable(parts []part, u *unit, to int, threshold float64) bool {
	var before [2]float64
	for i, p := range parts {
		before[i] = p.spread(s)
	}
	from, good := u.at, true
	s.move(u, to)
	for i, p := range parts {
		good = good && p.spread(s) <= math.Max(before[i], threshold)
	}
	s.move(u, from)
	return good
}
