// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/deploy/operator/api/v1alpha1"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	// maxMoveQueues is the maximum number of queues of a move.
	maxMoveQueues = 50
	// maxBlocked is the maximum number of entries of DrainStatus.Blocked, and maxNamed that of entries in a message.
	maxBlocked = 20
	maxNamed   = 3
)

// Reasons why queues cannot be moved.
const (
	blockedPolicy     = "policy-dead-letter"
	blockedPrepared   = "prepared-transaction"
	blockedTooMany    = "too-many-queues"
	blockedUnassigned = "not-assigned"
	blockedFailed     = "failed"
)

func blockedGroup(group []string, reason, message string) v1alpha1.BlockedQueues {
	return v1alpha1.BlockedQueues{Queue: group[0], Queues: int64(len(group)), Reason: reason, Message: message}
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
		texts = append(texts, fmt.Sprintf("%s cannot be moved (%s): %s", text, b.Reason, b.Message))
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

// batch returns up to n sets of groups for moves, and the groups that cannot be moved. Queues that depend on each
// other, or have the same placement group, are in the same group. Groups are combined up to 50 queues. After the
// cancellation of a move, its groups are moved separately, after the others, so that a group that cannot be moved does
// not prevent the moves of the others. Groups with queues that are moving are omitted.
func batch(
	queues []queueLinks, moving map[string]bool, failed map[string]failure, n int,
) (batches [][][]string, left []v1alpha1.BlockedQueues) {
	var sizes []int
	var again [][]string
	for _, group := range connected(queues) {
		f := lastFailure(group, failed)
		alone := f.epoch > 0 && f.queues == len(group)
		isMoving := slices.ContainsFunc(group, func(name string) bool { return moving[name] })
		reason, detail := fixedReason(queues, group)
		switch {
		case reason != "" && !isMoving:
			left = append(left, blockedGroup(group, reason, detail))
			continue
		case alone:
			left = append(left, blockedGroup(group, blockedFailed, f.reason))
		}
		switch {
		case isMoving:
			continue
		case f.epoch > 0:
			again = append(again, group)
			continue
		}
		i := slices.IndexFunc(sizes, func(size int) bool { return size+len(group) <= maxMoveQueues })
		if i < 0 && len(batches) < n {
			batches, sizes, i = append(batches, nil), append(sizes, 0), len(batches)
		}
		if i >= 0 {
			batches[i], sizes[i] = append(batches[i], group), sizes[i]+len(group)
		}
	}
	slices.SortStableFunc(again, func(a, b []string) int {
		return cmp.Compare(lastFailure(a, failed).epoch, lastFailure(b, failed).epoch)
	})
	for _, group := range again[:min(len(again), n-len(batches))] {
		batches = append(batches, [][]string{group})
	}
	return batches, left
}

func lastFailure(group []string, failed map[string]failure) (last failure) {
	for _, name := range group {
		if f := failed[name]; f.epoch > last.epoch {
			last = f
		}
	}
	return last
}

// fixedReason returns the reason why a group cannot be moved; an empty reason if it can be moved.
func fixedReason(queues []queueLinks, group []string) (reason, detail string) {
	for _, name := range group {
		i, found := slices.BinarySearchFunc(queues, name, func(q queueLinks, name string) int {
			return strings.Compare(q.name, name)
		})
		if found && queues[i].reason != "" {
			return queues[i].reason, queues[i].detail
		}
	}
	if len(group) > maxMoveQueues {
		return blockedTooMany, fmt.Sprintf("a move has at most %d queues", maxMoveQueues)
	}
	return "", ""
}

// connected returns the connected components of the queues, in the order of their first queues.
func connected(queues []queueLinks) [][]string {
	parent := map[string]string{}
	var root func(string) string
	root = func(name string) string {
		if parent[name] != name {
			parent[name] = root(parent[name])
		}
		return parent[name]
	}
	for _, q := range queues {
		parent[q.name] = q.name
	}
	groups := map[string]string{}
	for _, q := range queues {
		for _, other := range q.with {
			if _, here := parent[other]; here {
				parent[root(q.name)] = root(other)
			}
		}
		if q.group == "" {
			continue
		}
		if first, known := groups[q.group]; known {
			parent[root(q.name)] = root(first)
		} else {
			groups[q.group] = q.name
		}
	}
	var order []string
	members := map[string][]string{}
	for _, q := range queues {
		r := root(q.name)
		if members[r] == nil {
			order = append(order, r)
		}
		members[r] = append(members[r], q.name)
	}
	components := make([][]string, 0, len(order))
	for _, r := range order {
		components = append(components, members[r])
	}
	return components
}
