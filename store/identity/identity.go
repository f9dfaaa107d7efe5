// SPDX-License-Identifier: Apache-2.0

// Package identity defines identities shared by the store, replication and failover.
package identity

import (
	"fmt"

	"github.com/google/uuid"
)

// Member identifies one store in a state in which it is known to be complete: an entry of in_sync in the cluster
// record.
type Member struct {
	// Node is the UUID of the node that owns the data directory.
	Node uuid.UUID `json:"node"`
	// Store is the UUID of the content. It changes when a disk is replaced.
	Store uuid.UUID `json:"store"`
	// Incarnation is incremented after the content was replaced or may have lost data (INV-6).
	Incarnation uint64 `json:"incarnation"`
	// Run is the only process generation of the store that may act or be counted (INV-11). Zero if the record was written
	// by a release without generations; then any generation may.
	Run uuid.UUID `json:"run,omitzero"`
}

// Is reports whether two entries identify the same store in the same process generation. A release without generations
// drops them when it writes the record, so an entry without one matches any generation.
func (m Member) Is(o Member) bool {
	if m.Run != uuid.Nil && o.Run != uuid.Nil && m.Run != o.Run {
		return false
	}
	m.Run, o.Run = uuid.Nil, uuid.Nil
	return m == o
}

// InRun returns the entry for another process generation.
func (m Member) InRun(run uuid.UUID) Member {
	m.Run = run
	return m
}

// String returns the form used in logs.
func (m Member) String() string {
	return fmt.Sprintf("node %s store %s/%d", m.Node, m.Store, m.Incarnation)
}
