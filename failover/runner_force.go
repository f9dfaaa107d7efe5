// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// ForceRequest contains the state shown to an operator, and the operator's identity.
type ForceRequest struct {
	Config     uint64
	Committed  uint64
	By, Reason string // for display
}

// MayForce returns nil if Force would currently be accepted for the record with the given config. Otherwise it
// returns ErrForce with the reason, or ErrStopped. The reason ErrOtherLives is transient.
func (r *Runner) MayForce(ctx context.Context, config uint64) error {
	return r.requestForce(ctx, ForceRequested{DryRun: true, Config: config})
}

// Force activates this node although records may be missing. The other node must not have a lease, and the record
// must still have req.Config. It returns the new record when it is written; the activation follows. If the error
// wraps ErrUnknownOutcome, the record may have been written.
func (r *Runner) Force(ctx context.Context, req ForceRequest) (Record, error) {
	err := r.requestForce(ctx, ForceRequested{
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

func (r *Runner) requestForce(ctx context.Context, e ForceRequested) error {
	e.ID = uuid.NewString()
	ended, err := request[ForceEnded](ctx, r, e.ID, e)
	return requestError(ErrForce, err, ended.Failure)
}

// BlockFailback sets the reason why the preferred node must not receive the role; empty if failback is
// allowed.
func (r *Runner) BlockFailback(reason string) {
	r.mu.Lock()
	same := r.failbackBlocked == reason
	r.failbackBlocked = reason
	r.mu.Unlock()
	if !same {
		r.post(FailbackBlocked{Reason: reason})
	}
}
