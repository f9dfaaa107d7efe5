// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// ErrMinInSync is returned by SetMinInSync if the cluster record was not changed, or if ctx ended before the outcome
// was known. The error text contains the reason.
var ErrMinInSync = errors.New("min-in-sync was not changed")

// ErrPause is returned by SetPaused if the cluster record was not changed, or if ctx ended before the outcome was
// known. The error text contains the reason.
var ErrPause = errors.New("the pair was not paused or resumed")

var errAlone = errors.New("only one node is in sync, and every write would be rejected; start the other node first")

const changeRetry = 20 * time.Millisecond

// SetMinInSync sets the number of in-sync nodes that writes require, 1 or 2. The value overrides the nodes'
// configurations until SetMinInSync is called with 0. Then own, the configured value of this node, applies until the
// next activation. Both nodes accept the request if the coordinator is reachable, even while the active rejects
// writes. SetMinInSync waits for a limited time until this node uses the new value. It returns ErrMinInSync, which may
// wrap ErrUnreachable or ErrNoRecord.
func (r *Runner) SetMinInSync(ctx context.Context, wanted, own int) error {
	if wanted < 0 || wanted > 2 {
		return fmt.Errorf("%w: %d must be 0, 1 or 2", ErrMinInSync, wanted)
	}
	err := r.change(ctx, func(rec *Record) (changed bool, err error) {
		if rec.MinInSyncSet == wanted {
			return false, nil
		}
		if wanted != 0 {
			if m, missing := r.missingFeature(ctx, *rec, FeatureMinInSync); missing {
				return false, errors.New(m.Message("would overwrite it when it becomes active"))
			}
		}
		rec.MinInSyncSet, rec.MinInSync = wanted, wanted
		if wanted == 0 {
			rec.MinInSync = max(own, 1)
		}
		if rec.MinInSync > len(rec.InSync) {
			return false, errAlone
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMinInSync, err)
	}
	return nil
}

// SetPaused disables automatic takeover, or enables it if p is nil. Both nodes accept the request if the coordinator
// is reachable, even a standby that has lost the active. Pausing a paused pair replaces its Pause. SetPaused returns
// ErrPause, which may wrap ErrUnreachable or ErrNoRecord.
func (r *Runner) SetPaused(ctx context.Context, p *Pause) error {
	err := r.change(ctx, func(rec *Record) (changed bool, err error) {
		if p != nil {
			if m, missing := r.missingFeature(ctx, *rec, FeaturePause); missing {
				return false, errors.New(m.Message("does not support pauses and would take over regardless"))
			}
		}
		changed = rec.Paused != nil || p != nil
		rec.Paused = p
		return changed, nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrPause, err)
	}
	return nil
}

// change updates the record with fn, and waits for a limited time until this node uses the new record. fn reports
// whether it changed the record. It is called again if another node has written the record concurrently.
func (r *Runner) change(ctx context.Context, fn func(*Record) (changed bool, err error)) error {
	op := uuid.NewString()
	for {
		rec, rev, err := r.opts.Coordinator.Load(ctx)
		if err != nil {
			return err
		}
		changed := false
		if rec.OpID != op {
			if changed, err = fn(&rec); err != nil {
				return err
			}
		}
		if changed {
			rec.Config++
			rec.OpID = op
			_, err = r.opts.Coordinator.Swap(ctx, rev, rec)
		}
		switch {
		case err == nil:
			r.awaitConfig(ctx, rec.Config)
			return nil
		case ctx.Err() != nil:
			return err
		case errors.Is(err, ErrConflict), errors.Is(err, ErrUnknownOutcome): // the next read resolves it
		default:
			return err
		}
		select {
		case <-time.After(changeRetry):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

const followWait = time.Second

// awaitConfig waits until this node uses a record with this config or a higher one. A timeout is not an error.
func (r *Runner) awaitConfig(ctx context.Context, config uint64) {
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

func (s *State) minInSync() int {
	if s.rec.MinInSyncSet != 0 {
		return s.rec.MinInSyncSet
	}
	return s.set.MinInSync
}
