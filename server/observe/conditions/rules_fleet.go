// SPDX-License-Identifier: Apache-2.0

package conditions

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
}

func (f *findings) fleet(s *Fleet) {
	if s == nil {
		return
	}
	f.node(s.Unavailable != "", FleetDirectoryUnavailable, "%s", s.Unavailable)
	f.pair(s.Lost != "", FleetDirectoryLost, "%s", s.Lost)
	f.pair(s.Conflict != "", FleetConflict, "%s", s.Conflict)
	f.node(s.Mismatch != "", FleetMismatch, "%s", s.Mismatch)
}
