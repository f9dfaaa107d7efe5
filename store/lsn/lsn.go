// SPDX-License-Identifier: Apache-2.0

// Package lsn defines the position of a log record.
package lsn

import "fmt"

// Position identifies a log record permanently, in all histories. The zero Position is before the first record.
type Position struct {
	// Term is the term in which the record was written. Terms increase with each activation.
	Term uint64
	// LSN is the log sequence number: 1 for the first record, incremented for each following record.
	LSN uint64
	// Chain is the checksum of the record and of the previous Chain.
	Chain uint32
}

// IsZero reports whether p is before the first record.
func (p Position) IsZero() bool { return p == Position{} }

// String returns the form used in logs and errors: term/lsn@chain.
func (p Position) String() string { return fmt.Sprintf("%d/%d@%08x", p.Term, p.LSN, p.Chain) }
