// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
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
	return ListIn(context.Background(), Directory(fsys, path))
}

// ListIn does so in any place. ErrRemote when that cannot be used.
func ListIn(ctx context.Context, place Objects) ([]Set, error) {
	entries, err := place.List(ctx, "")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the backups in %s: %w", place.Path(""), err)
	}
	// sets that are being made or removed; those that are complete
	marked, whole := map[string]bool{}, map[string]bool{}
	var sets []Set
	for _, e := range entries {
		_, isSet := parseName(e.Name)
		if !isSet || !e.Folder {
			continue
		}
		set, err := LoadFrom(ctx, place, e.Name)
		if notRead(err) {
			return nil, fmt.Errorf("list the backups in %s: %w", place.Path(""), err)
		}
		if err != nil {
			set = Set{Name: e.Name, Path: place.Path(e.Name), Problem: err}
		}
		whole[e.Name] = err == nil
		sets = append(sets, set)
	}
	for _, e := range entries {
		if !isLeftover(e.Name) || whole[setOf(e.Name)] || marked[setOf(e.Name)] {
			continue
		}
		marked[setOf(e.Name)] = true
		_, err := LoadFrom(ctx, place, e.Name)
		sets = append(sets, Set{Name: e.Name, Path: place.Path(e.Name), Problem: err})
	}
	sets = slices.DeleteFunc(sets, func(s Set) bool { return marked[s.Name] }) // it is told by its mark
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
	parts, _ := parseName(setOf(s.Name))
	return parts.created
}

// Load reads the manifest of a save-set and compares the sizes of its files. Errors: ErrIncomplete, ErrDamagedSet,
// ErrNewerVersion. fsys may be nil for the operating system's.
func Load(fsys vfs.FS, dir string) (Set, error) {
	place, name := setIn(fsys, dir)
	return LoadFrom(context.Background(), place, name)
}

// setIn is the place and the name of a set in a directory of its own.
func setIn(fsys vfs.FS, dir string) (Objects, string) {
	dir = filepath.Clean(dir)
	return Directory(fsys, filepath.Dir(dir)), filepath.Base(dir)
}

// LoadFrom does so with a set in any place, by its name there. Also ErrRemote.
func LoadFrom(ctx context.Context, place Objects, name string) (Set, error) {
	if isLeftover(name) {
		return Set{}, fmt.Errorf("%w: %s is of a backup that is being made, or what an interrupted one left; "+
			"the next one removes it", ErrIncomplete, place.Path(name))
	}
	m, err := loadFiles(ctx, place, name)
	if err != nil {
		return Set{}, err
	}
	return Set{Name: name, Path: place.Path(name), Complete: true, Manifest: m}, nil
}

