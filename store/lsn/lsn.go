// SPDX-License-Identifier: Apache-2.0

// Package lsn holds the name of a log record: the one thing that every layer of Lockstep, from the log to the pair's
// coordinator, has to agree on.
package lsn

import "fmt"

// Position names a log record for good: no two histories can hold different records under the same Position.
// The zero Position stands before the first record.
type Position struct {
	// Term the record was written in. It grows by one whenever the active changes.
	Term uint64
	// LSN is the log sequence number: 1 for the first record, +1 for each one after it.
	LSN uint64
	// Chain is the checksum of the record, which covers the checksum of the record before it and so the whole history.
	Chain uint32
}

// IsZero tells whether p stands before the first record.
func (p Position) IsZero() bool { return p == Position{} }

// String gives the form that logs and errors use: term/lsn@chain.
func (p Position) String() string { return fmt.Sprintf("%d/%d@%08x", p.Term, p.LSN, p.Chain) }
