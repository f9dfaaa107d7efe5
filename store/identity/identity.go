// SPDX-License-Identifier: Apache-2.0

// Package identity holds what the store, replication and failover call the same: the store of a node in one state of
// trust, and the fence that a node obeys.
package identity

import (
	"fmt"

	"github.com/google/uuid"
)

// Member names one store in a state in which it is known to be complete: an entry of in_sync in the pair's record.
type Member struct {
	// Node UUID: names the data directory's owner.
	Node uuid.UUID `json:"node"`
	// Store UUID: names the content, and is another one after a disk was replaced.
	Store uuid.UUID `json:"store"`
	// Incarnation of the store: higher after its content was replaced or may have lost something (INV-6).
	Incarnation uint64 `json:"incarnation"`
	// Run is the generation of the one run of the store that may act or be counted (INV-11). Zero: a node of a release
	// that knows no runs wrote the record, and any run may.
	Run uuid.UUID `json:"run,omitzero"`
}

// Is tells whether two entries name the same store in the same run. A release that knows no runs drops them when it
// writes the record: an entry without one says nothing about the run.
func (m Member) Is(o Member) bool {
	if m.Run != uuid.Nil && o.Run != uuid.Nil && m.Run != o.Run {
		return false
	}
	m.Run, o.Run = uuid.Nil, uuid.Nil
	return m == o
}

// InRun is the same entry for another run.
func (m Member) InRun(run uuid.UUID) Member {
	m.Run = run
	return m
}

// String gives the form that logs use.
func (m Member) String() string {
	return fmt.Sprintf("node %s store %s/%d", m.Node, m.Store, m.Incarnation)
}
