// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"fmt"
	"slices"
)

// A pair is upgraded one node at a time, so two releases in a row must replicate to each other. Each end names the
// range of protocol versions that it speaks, and both take the newest that they have in common. What only some releases
// of one protocol version know is a named feature: an end uses it only if the other one has named it too. Names are
// never used again for something else.
const (
	// ProtocolVersion is the newest version that this build speaks.
	ProtocolVersion = 1
	// OldestProtocol is the oldest version that this build still speaks.
	OldestProtocol = 1
)

// maxFeatures and maxFeatureBytes bound what an end may name.
const (
	maxFeatures     = 64
	maxFeatureBytes = 64
)

// Features are the features of the replication stream that this build knows, sorted. There is none yet: all that
// protocol 1 has is known to all builds that speak it.
func Features() []string { return nil }

// Agreement is what both ends of a stream can do.
type Agreement struct {
	// Protocol version that both speak.
	Protocol uint32
	// Features that both know, sorted.
	Features []string
}

// agree finds the newest protocol version that this build and the other end have in common, and the features that both
// know. An other end that names no oldest version speaks only one. It returns ErrProtocol if there is none in common.
func agree(newest, oldest uint32, features []string) (Agreement, error) {
	if oldest == 0 {
		oldest = newest
	}
	agreed := min(newest, ProtocolVersion)
	if agreed < oldest || agreed < OldestProtocol {
		return Agreement{}, fmt.Errorf("%w: the other node speaks replication protocol %d to %d, this node %d to %d; "+
			"upgrade the older node, one release at a time", ErrProtocol, oldest, newest, OldestProtocol,
			ProtocolVersion)
	}
	if len(features) > maxFeatures || slices.ContainsFunc(features,
		func(f string) bool { return len(f) > maxFeatureBytes }) {
		return Agreement{}, fmt.Errorf("%w: the other node names %d features, limit %d of %d bytes each", ErrProtocol,
			len(features),
			maxFeatures, maxFeatureBytes)
	}
	return Agreement{Protocol: agreed, Features: common(Features(), features)}, nil
}

// common returns what both lists name, sorted.
func common(own, theirs []string) []string {
	var both []string
	for _, f := range own {
		if slices.Contains(theirs, f) {
			both = append(both, f)
		}
	}
	slices.Sort(both)
	return both
}
