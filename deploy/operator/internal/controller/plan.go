// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/deploy/operator/api/v1alpha1"
	"github.com/lockstep-mq/lockstep/fleet/balance"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	// maxBlocked is the maximum number of entries of DrainStatus.Blocked, and maxNamed that of entries in a message.
	maxBlocked = 20
	maxNamed   = 3
)

// notAssigned means that the directory does not assign a queue to the pair. Other reasons are those of package balance.
const notAssigned balance.Reason = "not-assigned"

func blockedGroup(group []string, reason balance.Reason, message string) v1alpha1.BlockedQueues {
	return v1alpha1.BlockedQueues{Queue: group[0], Queues: int64(len(group)), Reason: string(reason), Message: message}
}

// blockedIn returns the groups that cannot be moved according to a plan, except those with queues that are moving.
func blockedIn(plan *balance.Plan) (blocked []v1alpha1.BlockedQueues) {
	for _, l := range plan.Left {
		switch l.Reason {
		case balance.Moving:
		case balance.Forbidden:
			blocked = append(blocked, blockedGroup(l.Queues, l.Reason, "placement rules: "+l.Detail))
		default:
			blocked = append(blocked, blockedGroup(l.Queues, l.Reason, l.Detail))
		}
	}
	return blocked
}

// merge removes entries with the same first queue, sorts the entries, and removes those above the limit.
func merge(all []v1alpha1.BlockedQueues) []v1alpha1.BlockedQueues {
	slices.SortStableFunc(all, func(a, b v1alpha1.BlockedQueues) int { return strings.Compare(a.Queue, b.Queue) })
	all = slices.CompactFunc(all, func(a, b v1alpha1.BlockedQueues) bool { return a.Queue == b.Queue })
	return all[:min(len(all), maxBlocked)]
}

// errBlocked returns an error that names the first blocked queues.
func errBlocked(all []v1alpha1.BlockedQueues) error {
	var texts []string
	for _, b := range all[:min(len(all), maxNamed)] {
		text := "queue " + b.Queue
		if b.Queues > 1 {
			text += fmt.Sprintf(" and %d linked queues", b.Queues-1)
		}
		text += fmt.Sprintf(" cannot be moved (%s)", b.Reason)
		if b.Message != "" {
			text += ": " + b.Message
		}
		texts = append(texts, text)
	}
	if len(all) > maxNamed {
		texts = append(texts, "more queues cannot be moved: see status.drain.blocked")
	}
	return errors.New(strings.Join(texts, "; "))
}

// failure describes the last canceled move of a queue.
type failure struct {
	epoch  uint64
	queues int // of the move
	reason string
}

// addFailures adds the canceled moves from a pair to failed, by queue.
func addFailures(failed map[string]failure, moves []*pb.FleetMove, pair string) {
	for _, m := range moves {
		if m.GetPhase() != pb.MovePhase_MOVE_PHASE_NOT_MOVED || m.GetFrom() != pair {
			continue
		}
		for _, name := range m.GetQueues() {
			if m.GetEpoch() > failed[name].epoch {
				failed[name] = failure{m.GetEpoch(), len(m.GetQueues()), m.GetError()}
			}
		}
	}
}

// next returns at most one move of a plan for each target that is not busy, and the groups of which a separate move was
// canceled. After the cancellation of a move, its groups are moved separately, after the other groups with the same
// target, so that a group that cannot be moved does not prevent the moves of the others.
func next(
	plan *balance.Plan, s *survey, failed map[string]failure,
) (moves []balance.Move, blocked []v1alpha1.BlockedQueues) {
	check := func(group []string) (isNew bool) {
		f := lastFailure(group, failed)
		if f.epoch > 0 && f.queues == len(group) {
			blocked = append(blocked, blockedGroup(group, balance.Failed, f.reason))
		}
		return f.epoch == 0
	}
	for _, m := range s.Moves {
		if m.From == s.pair {
			check(m.Queues) // also during another attempt
		}
	}
	planned := map[string]bool{}
	add := func(to string, groups [][]string) {
		if len(groups) > 0 && !planned[to] && !s.busy[to] {
			planned[to] = true
			moves = append(moves, balance.Move{From: s.pair, To: to, Groups: groups})
		}
	}
	var again []balance.Move
	for _, m := range plan.Moves {
		var groups [][]string
		for _, group := range m.Groups {
			if check(group) {
				groups = append(groups, group)
			} else {
				again = append(again, balance.Move{To: m.To, Groups: [][]string{group}})
			}
		}
		add(m.To, groups)
	}
	slices.SortStableFunc(again, func(a, b balance.Move) int {
		return cmp.Compare(lastFailure(a.Groups[0], failed).epoch, lastFailure(b.Groups[0], failed).epoch)
	})
	for _, m := range again {
		add(m.To, m.Groups)
	}
	return moves, blocked
}

func lastFailure(group []string, failed map[string]failure) (last failure) {
	for _, name := range group {
		if f := failed[name]; f.epoch > last.epoch {
			last = f
		}
	}
	return last
}
