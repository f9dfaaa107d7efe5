// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/pace"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// ErrNoSet is returned when there is no save-set of that name.
var ErrNoSet = errors.New("there is no such save-set")

// CheckOptions configure CheckSet.
type CheckOptions struct {
	// Archive of the log that a restore would go on with; nil for none.
	Archive Objects
	// Pace makes the reading pause; it may be nil.
	Pace *pace.Pacer
	// Progress is called from time to time, by the goroutine that called CheckSet; it may be nil.
	Progress func(checkpoint.Progress)
}

// CheckReport is what CheckSet found.
type CheckReport struct {
	// Set that was checked.
	Set Set
	// Verified is what Verify found; only with Problem nil.
	Verified VerifyReport
	// Problem says why the set cannot be restored: ErrIncomplete, ErrDamagedSet, ErrNewerVersion.
	Problem error
	// End is the last record that can be restored, EndTime the time of its transaction: those of the set, or what the
	// archive has behind it.
	End     lsn.Position
	EndTime time.Time
	// ArchiveProblem says why the archive leads no further, or not at all; nil if there is no gap in it, or no archive.
	ArchiveProblem error
	// NeededBytes of disk space for a restore, with what the archive adds.
	NeededBytes uint64
}

// CheckSet tells whether the set of that name can be restored, and up to which record. It reads all of it and of the
// archive behind it, and writes nothing. An empty name stands for the newest set that is complete. An error says that
// this could not be found out: ErrNoSet, ErrEncrypted, ErrRemote, the context's.
func CheckSet(ctx context.Context, place Objects, name string, o CheckOptions) (CheckReport, error) {
	var r CheckReport
	sets, err := ListIn(ctx, place)
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
		return r, fmt.Errorf("%w: no complete one is in %s", ErrNoSet, place.Path(""))
	case r.Set.Name == "":
		return r, fmt.Errorf("%w: %q is not in %s", ErrNoSet, name, place.Path(""))
	case !r.Set.Complete:
		r.Problem = r.Set.Problem
		return r, nil
	}
	r.Verified, err = Verify(ctx, r.Set.Name, VerifyOptions{Place: place, Pace: o.Pace, Progress: o.Progress})
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

// isProblem tells an error that is about what was read from one that kept it from being read.
func isProblem(err error) bool {
	if notRead(err) {
		return false
	}
	for _, e := range []error{ErrIncomplete, ErrDamagedSet, ErrNewerVersion, page.ErrDamaged, page.ErrNewerVersion} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// reach finds out how far a restore can go.
func (r *CheckReport) reach(ctx context.Context, place Objects, o CheckOptions) error {
	j := restoreJob{
		o: RestoreOptions{FS: vfs.OS(), Place: place, Archive: o.Archive, Progress: o.Progress}, set: r.Set.Name,
	}
	m := &r.Verified.Manifest
	j.res.Manifest, j.res.End, j.res.EndTime = *m, m.Position, m.LastTime
	err := j.plan(ctx)
	if notRead(err) && ctx.Err() != nil {
		return err
	}
	r.End, r.EndTime, r.ArchiveProblem = j.res.End, j.res.EndTime, err
	r.NeededBytes = m.DataBytes + spareBytes + j.res.LogBytes + 2*wal.DefaultSegmentBytes
	return nil
}
