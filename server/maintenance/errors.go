// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"errors"
	"fmt"
	"time"
)

// Errors of operations on this node.
var (
	// ErrBusy is returned when another operation of maintenance is under way on the node; see BusyError.
	ErrBusy = errors.New("another operation of maintenance is under way on this node")
	// ErrRole is returned when the node's role does not allow the operation.
	ErrRole = errors.New("not possible in this node's role")
	// ErrGaveWay is returned by a rewrite that was dropped because the node changes its role. The page file is as it
	// was.
	ErrGaveWay = errors.New("the rewrite was dropped, because the node changes its role; page.db is as it was")
	// ErrNoBackupPath is returned when there is nowhere to put a backup.
	ErrNoBackupPath = errors.New("no place for backups: set backup.path")
	// ErrNoArchive is returned when there is no log archive.
	ErrNoArchive = errors.New("this node has no log archive: set wal.archive")
)

// ErrUnreachable is returned when the other node cannot be asked, or does not answer in time.
var ErrUnreachable = errors.New("the other node cannot be reached")

// Errors of the pair's settings, plan and jobs.
var (
	// ErrSetting is returned for a value that cannot be used.
	ErrSetting = errors.New("setting is not valid")
	// ErrNoRecommendation is returned when a plan asks for the recommended page size and nothing was recommended yet.
	ErrNoRecommendation = errors.New("no page size was recommended yet: scan first, or name one")
	// ErrPlanRuns is returned when a plan is to begin while another one is not ended.
	ErrPlanRuns = errors.New("a plan is under way: wait for it, or cancel it")
	// ErrNoPlan is returned when there is no plan that could be cancelled.
	ErrNoPlan = errors.New("no plan is under way")
	// ErrNoJob is returned when there is no job of that name.
	ErrNoJob = errors.New("no such job")
	// ErrJobRuns is returned when a job is to run that runs already.
	ErrJobRuns = errors.New("the job is running already")
	// ErrTooManyJobs is returned when there are as many jobs as there may be.
	ErrTooManyJobs = errors.New("too many jobs: delete some first")
)

// BusyError says what is under way. errors.Is(err, ErrBusy) holds for it.
type BusyError struct{ Activity Activity }

// Error says what is under way, how far it is, and what to do.
func (e *BusyError) Error() string {
	return fmt.Sprintf("%v: %s; wait for it, or cancel it", ErrBusy, e.Activity)
}

// Is makes errors.Is(err, ErrBusy) hold.
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// String describes it for people.
func (a Activity) String() string {
	s := fmt.Sprintf("a %s since %s", a.Operation, a.Since.UTC().Format(time.RFC3339))
	if a.Progress.TotalBytes > 0 {
		s += fmt.Sprintf(", %s, %d %% done", a.Progress.Phase, min(a.Progress.Bytes*100/a.Progress.TotalBytes, 100))
	}
	return s
}
