// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"context"
	"fmt"
	"time"
)

// Committer commits encoded transactions.
type Committer interface {
	// Commit returns the result after the transaction is committed and applied. It returns an error if the transaction
	// was not logged, or if its outcome is unknown: ctx ended, or the node ceased to be the active, after the
	// transaction was accepted.
	Commit(ctx context.Context, payload []byte) (*Result, error)
}

// Build encodes a transaction with time now. fill adds the operations. The errors are those of Builder.Finish.
func Build(now time.Time, fill func(*Builder)) ([]byte, error) {
	var b Builder
	b.Begin(nil, now.UnixMilli(), nil)
	fill(&b)
	return b.Finish()
}

// Propose builds and commits a transaction. If the transaction is rejected, Propose returns its result and an error
// that wraps its Code.
func Propose(ctx context.Context, c Committer, now time.Time, fill func(*Builder)) (*Result, error) {
	payload, err := Build(now, fill)
	if err != nil {
		return nil, fmt.Errorf("encode a transaction: %w", err)
	}
	result, err := c.Commit(ctx, payload)
	if err != nil {
		return nil, err
	}
	err = result.Err()
	return result, err
}
