// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"errors"
	"fmt"
	"time"
)

// Errors of operations on this node.
var (
	// ErrBusy is returned when another maintenance operation is running on the node; see BusyError.
	ErrBusy = errors.New("another operation of maintenance is under way on this node")
	// ErrRole is returned when the node's role does not allow the operation.
	ErrRole = errors.New("not possible in this node's role")
	// ErrRoleChanged is returned by a rewrite that was cancelled because the node changes its role. The page file is
	// unchanged.
	ErrRoleChanged = errors.New("the rewrite was dropped, because the node changes its role; page.db is as it was")
	// ErrNoBackupPath is returned when no backup location is set.
	ErrNoBackupPath = errors.New("no place for backups: set backup.path")
	// ErrNoArchive is returned when no log archive is configured.
	ErrNoArchive = errors.New("this node has no log archive: set wal.archive")
)

// ErrUnreachable is returned when the other node is unreachable, or does not respond in time.
var ErrUnreachable = errors.New("the other node cannot be reached")

// Errors of the pair's settings, plan and jobs.
var (
	// ErrSetting is returned for an invalid value.
	ErrSetting = errors.New("setting is not valid")
	// ErrNoRecommendation is returned when a plan requests the recommended page size and no recommendation exists.
	ErrNoRecommendation = errors.New("no page size was recommended yet: scan first, or name one")
	// ErrPlanRuns is returned when a plan is started while another one is running.
	ErrPlanRuns = errors.New("a plan is under way: wait for it, or cancel it")
	// ErrNoPlan is returned when no running plan can be cancelled.
	ErrNoPlan = errors.New("no plan is under way")
	// ErrNoJob is returned when no job has the name.
	ErrNoJob = errors.New("no such job")
	// ErrJobRuns is returned when a job is started that is already running.
	ErrJobRuns = errors.New("the job is running already")
	// ErrTooManyJobs is returned when the limit of jobs is reached.
	ErrTooManyJobs = errors.New("too many jobs: delete some first")
)

// BusyError contains the running operation. errors.Is(err, ErrBusy) holds for it.
type BusyError struct{ Activity Activity }

// Error returns the running operation, its progress, and advice.
func (e *BusyError) Error() string {
	return fmt.Sprintf("%v: %s; wait for it, or cancel it", ErrBusy, e.Activity)
}

// Is makes errors.Is(err, ErrBusy) hold.
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// String returns a description for people.
func (a Activity) String() string {
	s := fmt.Sprintf("a %s since %s", a.Operation, a.Since.UTC().Format(time.RFC3339))
	if a.Progress.TotalBytes > 0 {
		s += fmt.Sprintf(", %s, %d %% done", a.Progress.Phase, min(a.Progress.Bytes*100/a.Progress.TotalBytes, 100))
	}
	return s
}
