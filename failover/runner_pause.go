// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// ErrPause is returned if the pair was not paused or resumed.
var ErrPause = errors.New("the pair was not paused or resumed")

// pauseRetry is the delay of a retry after another node has written the record.
const pauseRetry = 20 * time.Millisecond

// SetPaused disables automatic takeover, or enables it again (nil). Either node accepts the request, also a standby
// whose active is lost. It needs the coordinator. It changes only this field of the record, and the nodes receive it
// like any other change. Pausing a paused pair replaces the reason. Errors: ErrPause with the reason, ErrUnreachable,
// ErrNoRecord.
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
					lack.Because("does not support pauses and would take over regardless"))
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
		case errors.Is(err, ErrConflict), errors.Is(err, ErrUnknownOutcome): // the next read resolves it
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
