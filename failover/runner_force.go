// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// ForceRequest contains the state shown to an operator, and the operator's identity.
type ForceRequest struct {
	// Config of the record shown to the operator.
	Config uint64
	// Committed is the last LSN that this node knows to be committed.
	Committed uint64
	// By is the operator, Reason the reason; for display.
	By, Reason string
}

// MayForce reports whether Force would succeed now, for the record of that config: nil, or ErrForce with the reason.
// ErrOtherLives is transient.
func (r *Runner) MayForce(ctx context.Context, config uint64) error {
	return r.askForce(ctx, ForceAsked{Only: true, Config: config})
}

// Force activates this node although it may lack records, because the in-sync node is lost. Except for INV-4's
// in-sync set it is like any takeover. The other node must not have a lease, and the record must still be the one of
// req.Config. It returns the new record when it is written; the role follows. Errors: ErrForce with the reason. If
// that also wraps ErrUnknownOutcome, or ctx has ended, it may have been applied.
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

// askForce sends the request to the machine and waits for the response.
func (r *Runner) askForce(ctx context.Context, e ForceAsked) error {
	e.ID = uuid.NewString()
	done := make(chan error, 1)
	r.mu.Lock()
	r.forces[e.ID] = done
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.forces, e.ID)
		r.mu.Unlock()
	}()
	r.post(e)
	select {
	case err := <-done:
		return err
	case <-r.stopped:
		return ErrStopped
	case <-ctx.Done():
		return fmt.Errorf("%w: outcome is unknown: %w: %w", ErrForce, ErrUnknownOutcome, ctx.Err())
	}
}

// forced passes the outcome of a forced failover to the waiting caller.
func (r *Runner) forced(e ForceEnded) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if done, ok := r.forces[e.ID]; ok {
		done <- e.Failure // capacity 1, sent once
		delete(r.forces, e.ID)
	}
}

// SetOccupied sets the reason why the preferred node should not get the role now; empty if it may. It never blocks.
func (r *Runner) SetOccupied(why string) {
	r.mu.Lock()
	same := r.occupied == why
	r.occupied = why
	r.mu.Unlock()
	if !same {
		r.post(Occupied{Why: why})
	}
}
