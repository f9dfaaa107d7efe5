// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// ErrMinInSync is returned if min_in_sync was not changed.
var ErrMinInSync = errors.New("min-in-sync was not changed")

// errAlone is the reason why it cannot be raised to two.
var errAlone = errors.New("only one node is in sync: with 2, every write would be rejected immediately; bring the " +
	"other one back first")

// SetMinInSync sets the number of in-sync nodes that writes require, 1 or 2, overriding the nodes' configurations
// until it is called with 0. Either node accepts the request, also while the active rejects writes. It needs the
// coordinator. own is this node's configured value. When it returns, this node uses the new value: if called on the
// active, it applies to the next write. Errors: ErrMinInSync with the reason, ErrUnreachable, ErrNoRecord.
func (r *Runner) SetMinInSync(ctx context.Context, wanted, own int) error {
	if wanted < 0 || wanted > 2 {
		return fmt.Errorf("%w: %d must be 1 or 2", ErrMinInSync, wanted)
	}
	op := uuid.NewString()
	for {
		rec, rev, err := r.opts.Coordinator.Load(ctx)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrMinInSync, err)
		}
		if rec.OpID == op || rec.MinInSyncSet == wanted {
			r.follows(ctx, rec.Config)
			return nil
		}
		if wanted != 0 {
			if lack, lacks := r.lacks(ctx, rec, FeatureMinInSync); lacks {
				return fmt.Errorf("%w: %s", ErrMinInSync, lack.Because("would overwrite it when it becomes active"))
			}
		}
		rec.Config++
		rec.MinInSyncSet, rec.MinInSync, rec.OpID = wanted, wanted, op
		if wanted == 0 {
			rec.MinInSync = max(own, 1)
		}
		if rec.MinInSync > len(rec.InSync) {
			return fmt.Errorf("%w: %w", ErrMinInSync, errAlone)
		}
		_, err = r.opts.Coordinator.Swap(ctx, rev, rec)
		switch {
		case err == nil:
			r.follows(ctx, rec.Config)
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %w", ErrMinInSync, err)
		case errors.Is(err, ErrConflict), errors.Is(err, ErrUnknownOutcome): // the next read resolves it
		default:
			return fmt.Errorf("%w: %w", ErrMinInSync, err)
		}
		select {
		case <-time.After(pauseRetry):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrMinInSync, ctx.Err())
		}
	}
}

// followWait is the maximum wait for this node to use a record it has written.
const followWait = time.Second

// follows waits until this node uses the record with a config number or a later one. The record is written, so a
// timeout here is not an error for the caller.
func (r *Runner) follows(ctx context.Context, config uint64) {
	waited := time.NewTimer(followWait)
	defer waited.Stop()
	for {
		changed := r.Changed()
		if rec := r.Status().Record; rec != nil && rec.Config >= config {
			return
		}
		select {
		case <-changed:
		case <-waited.C:
			return
		case <-r.stopped:
			return
		case <-ctx.Done():
			return
		}
	}
}

// minInSync returns the value that this node writes into the record when it becomes active.
func (s *State) minInSync() int {
	if s.rec.MinInSyncSet != 0 {
		return s.rec.MinInSyncSet
	}
	return s.set.MinInSync
}
