// SPDX-License-Identifier: Apache-2.0

package conditions

import "strings"

// Fleet is the membership of a pair in a fleet, as known to a node.
type Fleet struct {
	// Pair is the name of the pair in the log or, before it has joined, in the settings. ID is the ID of the fleet in the
	// log; empty if the pair is not a member.
	Pair, ID string
	// Current reports whether the node's copy of the directory receives changes. Pairs and Queues are the numbers of
	// registered pairs and of queues in the copy.
	Current       bool
	Pairs, Queues int
	// Unavailable, Lost, Conflict and Mismatch are the details of the conditions; empty if a condition does not exist.
	Unavailable, Lost, Conflict, Mismatch string
	// Fenced describes moves that make queues unavailable to clients, and Stuck describes moves that do not continue.
	Fenced, Stuck []string
	// Moves contains the counts of queue moves; nil on a node without fleet.pair.
	Moves *FleetMoves
}

// FleetMoves describes the moves of queues of a pair.
type FleetMoves struct {
	// Phases is the number of moves to this pair that have not ended, by phase, and FencedQueues the number of queues that
	// are fenced at this pair. They are set only on the active node.
	Phases       map[string]int
	FencedQueues int
	// Done and Canceled count the ended moves to this pair, and CopiedBytes the copied bytes, since the start of the
	// node.
	Done, Canceled, CopiedBytes uint64
}

func (f *findings) fleet(s *Fleet) {
	if s == nil {
		return
	}
	f.node(s.Unavailable != "", FleetDirectoryUnavailable, "%s", s.Unavailable)
	f.pair(s.Lost != "", FleetDirectoryLost, "%s", s.Lost)
	f.pair(s.Conflict != "", FleetConflict, "%s", s.Conflict)
	f.pair(len(s.Fenced) > 0, FleetQueuesFenced, "%s", strings.Join(s.Fenced, "; "))
	f.pair(len(s.Stuck) > 0, FleetMoveStuck, "%s", strings.Join(s.Stuck, "; "))
	f.node(s.Mismatch != "", FleetMismatch, "%s", s.Mismatch)
}
