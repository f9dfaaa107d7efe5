// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// ProcessIdentity identifies a process of a pair to another one.
type ProcessIdentity struct {
	// Process distinguishes processes of one node.
	Pair, Node, Store uuid.UUID
	Process           string
	Address           string
	// End is the last record of its log. It is zero if the store may have lost records: the peer must not hand over the
	// role because of this log (INV-6).
	End lsn.Position
}

// Self returns the identity of this process.
func Self(s *store.Store, process, address string) ProcessIdentity {
	id := s.Identity()
	i := ProcessIdentity{Pair: id.PairID, Node: id.NodeID, Store: id.StoreID, Process: process, Address: address}
	if !id.MayHaveLost {
		i.End = s.End()
	}
	return i
}

// Reception responds to Meet calls of other processes. The zero value rejects all.
type Reception struct {
	Self func() ProcessIdentity
	// Met is called for each accepted caller; it must not block.
	Met func(ProcessIdentity)
}
