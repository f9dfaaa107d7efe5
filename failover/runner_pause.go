// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// ErrPause is returned when the pair was not paused or resumed.
var ErrPause = errors.New("the pair was not paused or resumed")

// pauseRetry is how long SetPaused waits when another node has just written the record.
const pauseRetry = 20 * time.Millisecond

// SetPaused has no standby take over by itself any more, or lets one (nil). It may be asked of either node, also of a
// standby whose active is gone, and needs the coordinator. It changes nothing but that in the record; every node hears
// of it as of any other change. Pausing a paused pair replaces the reason. Errors: ErrPause with what is wrong,
// ErrUnreachable, ErrNoRecord.
func (r *Runner) SetPaused(ctx context.Context, p *Pause) error {
	op := uuid.NewString()
	for {
		rec, rev, err := r.opts.Coordinator.Load(ctx)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrPause, err)
		}
		if rec.OpID == op || rec.Paused == nil && p == nil {
			return nil
		}
		if p != nil {
			if lack, lacks := r.lacks(ctx, rec, FeaturePause); lacks {
				return fmt.Errorf("%w: %s", ErrPause,
					lack.Because("does not know pauses and would take over all the same"))
			}
		}
		rec.Config++
		rec.Paused, rec.OpID = p, op
		_, err = r.opts.Coordinator.Swap(ctx, rev, rec)
		switch {
		case err == nil:
			r.follows(ctx, rec.Config)
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %w", ErrPause, err)
		case errors.Is(err, ErrConflict), errors.Is(err, ErrUnknownOutcome): // what is there now tells
		default:
			return fmt.Errorf("%w: %w", ErrPause, err)
		}
		select {
		case <-time.After(pauseRetry):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrPause, ctx.Err())
		}
	}
}
