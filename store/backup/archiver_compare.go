// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// formerPrefix begins the name of the directory, in that of the archive, to which an archive of another history is
// moved.
const formerPrefix = "other-"

// startOver moves the files of the archive to a directory of their own and begins a new archive: two histories must not
// be mixed, and neither may be lost. A crash in the middle leaves the files in two places, whole.
func (a *Archiver) startOver(why error) error {
	fail := func(err error) error { return fmt.Errorf("%w; and it cannot be moved out of the way: %w", why, err) }
	files, err := ListArchive(a.o.FS, a.o.Dir)
	if err != nil {
		return fail(err)
	}
	to := join(a.o.Dir, formerPrefix+time.Now().UTC().Format("20060102T150405.000000000"))
	if err := vfs.MkdirAllSync(a.o.FS, to, 0o750); err != nil {
		return fail(err)
	}
	for i := range files {
		if err := a.o.FS.Rename(files[i].Path, join(to, archiveName(files[i].First(), files[i].Last.LSN))); err != nil {
			return fail(err)
		}
	}
	if err := errors.Join(a.o.FS.SyncDir(to), a.o.FS.SyncDir(a.o.Dir)); err != nil {
		return fail(err)
	}
	a.last, a.known = ArchiveFile{}, true
	a.setStatus(func(st *ArchiveStatus) {
		st.Last, st.LastTime, st.Gap, st.Former = lsn.Position{}, time.Time{}, 0,
			to
	})
	a.o.Logger.Warn("the log archive is of another history than the store, which was wiped, restored or replaced; it "+
		"was moved, and a new "+
		"one is begun: make a backup now, which the new one can go on from", zap.String("archive", a.o.Dir),
		zap.String("moved_to", to), zap.Error(why))
	return nil
}

// compare looks at the newest record that both the archive and the store have.
func (a *Archiver) compare(files []ArchiveFile) error {
	applied := a.s.Applied()
	at := min(a.last.Last.LSN, applied.LSN)
	mine, have := a.s.PositionOf(at)
	theirs, archived, err := archivedPosition(a.o.FS, files, at)
	if err != nil {
		return err
	}
	if have && archived && mine != theirs {
		return fmt.Errorf("%w: record %d is %v in %s and %v in the store", ErrOtherHistory, at, theirs, a.o.Dir, mine)
	}
	if a.last.Last.LSN <= applied.LSN {
		a.known = true
		return nil
	}
	if a.last.StoreID != [16]byte(a.s.Identity().StoreID) {
		return fmt.Errorf("%w: %s reaches up to record %d of another store, this one only to %d", ErrOtherHistory,
			a.o.Dir, a.last.Last.LSN,
			applied.LSN)
	}
	// With sync=off the end of the log may have been lost, and come back from the peer: to be compared when it is
	// there. The same is true when not everything in the log is applied again yet.
	return nil
}

// archivedPosition looks a record up in the archive.
func archivedPosition(fsys vfs.FS, files []ArchiveFile, n uint64) (pos lsn.Position, ok bool, err error) {
	for i := range files {
		f := &files[i]
		switch {
		case f.Last.LSN == n:
			return f.Last, true, nil
		case f.Before.LSN == n:
			return f.Before, true, nil
		case f.Before.LSN < n && n < f.Last.LSN:
			err := eachFrame(context.Background(), fsys, f, func(fr wal.Frame, _ []byte) error {
				if fr.Pos.LSN != n {
					return nil
				}
				pos, ok = fr.Pos, true
				return errEnough
			})
			if errors.Is(err, errEnough) {
				err = nil
			}
			return pos, ok, err
		}
	}
	return lsn.Position{}, false, nil
}

// Formers lists the directories, in that of an archive, with archives of other histories.
func Formers(fsys vfs.FS, dir string) ([]string, error) {
	names, err := fsys.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the archive: %w", err)
	}
	var formers []string
	for _, name := range names {
		if strings.HasPrefix(name, formerPrefix) {
			formers = append(formers, join(dir, name))
		}
	}
	return formers, nil
}
