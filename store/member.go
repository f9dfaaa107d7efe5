// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/identity"
	"github.com/lockstep-mq/lockstep/store/mutate"
)

// Identity returns the identity of this node and store.
func (s *Store) Identity() datadir.Identity {
	s.idMu.Lock()
	defer s.idMu.Unlock()
	return s.id.Identity()
}

// ClaimGeneration durably records two process generations: listed, the last one known to be in the cluster record (zero
// if none), and claimed, which is about to participate in the pair. After it returns nil, the cluster record may list
// the claimed generation (INV-11).
func (s *Store) ClaimGeneration(listed, claimed uuid.UUID) error {
	return s.changeIdentity(func(id *datadir.IdentityFile) error {
		id.Generation, id.ClaimedGeneration = listed, claimed
		return nil
	})
}

// ConfirmGeneration durably records that the cluster record lists the generation as in sync. It also ends a
// quarantine.
func (s *Store) ConfirmGeneration(listed uuid.UUID) error {
	return s.changeIdentity(func(id *datadir.IdentityFile) error {
		id.Generation, id.ClaimedGeneration = listed, uuid.Nil
		id.Quarantine, id.QuarantineReason = "", ""
		return nil
	})
}

// SetFence persists the minimum configuration and term that the node accepts (INV-1). The change is durable when
// SetFence returns. It returns ErrFenceLower if f is below the persisted fence. If f equals the persisted fence,
// SetFence performs no I/O.
func (s *Store) SetFence(f identity.Fence) error {
	return s.changeIdentity(func(id *datadir.IdentityFile) error {
		if f.Less(id.Fence) {
			return fmt.Errorf("%w: requested config %d term %d, persisted config %d term %d",
				ErrFenceLower, f.Config, f.Term, id.Fence.Config, id.Fence.Term)
		}
		if mutate.Off("INV-1-fence-is-not-persisted") {
			s.id.Fence = f
			return nil
		}
		id.Fence = f
		return nil
	})
}

// MarkLoss durably records that acknowledged records may be lost (MayHaveLost; INV-6).
func (s *Store) MarkLoss() error {
	return s.changeIdentity(func(id *datadir.IdentityFile) error {
		id.MayHaveLost = true
		return nil
	})
}

// ClearLoss clears MayHaveLost. If it was set, ClearLoss increments the incarnation. The caller must first ensure
// that the current cluster record no longer lists the store as in sync. The change is durable when ClearLoss returns.
func (s *Store) ClearLoss() error {
	return s.changeIdentity(func(id *datadir.IdentityFile) error {
		if id.MayHaveLost {
			id.MayHaveLost = false
			id.Incarnation++
		}
		return nil
	})
}

// JoinPair records the pair to which the node permanently belongs, and clears the name of the restored backup. It
// returns ErrOtherPair if the node belongs to another pair. The change is durable when JoinPair returns.
func (s *Store) JoinPair(pair uuid.UUID) error {
	return s.changeIdentity(func(id *datadir.IdentityFile) error {
		if id.PairID != uuid.Nil && id.PairID != pair {
			return fmt.Errorf("%w: %s belongs to pair %s, and the coordinator names pair %s; point the node at its own "+
				"data directory, or at its own pair's prefix in the coordinator", ErrOtherPair, s.o.Dir, id.PairID,
				pair)
		}
		id.PairID, id.Restored = pair, ""
		return nil
	})
}

func (s *Store) changeIdentity(change func(*datadir.IdentityFile) error) error {
	s.idMu.Lock()
	defer s.idMu.Unlock()
	if s.closed.Load() {
		return ErrClosed // another process may already use the directory
	}
	next := s.id
	if err := change(&next); err != nil {
		return err
	}
	if next == s.id {
		return nil
	}
	if err := next.Write(s.o.FS, s.o.Dir); err != nil {
		s.fail(err)
		return err
	}
	s.id = next
	return nil
}
