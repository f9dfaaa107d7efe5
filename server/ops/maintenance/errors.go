// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"errors"
	"fmt"
	"time"
)

// Errors of operations on this node.
var (
	// ErrBusy is matched by a *BusyError, which is returned while another operation is running.
	ErrBusy = errors.New("another maintenance operation is running on this node")
	ErrRole = errors.New("not possible in this node's role")
	// ErrRoleChanged is returned by a rewrite that a role change canceled. The page file is unchanged.
	ErrRoleChanged  = errors.New("rewrite canceled by a role change; page.db is unchanged")
	ErrNoBackupPath = errors.New("no backup location")
	ErrNoArchive    = errors.New("no log archive")
)

// ErrUnreachable is returned if the other node is unreachable, does not catch up in time, or sends an invalid response.
var ErrUnreachable = errors.New("other node is unreachable")

// Errors of the pair's settings, plan and jobs.
var (
	// ErrSetting is returned for an invalid value.
	ErrSetting = errors.New("invalid setting")
	// ErrNoRecommendation is returned by StartPlan for a resize without a page size if no scan has recommended one.
	ErrNoRecommendation = errors.New("no recommended page size")
	ErrPlanRuns         = errors.New("another plan is running")
	ErrNoPlan           = errors.New("no plan is running")
	ErrNoJob            = errors.New("job not found")
	ErrJobRuns          = errors.New("job is already running")
	ErrTooManyJobs      = errors.New("too many jobs")
)

// BusyError contains the running operation. It matches ErrBusy.
type BusyError struct{ Activity Activity }

// Error returns the running operation and its progress, and advises to wait for it or to cancel it.
func (e *BusyError) Error() string {
	return fmt.Sprintf("%v: %s; wait for it, or cancel it", ErrBusy, e.Activity)
}

// Is reports whether target is ErrBusy.
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// String returns the operation, its start time, and its progress if known.
func (a Activity) String() string {
	s := fmt.Sprintf("a %s since %s", a.Operation, a.Since.UTC().Format(time.RFC3339))
	if a.Progress.TotalBytes > 0 {
		s += fmt.Sprintf(", %s, %d %% done", a.Progress.Phase, min(a.Progress.Bytes*100/a.Progress.TotalBytes, 100))
	}
	return s
}
