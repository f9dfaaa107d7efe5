// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/throttle"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// ErrNotFound is returned if a backup does not exist.
var ErrNotFound = errors.New("backup not found")

// CheckOptions configures CheckSet.
type CheckOptions struct {
	// Archive is the log archive that continues the backup; nil if none.
	Archive Objects
	Pace    *throttle.Pacer
	// Progress, if not nil, is called periodically.
	Progress func(checkpoint.Progress)
}

// CheckReport is the result of CheckSet.
type CheckReport struct {
	Set      Set
	Verified VerifyReport
	// Problem is the reason why the backup cannot be restored: ErrIncomplete, ErrCorrupt, ErrNewerVersion, page.ErrCorrupt
	// or page.ErrNewerVersion. If it is set, Set is the only other valid field.
	Problem error
	// End is the position of the last record that can be restored from the backup and the archive. EndTime is the time
	// of the last transaction up to End.
	End            lsn.Position
	EndTime        time.Time
	ArchiveProblem error  // reason why the archive cannot be used, or cannot be used beyond End
	NeededBytes    uint64 // disk space that a restore needs, including the archived log
}

// CheckSet checks whether a backup can be restored, and up to which record. If name is empty, it checks the newest
// complete backup. It reads the whole backup and the archive after it, and writes nothing. An error means that the
// check could not be completed, such as ErrNotFound, ErrEncrypted, ErrRemote, or the error of ctx.
func CheckSet(ctx context.Context, place Objects, name string, o CheckOptions) (CheckReport, error) {
	var r CheckReport
	sets, err := List(ctx, place)
	if err != nil {
		return r, err
	}
	for _, s := range sets { // oldest first
		if name == s.Name || name == "" && s.Complete {
			r.Set = s
		}
	}
	switch {
	case r.Set.Name == "" && name == "":
		return r, fmt.Errorf("%w: no complete backup in %s", ErrNotFound, place.Path(""))
	case r.Set.Name == "":
		return r, fmt.Errorf("%w: %q is not in %s", ErrNotFound, name, place.Path(""))
	case !r.Set.Complete:
		r.Problem = r.Set.Problem
		return r, nil
	}
	r.Verified, err = Verify(ctx, r.Set.Name, VerifyOptions{Location: place, Pace: o.Pace, Progress: o.Progress})
	if isProblem(err) {
		r.Problem = err
		return r, nil
	}
	if err != nil {
		return r, err
	}
	err = r.reach(ctx, place, o)
	return r, err
}

// isProblem reports whether an error is caused by the content, not by a failure to read it.
func isProblem(err error) bool {
	if isUnreadable(err) {
		return false
	}
	for _, e := range []error{ErrIncomplete, ErrCorrupt, ErrNewerVersion, page.ErrCorrupt, page.ErrNewerVersion} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (r *CheckReport) reach(ctx context.Context, place Objects, o CheckOptions) error {
	j := restoreJob{
		o: RestoreOptions{FS: vfs.OS(), Location: place, Archive: o.Archive, Progress: o.Progress}, set: r.Set.Name,
	}
	m := &r.Verified.Manifest
	j.res.Manifest, j.res.End, j.res.EndTime = *m, m.Position, m.LastTime
	err := j.plan(ctx)
	if isUnreadable(err) && ctx.Err() != nil {
		return err
	}
	r.End, r.EndTime, r.ArchiveProblem = j.res.End, j.res.EndTime, err
	r.NeededBytes = m.DataBytes + spareBytes + j.res.LogBytes + 2*wal.DefaultSegmentBytes
	return nil
}
