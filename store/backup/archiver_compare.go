// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

const previousPrefix = "other-"

// restartArchive moves the files of the archive to a separate directory and starts a new archive. After a crash, each
// directory can contain some of the files.
func (a *Archiver) restartArchive(ctx context.Context, why error) error {
	fail := func(err error) error { return fmt.Errorf("%w; moving the archive failed: %w", why, err) }
	l, err := listNames(ctx, a.o.Location)
	if err != nil {
		return fail(err)
	}
	to := previousPrefix + time.Now().UTC().Format("20060102T150405.000000000")
	var names []string
	for _, first := range l.gaps { // before the files: the new archive must not have these markers
		names = append(names, gapName(first))
	}
	for _, f := range l.files {
		names = append(names, f.name)
	}
	for _, name := range names {
		if err := a.o.Location.Move(ctx, name, inFolder(to, name)); err != nil {
			return fail(err)
		}
	}
	a.last, a.known, a.gaps, a.replaces = ArchiveFile{}, true, nil, true
	a.mu.Lock()
	a.backedUp = 0 // the backup may be of the other history
	st := &a.status
	st.Last, st.LastTime, st.Gap, st.Former = lsn.Position{}, time.Time{}, 0, a.o.Location.Path(to)
	a.mu.Unlock()
	a.o.Logger.Warn("log archive has another history than the store, which was wiped, restored or replaced; "+
		"the archive was moved and a new one started: make a backup now, which the new archive can continue",
		zap.String("archive", a.Dir()),
		zap.String("moved_to", a.o.Location.Path(to)), zap.Error(why))
	return nil
}

func (a *Archiver) compare(ctx context.Context, names []archivedName) error {
	applied := a.s.Applied()
	at := min(a.last.Last.LSN, applied.LSN)
	mine, have := a.s.PositionOf(at)
	theirs, archived, err := archivedPosition(ctx, a.o.Location, names, at)
	if err != nil {
		return err
	}
	if have && archived && mine != theirs {
		return fmt.Errorf("%w: record %d is %v in %s and %v in the store", ErrOtherHistory, at, theirs, a.Dir(), mine)
	}
	if a.last.Last.LSN <= applied.LSN {
		a.known = true
		return nil
	}
	if a.last.StoreID != [16]byte(a.s.Identity().StoreID) {
		return fmt.Errorf("%w: %s ends with record %d of another store, this store with %d", ErrOtherHistory,
			a.Dir(), a.last.Last.LSN,
			applied.LSN)
	}
	// The store may lack the last archived record. With sync=off the end of the log may have been lost; it is then
	// fetched again from the peer. The log may also still be replayed. flush compares the positions when the record is
	// available.
	return nil
}

// archivedPosition returns the archived position of record n. ok is false if the archive does not contain the record,
// or contains it in the middle of an encrypted file.
func archivedPosition(
	ctx context.Context, place Objects, names []archivedName, n uint64,
) (pos lsn.Position, ok bool, err error) {
	i := slices.IndexFunc(names, func(f archivedName) bool { return f.first-1 <= n && n <= f.last })
	if i < 0 {
		return lsn.Position{}, false, nil
	}
	f, err := readEnds(ctx, place, names[i].name)
	switch {
	case err != nil:
		return lsn.Position{}, false, err
	case f.Last.LSN == n:
		return f.Last, true, nil
	case f.Before.LSN == n:
		return f.Before, true, nil
	case f.Encrypted:
		return lsn.Position{}, false, nil
	}
	err = eachFrame(ctx, place, &f, nil, func(fr wal.Frame, _ []byte) error {
		if fr.Pos.LSN != n {
			return nil
		}
		pos, ok = fr.Pos, true
		return errStop
	})
	if errors.Is(err, errStop) {
		err = nil
	}
	return pos, ok, err
}

// PreviousArchives returns the paths of the subdirectories of dir with archives of other histories.
func PreviousArchives(fsys vfs.FS, dir string) ([]string, error) {
	names, err := fsys.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list archive: %w", err)
	}
	var formers []string
	for _, name := range names {
		if strings.HasPrefix(name, previousPrefix) {
			formers = append(formers, filepath.Join(dir, name))
		}
	}
	return formers, nil
}