// loadFiles does so whatever the folder is called.
func loadFiles(ctx context.Context, place Objects, set string) (Manifest, error) {
	m, err := readManifest(ctx, place, set)
	if err != nil {
		return Manifest{}, err
	}
	entries, err := place.List(ctx, set)
	if err != nil {
		return Manifest{}, fmt.Errorf("%s: %w", place.Path(set), err)
	}
	for _, want := range m.Files {
		path := place.Path(inFolder(set, want.Name))
		i := slices.IndexFunc(entries, func(e Entry) bool { return e.Name == want.Name })
		if i < 0 {
			return Manifest{}, fmt.Errorf("%w: there is no %s", ErrIncomplete, path)
		}
		if entries[i].Bytes != want.Bytes || entries[i].Folder {
			return Manifest{}, fmt.Errorf("%w: %s has %d bytes, the manifest says %d", ErrIncomplete, path,
				entries[i].Bytes, want.Bytes)
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

// othersAfter is how old what another node left must be before this one removes it: it may still be at work.
const othersAfter = 7 * 24 * time.Hour

// begun is in the mark of a set that is being made.
type begun struct {
	NodeID   uuid.UUID `json:"node_id"`
	Begun    time.Time `json:"begun"`
	Software string    `json:"software,omitempty"`
}

// removeLeftovers removes what interrupted backups left: all of it if no other node can be at work here, otherwise this
// node's own, and others' when it is old.
func removeLeftovers(ctx context.Context, o Options, node uuid.UUID, exclusive bool) error {
	entries, err := o.Place.List(ctx, "")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the backups in %s: %w", o.Place.Path(""), err)
	}
	for _, e := range entries {
		if !isLeftover(e.Name) || !exclusive && !ownOrOld(ctx, o, e.Name, node) {
			continue
		}
		if err := removeLeftover(ctx, o.Place, e.Name); err != nil {
			return fmt.Errorf("remove what an interrupted backup left: %w", err)
		}
	}
	return nil
}

// ownOrOld tells whether a mark is this node's, or so old that no other node can be at work. A set that is being
// removed may be removed by any.
func ownOrOld(ctx context.Context, o Options, mark string, node uuid.UUID) bool {
	if strings.HasPrefix(mark, removedPrefix) {
		return true
	}
	var b begun
	raw, err := readObject(ctx, o.Place, inFolder(mark, begunName), manifestMaxBytes)
	if err == nil && json.Unmarshal(raw, &b) == nil && b.NodeID == node {
		return true
	}
	entries, err := o.Place.List(ctx, mark)
	return err == nil && !slices.ContainsFunc(entries, func(e Entry) bool {
		return o.Now().Sub(e.Changed) < othersAfter
	})
}

// removeLeftover removes the set that a mark is of, unless that was completed, and then the mark.
func removeLeftover(ctx context.Context, place Objects, mark string) error {
	set := setOf(mark)
	if _, isSet := parseName(set); isSet {
		_, err := LoadFrom(ctx, place, set)
		if notRead(err) {
			return err
		}
		whole := err == nil || errors.Is(err, ErrNewerVersion)
		if !whole || strings.HasPrefix(mark, removedPrefix) {
			if err := removeFolder(ctx, place, set, manifestName); err != nil {
				return err
			}
		}
	}
	return removeFolder(ctx, place, mark)
}

// Remove removes a save-set. A crash leaves all of it, or something that is not listed as complete.
func Remove(ctx context.Context, place Objects, name string) error {
	if isLeftover(name) {
		return removeLeftover(ctx, place, name)
	}
	mark := removedPrefix + name
	err := putObject(ctx, place, inFolder(mark, begunName), []byte("{}"))
	if err == nil || errors.Is(err, fs.ErrExist) {
		err = removeLeftover(ctx, place, mark)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", place.Path(name), err)
	}
	return nil
}

// prune removes the generations that are too many, and the archived log that no generation needs. newest was just made.
// The path's lock is held.
func prune(ctx context.Context, o Options, newest Manifest) error {
	if o.KeepGenerations == 0 {
		return nil
	}
	sets, err := ListIn(ctx, o.Place)
	if err != nil {
		return err
	}
	same := slices.DeleteFunc(sets, func(s Set) bool { return !s.Complete || !s.Manifest.sameStore(&newest) })
	for len(same) > o.KeepGenerations {
		if same[0].Manifest.Name == newest.Name {
			return fmt.Errorf("the clock went back: %d backups in %s are newer than the one just made; remove them by hand",
				len(same)-1, o.Place.Path(""))
		}
		if err := Remove(ctx, o.Place, same[0].Name); err != nil {
			return err
		}
		same = same[1:]
	}
	if o.Archive == nil {
		return nil
	}
	// The oldest in time need not be the lowest LSN, after a restore of an older state.
	oldest := newest.Position.LSN
	for _, s := range same {
		oldest = min(oldest, s.Manifest.Position.LSN)
	}
	_, err = pruneArchive(ctx, o.Archive, oldest, time.Time{})
	return err
}

// sameStore tells whether two sets are generations of the same content.
func (m *Manifest) sameStore(other *Manifest) bool {
	if m.PairID != uuid.Nil || other.PairID != uuid.Nil {
		return m.PairID == other.PairID
	}
	return m.StoreID == other.StoreID
}
