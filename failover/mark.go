// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// Mark is a high-water mark: the coordinator's knowledge of how far the pair had committed. The active writes one about
// once a second while records are committed, and every record that is swapped in carries the highest one known. A store
// that the record names in sync holds at least what the mark says, since a record is committed only when it is durable
// on every member (INV-2). One that starts with less was put back to an older image (INV-12).
type Mark struct {
	// Pair that the mark is of: a coordinator may still hold that of a pair that was given up.
	Pair uuid.UUID `json:"pair"`
	// By is the term of the active that wrote the mark.
	By uint64 `json:"by"`
	// Term and LSN name the newest record that was known to be committed: Term is that of the record, which may be
	// older than By.
	Term uint64 `json:"term"`
	LSN  uint64 `json:"lsn"`
}

// Less tells whether o takes the place of m. Marks are ordered by the active's term first and by LSN second, so that a
// forced failover, which begins a new term, can set a mark that is lower than that of the term before. A mark of
// another pair gives way always, but not to the zero Mark, which stands for none.
func (m Mark) Less(o Mark) bool {
	if m.Pair != o.Pair {
		return o.Pair != uuid.Nil
	}
	if m.By != o.By {
		return m.By < o.By
	}
	return m.LSN < o.LSN
}

// Reached tells whether a log that ends with a record has everything up to the mark. Terms never fall along a log, so
// one that ends in an older term than the mark's record lacks that record, whatever its LSN.
func (m Mark) Reached(end lsn.Position) bool {
	return end.LSN >= m.LSN && end.Term >= m.Term
}

// String gives LSN/term.
func (m Mark) String() string { return fmt.Sprintf("LSN %d of term %d", m.LSN, m.Term) }
