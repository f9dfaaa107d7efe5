// SPDX-License-Identifier: Apache-2.0

// Package identity defines identities shared by the store, replication and failover.
package identity

import (
	"fmt"

	"github.com/google/uuid"
)

// Member identifies a store and its process generation. Each entry of in_sync in the cluster record is a Member with a
// store that has every committed transaction.
type Member struct {
	Node uuid.UUID `json:"node"`
	// Store is the UUID of the store. A new or restored data directory has a new UUID.
	Store uuid.UUID `json:"store"`
	// Incarnation is incremented when the content is replaced, when the store is quarantined, and when a possible loss of
	// data is cleared (INV-6).
	Incarnation uint64 `json:"incarnation"`
	// Generation is the only process generation of the store that may act, or have its acks counted (INV-11). If it is
	// zero, any generation may: the record was written by a release without generations.
	Generation uuid.UUID `json:"run,omitzero"`
}

// Is reports whether two entries identify the same store in the same process generation. An entry without a
// generation matches any generation.
func (m Member) Is(o Member) bool {
	if m.Generation != uuid.Nil && o.Generation != uuid.Nil && m.Generation != o.Generation {
		return false
	}
	m.Generation, o.Generation = uuid.Nil, uuid.Nil
	return m == o
}

// WithGeneration returns a copy of m with the given process generation.
func (m Member) WithGeneration(generation uuid.UUID) Member {
	m.Generation = generation
	return m
}

// String returns the form used in logs.
func (m Member) String() string {
	return fmt.Sprintf("node %s store %s/%d", m.Node, m.Store, m.Incarnation)
}

// Fence is the lower bound of the configurations and terms that a node accepts (INV-1). Fences are ordered by Config
// first and by Term second.
type Fence struct {
	// Config is the highest version of the cluster record that the node has accepted, in the record or in a message.
	Config uint64 `json:"config"`
	// Term is the term of that version, or one more while the node attempts a takeover.
	Term uint64 `json:"term"`
}

// Less reports whether f is below o.
func (f Fence) Less(o Fence) bool {
	return f.Config < o.Config || f.Config == o.Config && f.Term < o.Term
}

// Admits reports whether a node with fence f may accept a message with the given config and term.
func (f Fence) Admits(config, term uint64) bool {
	return !Fence{Config: config, Term: term}.Less(f)
}

// String returns config/term.
func (f Fence) String() string { return fmt.Sprintf("%d/%d", f.Config, f.Term) }
