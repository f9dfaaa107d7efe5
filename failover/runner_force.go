// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// ForceRequest contains the state shown to an operator, and the operator's identity.
type ForceRequest struct {
	Config    uint64
	Committed uint64
	// for display
	By, Reason string
}

// MayForce returns nil if Force would succeed now for the record of that config, otherwise ErrForce with the reason.
// ErrOtherLives is transient.
func (r *Runner) MayForce(ctx context.Context, config uint64) error {
	return r.askForce(ctx, ForceAsked{Only: true, Config: config})
}

// Force activates this node although it may lack records, because the in-sync node is lost. The other node must not
// have a lease, and the record must still be the one of req.Config. It returns the new record when it is written; the
// role follows. If the error wraps ErrUnknownOutcome, or ctx has ended, it may have been applied.
func (r *Runner) Force(ctx context.Context, req ForceRequest) (Record, error) {
	err := r.askForce(ctx, ForceAsked{
		Config: req.Config, End: r.opts.Data.Identity().End, Committed: req.Committed,
		At: time.Now().UTC().Truncate(time.Second), By: req.By, Reason: req.Reason,
	})
	if err != nil {
		return Record{}, err
	}
	if st := r.Status(); st.Record != nil {
		return *st.Record, nil
	}
	return Record{}, nil
}

func (r *Runner) askForce(ctx context.Context, e ForceAsked) error {
	e.ID = uuid.NewString()
	ended, err := request[ForceEnded](ctx, r, e.ID, e)
	return requestError(ErrForce, err, ended.Failure)
}

// SetOccupied sets the reason why the preferred node should not get the role now; empty if it may.
func (r *Runner) SetOccupied(why string) {
	r.mu.Lock()
	same := r.occupied == why
	r.occupied = why
	r.mu.Unlock()
	if !same {
		r.post(Occupied{Why: why})
	}
}
