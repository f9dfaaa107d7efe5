// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// Found is the coordinator's state, read linearizably.
type Found struct {
	// Record is the cluster record, and Revision its revision. Both are zero if no record exists.
	Record   Record
	Revision Revision
}

// AdoptRequest contains the coordinator's state before an adoption, and the operator's confirmations. See
// AdoptRequested.
type AdoptRequest struct {
	Found        Found
	Above        Fence
	AcceptLoss   bool
	WithoutOther bool
}

// AdoptedFence returns config and term for an adopted record. Both are above those of the found record and of all
// fences; the term is also above that of the log end.
func AdoptedFence(found Record, end lsn.Position, fences ...Fence) Fence {
	next := Fence{Config: found.Config, Term: max(found.Term, end.Term)}
	for _, f := range fences {
		next.Config, next.Term = max(next.Config, f.Config), max(next.Term, f.Term)
	}
	return Fence{Config: next.Config + 1, Term: next.Term + 1}
}

// Find reads the coordinator's state. If no record exists, it returns a zero Found and no error. An error wraps
// ErrUnreachable, ErrRecordVersion or ErrRecordInvalid.
func (r *Runner) Find(ctx context.Context) (Found, error) {
	rec, rev, err := r.opts.Coordinator.Load(ctx)
	if err != nil && !errors.Is(err, ErrNoRecord) {
		return Found{}, fmt.Errorf("load cluster record: %w", err)
	}
	return Found{Record: rec, Revision: rev}, nil
}

// Adopt rebuilds the cluster record after the coordinator has lost it, or was restored to an older state (INV-9). In
// the new record this node is the active, and the only in-sync member unless it is already active. The caller has made
// the checks that AdoptRequested requires. If the error wraps ErrUnknownOutcome, the record may have been written.
func (r *Runner) Adopt(ctx context.Context, req AdoptRequest) (Record, error) {
	id := uuid.NewString()
	e, err := request[AdoptEnded](ctx, r, id, AdoptRequested{
		ID: id, Found: req.Found.Record, Revision: req.Found.Revision, Above: req.Above, AcceptLoss: req.AcceptLoss,
		WithoutOther: req.WithoutOther,
		At:           time.Now().UTC().Truncate(time.Second),
	})
	if err := requestError(ErrAdopt, err, e.Failure); err != nil {
		return Record{}, err
	}
	if st := r.Status(); st.Record != nil {
		return *st.Record, nil
	}
	return Record{}, nil
}

// requestError returns the error of a request, given the error of request and the failure in the effect.
func requestError(kind, err, failure error) error {
	switch {
	case err == nil:
		return failure
	case errors.Is(err, ErrStopped):
		return err
	default:
		return fmt.Errorf("%w: outcome is unknown: %w: %w", kind, ErrUnknownOutcome, err)
	}
}
