// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// Mark is the pair's high-water mark: a lower bound of its committed position (INV-12).
type Mark struct {
	// Pair is the ID of the pair. A coordinator may still have the mark of an abandoned pair.
	Pair uuid.UUID `json:"pair"`
	// By is the term of the active that wrote the mark.
	By uint64 `json:"by"`
	// Term and LSN identify the newest record known to be committed. Term may be older than By.
	Term uint64 `json:"term"`
	LSN  uint64 `json:"lsn"`
}

// Less reports whether o replaces m. By is compared before the LSN. A mark of another pair is always replaced, except
// by the zero Mark.
func (m Mark) Less(o Mark) bool {
	if m.Pair != o.Pair {
		return o.Pair != uuid.Nil
	}
	if m.By != o.By {
		return m.By < o.By
	}
	return m.LSN < o.LSN
}

// Reached reports whether a log with this end contains everything up to the mark. Terms never decrease within a log, so
// a log that ends in an older term does not contain the mark's record, regardless of its LSN.
func (m Mark) Reached(end lsn.Position) bool {
	return end.LSN >= m.LSN && end.Term >= m.Term
}

func (m Mark) String() string { return fmt.Sprintf("LSN %d of term %d", m.LSN, m.Term) }
