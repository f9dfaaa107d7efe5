// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// Mark is a high-water mark: the coordinator's lower bound of the pair's committed position. The active writes it about
// once a second while records are committed, and every swapped record carries the highest known one. Since a committed
// record is durable on every in-sync member (INV-2), a store that starts with fewer records was restored from an older
// copy (INV-12).
type Mark struct {
	// Pair of the mark. A coordinator may still have the mark of an abandoned pair.
	Pair uuid.UUID `json:"pair"`
	// By is the term of the active that wrote the mark.
	By uint64 `json:"by"`
	// Term and LSN identify the newest record known to be committed. Term may be older than By.
	Term uint64 `json:"term"`
	LSN  uint64 `json:"lsn"`
}

// Less reports whether o replaces m. The active's term comes before the LSN, so that a forced failover, which begins a
// new term, can set a lower mark. A mark of another pair is always replaced, but not by the zero Mark.
func (m Mark) Less(o Mark) bool {
	if m.Pair != o.Pair {
		return o.Pair != uuid.Nil
	}
	if m.By != o.By {
		return m.By < o.By
	}
	return m.LSN < o.LSN
}

// Reached reports whether a log with this end has everything up to the mark. Terms never decrease along a log, so a log
// that ends in an older term lacks the mark's record, regardless of its LSN.
func (m Mark) Reached(end lsn.Position) bool {
	return end.LSN >= m.LSN && end.Term >= m.Term
}

func (m Mark) String() string { return fmt.Sprintf("LSN %d of term %d", m.LSN, m.Term) }
