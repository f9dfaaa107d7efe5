// SPDX-License-Identifier: Apache-2.0

package pairstatus

import (
	"fmt"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Fleet is the membership of a pair in a fleet.
type Fleet struct {
	Pair string `json:"pair"`
	// FleetID is empty if the pair has not joined the fleet yet.
	FleetID string `json:"fleet_id"`
	// DirectoryCurrent reports whether the node's copy of the directory receives changes.
	DirectoryCurrent bool `json:"directory_current"`
	// Problem is the problem of the membership or of the directory; empty without a problem.
	Problem string `json:"problem"`
}

func newFleet(f *pb.FleetStatus) *Fleet {
	if f == nil {
		return nil
	}
	return &Fleet{
		Pair: f.GetPair(), FleetID: f.GetFleetId(), DirectoryCurrent: f.GetDirectoryCurrent(), Problem: f.GetProblem(),
	}
}

// addFleet sets the membership as reported by the active, or else by the first node.
func (s *Status) addFleet(f *pb.FleetStatus, active bool) {
	if f != nil && (s.Fleet == nil || active) {
		s.Fleet = newFleet(f)
	}
}

func (f *Fleet) String() string {
	text := fmt.Sprintf("fleet %s: pair %s", f.FleetID, f.Pair)
	if f.FleetID == "" {
		text = fmt.Sprintf("fleet: pair %s, not joined", f.Pair)
	}
	switch {
	case f.Problem != "":
		text += "; " + f.Problem
	case !f.DirectoryCurrent:
		text += "; directory not current"
	}
	return text
}
