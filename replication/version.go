// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"fmt"
	"slices"
)

// Two consecutive releases must replicate to each other. Each end sends its range of protocol versions, and both use
// the newest common one. A feature is an extension within a version. An end uses a feature only if the other end also
// sent its name. Names are never reused.
const (
	ProtocolVersion = 1
	OldestProtocol  = 1
)

const (
	maxFeatures     = 64
	maxFeatureBytes = 64
)

// Features returns the replication features of this build, sorted. Protocol 1 has no optional features.
func Features() []string { return nil }

// Negotiation is the protocol and features common to both ends.
type Negotiation struct {
	Protocol uint32
	Features []string // sorted
}

// negotiate returns the newest common protocol version and the common features. It returns ErrProtocol if no version
// is common, or if the features exceed a limit. oldest is 0 if the other end supports only one version.
func negotiate(newest, oldest uint32, features []string) (Negotiation, error) {
	if oldest == 0 {
		oldest = newest
	}
	negotiated := min(newest, ProtocolVersion)
	if negotiated < oldest || negotiated < OldestProtocol {
		return Negotiation{}, fmt.Errorf("%w: the other node supports protocol versions %d to %d, this node %d to %d; "+
			"upgrade the older node, one release at a time", ErrProtocol, oldest, newest, OldestProtocol, ProtocolVersion)
	}
	if len(features) > maxFeatures || slices.ContainsFunc(features,
		func(f string) bool { return len(f) > maxFeatureBytes }) {
		return Negotiation{}, fmt.Errorf("%w: too many or too long features: %d, limit %d of %d bytes each", ErrProtocol,
			len(features), maxFeatures, maxFeatureBytes)
	}
	return Negotiation{Protocol: negotiated, Features: common(Features(), features)}, nil
}

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
