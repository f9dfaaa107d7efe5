// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

// Set is a directory in a backup path: a save-set, or what is left of one.
type Set struct {
	// Name and Path of the directory.
	Name string
	Path string
	// Complete is true when the manifest is good and the files have the sizes that it says. Whether their content is
	// good, too, is for Verify to find out.
	Complete bool
	// Problem says why it is not complete.
	Problem error
	// Manifest of a complete set.
	Manifest Manifest
}

// List returns what is in a backup path, oldest first, incomplete sets included. A path that is not there has none.
// fsys may be nil for the operating system's.
func List(fsys vfs.FS, path string) ([]Set, error) {
	if fsys == nil {
		fsys = vfs.OS()
	}
	names, err := fsys.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the backups in %s: %w", path, err)
	}
	var sets []Set
	for _, name := range names {
		_, isSet := parseName(name)
		if !isSet && !isLeftover(name) {
			continue
		}
		set, err := Load(fsys, join(path, name))
		if err != nil {
			set = Set{Name: name, Path: join(path, name), Problem: err}
		}
		sets = append(sets, set)
	}
	slices.SortStableFunc(sets, func(a, b Set) int {
		return cmp.Or(a.started().Compare(b.started()), cmp.Compare(a.Manifest.Position.LSN, b.Manifest.Position.LSN))
	})
	return sets, nil
}

// started is when the backup was begun, as far as that can be told.
func (s *Set) started() time.Time {
	if s.Complete {
		return s.Manifest.Created
	}
	parts, _ := parseName(s.Name)
	return parts.created
}

// Load reads the manifest of a save-set and compares the sizes of its files. Errors: ErrIncomplete, ErrDamagedSet,
// ErrNewerVersion. fsys may be nil for the operating system's.
func Load(fsys vfs.FS, dir string) (Set, error) {
	if fsys == nil {
		fsys = vfs.OS()
	}
	name := filepath.Base(filepath.Clean(dir))
	if isLeftover(name) {
		return Set{}, fmt.Errorf("%w: %s is what an interrupted backup left; the next one removes it", ErrIncomplete,
			dir)
	}
	m, err := loadFiles(fsys, dir)
	if err != nil {
		return Set{}, err
	}
	return Set{Name: name, Path: dir, Complete: true, Manifest: m}, nil
}

// loadFiles does so whatever the directory is called.
func loadFiles(fsys vfs.FS, dir string) (Manifest, error) {
	m, err := readManifest(fsys, dir)
	if err != nil {
		return Manifest{}, err
	}
	for _, want := range m.Files {
		info, err := fsys.Stat(join(dir, want.Name))
		if err != nil {
			return Manifest{}, fmt.Errorf("%w: %s: %w", ErrIncomplete, dir, err)
		}
		if info.SizeBytes != want.Bytes || info.IsDir {
			return Manifest{}, fmt.Errorf("%w: %s has %d bytes, the manifest says %d", ErrIncomplete,
				join(dir, want.Name), info.SizeBytes,
				want.Bytes)
		}
	}
	return m, nil
}

// Choose returns the newest complete set of a list from which a record and a time can be reached: one that holds no
// record after toLSN (0: any) and none that is later than toTime (zero: any). pair narrows it to one pair, unless it is
// zero. ErrTarget if there is none.
func Choose(sets []Set, pair uuid.UUID, toLSN uint64, toTime time.Time) (Set, error) {
	for _, s := range slices.Backward(sets) {
		switch m := &s.Manifest; {
		case !s.Complete || pair != uuid.Nil && m.PairID != pair:
		case toLSN != 0 && m.Position.LSN > toLSN:
		case !toTime.IsZero() && m.LastTime.After(toTime):
		default:
			return s, nil
		}
	}
	return Set{}, fmt.Errorf("%w: no complete backup is old enough", ErrTarget)
}

// removeLeftovers removes what interrupted backups left. The path's lock is held.
func removeLeftovers(fsys vfs.FS, path string) error {
	names, err := fsys.ReadDir(path)
	if err != nil {
		return fmt.Errorf("list the backups in %s: %w", path, err)
	}
	for _, name := range names {
		if isLeftover(name) {
			if err := removeSet(fsys, join(path, name)); err != nil {
				return fmt.Errorf("remove what an interrupted backup left: %w", err)
			}
		}
	}
	return nil
}

// removeSet removes a directory with files in it.
func removeSet(fsys vfs.FS, dir string) error {
	names, err := fsys.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	for _, name := range names {
		if err := fsys.Remove(join(dir, name)); err != nil {
			return fmt.Errorf("remove %s: %w", dir, err)
		}
	}
	if err := fsys.Remove(dir); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	if err := fsys.SyncDir(filepath.Dir(dir)); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

// Remove removes a save-set. A crash leaves all of it, or something that is not listed as complete.
func Remove(fsys vfs.FS, set Set) error {
	if fsys == nil {
		fsys = vfs.OS()
	}
	path := filepath.Dir(filepath.Clean(set.Path))
	if isLeftover(set.Name) {
		return removeSet(fsys, set.Path)
	}
	gone := join(path, removedPrefix+set.Name)
	if err := fsys.Rename(set.Path, gone); err != nil {
		return fmt.Errorf("remove %s: %w", set.Path, err)
	}
	if err := fsys.SyncDir(path); err != nil {
		return fmt.Errorf("remove %s: %w", set.Path, err)
	}
	return removeSet(fsys, gone)
}

// prune removes the generations that are too many, and the archived log that no generation needs. newest was just made.
// The path's lock is held.
func prune(o Options, newest Manifest) error {
	if o.KeepGenerations == 0 {
		return nil
	}
	sets, err := List(o.FS, o.Path)
	if err != nil {
		return err
	}
	same := slices.DeleteFunc(sets, func(s Set) bool { return !s.Complete || !s.Manifest.sameStore(&newest) })
	for len(same) > o.KeepGenerations {
		if same[0].Manifest.Name == newest.Name {
			return fmt.Errorf("the clock went back: %d backups in %s are newer than the one just made; remove them by hand",
				len(same)-1, o.Path)
		}
		if err := Remove(o.FS, same[0]); err != nil {
			return err
		}
		same = same[1:]
	}
	if o.ArchiveDir == "" {
		return nil
	}
	// The oldest in time need not be the lowest LSN, after a restore of an older state.
	oldest := newest.Position.LSN
	for _, s := range same {
		oldest = min(oldest, s.Manifest.Position.LSN)
	}
	_, err = PruneArchive(o.FS, o.ArchiveDir, oldest, time.Time{})
	return err
}

// sameStore tells whether two sets are generations of the same content.
func (m *Manifest) sameStore(other *Manifest) bool {
	if m.PairID != uuid.Nil || other.PairID != uuid.Nil {
		return m.PairID == other.PairID
	}
	return m.StoreID == other.StoreID
}
