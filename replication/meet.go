// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// Introduction is what a process of a pair says of itself to another one: who it is, and how far its log goes.
type Introduction struct {
	// Pair that the process belongs to, its Node and Store. Process tells runs of one node apart.
	Pair, Node, Store uuid.UUID
	Process           string
	// Address by which it is reached.
	Address string
	// End is the last record of its log; zero if the store may have lost something: the node that compares must not
	// give it the role for its log (INV-6).
	End lsn.Position
}

// Self makes the introduction of a process.
func Self(s *store.Store, process, address string) Introduction {
	id := s.Identity()
	i := Introduction{Pair: id.PairID, Node: id.NodeID, Store: id.StoreID, Process: process, Address: address}
	if !id.MayHaveLost {
		i.End = s.End()
	}
	return i
}

// Reception answers the introductions of other processes; the zero value answers none.
type Reception struct {
	// Self is who answers.
	Self func() Introduction
	// Met is called with each one that was answered; it must not block.
	Met func(Introduction)
}
