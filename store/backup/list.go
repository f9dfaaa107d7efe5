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

// Set is a directory in a backup path: a backup, or the leftovers of one.
type Set struct {
	Name string
	Path string
	// Complete reports whether the manifest is valid and the file sizes match it. Only Verify checks the content of the
	// files. If Complete is false, Problem is the reason, and Manifest is not set.
	Complete bool
	Problem  error
	Manifest Manifest
}

// List returns the complete and incomplete backups in a location, oldest first. If the location does not exist, List
// returns an empty list. It returns ErrRemote if the server of the location cannot be reached.
func List(ctx context.Context, place Objects) ([]Set, error) {
	entries, err := place.List(ctx, "")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list backups in %s: %w", place.Path(""), err)
	}
	marked, complete := map[string]bool{}, map[string]bool{}
	var sets []Set
	for _, e := range entries {
		_, isSet := parseName(e.Name)
		if !isSet || !e.Folder {
			continue
		}
		set, err := Load(ctx, place, e.Name)
		if isUnreadable(err) {
			return nil, fmt.Errorf("list backups in %s: %w", place.Path(""), err)
		}
		if err != nil {
			set = Set{Name: e.Name, Path: place.Path(e.Name), Problem: err}
		}
		complete[e.Name] = err == nil
		sets = append(sets, set)
	}
	for _, e := range entries {
		if !isLeftover(e.Name) || complete[setOf(e.Name)] || marked[setOf(e.Name)] {
			continue
		}
		marked[setOf(e.Name)] = true
		_, err := Load(ctx, place, e.Name)
		sets = append(sets, Set{Name: e.Name, Path: place.Path(e.Name), Problem: err})
	}
	sets = slices.DeleteFunc(sets, func(s Set) bool { return marked[s.Name] }) // the list contains the marker instead
	slices.SortStableFunc(sets, func(a, b Set) int {
		return cmp.Or(a.started().Compare(b.started()), cmp.Compare(a.Manifest.Position.LSN, b.Manifest.Position.LSN))
	})
	return sets, nil
}

func (s *Set) started() time.Time {
	if s.Complete {
		return s.Manifest.Created
	}
	parts, _ := parseName(setOf(s.Name))
	return parts.created
}

func setIn(fsys vfs.FS, dir string) (Objects, string) {
	dir = filepath.Clean(dir)
	return Directory(fsys, filepath.Dir(dir)), filepath.Base(dir)
}

// Load reads the manifest of a backup and compares the file sizes with it. Errors include ErrIncomplete, ErrCorrupt,
// ErrNewerVersion and ErrRemote.
func Load(ctx context.Context, place Objects, name string) (Set, error) {
	if isLeftover(name) {
		return Set{}, fmt.Errorf("%w: %s belongs to a running backup, or was left by an interrupted one and will be "+
			"removed by the next backup", ErrIncomplete, place.Path(name))
	}
	m, err := loadFiles(ctx, place, name)
	if err != nil {
		return Set{}, err
	}
	return Set{Name: name, Path: place.Path(name), Complete: true, Manifest: m}, nil
}

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
			return Manifest{}, fmt.Errorf("%w: %s is missing", ErrIncomplete, path)
		}
		if entries[i].Bytes != want.Bytes || entries[i].Folder {
			return Manifest{}, fmt.Errorf("%w: %s has %d bytes, the manifest has %d", ErrIncomplete, path,
				entries[i].Bytes, want.Bytes)
		}
	}
	return m, nil
}

// Choose returns the newest complete backup from which record toLSN and time toTime can be restored. Such a backup
// has no records after toLSN (0: any) and no transactions after toTime (zero: any). It belongs to the given pair,
// unless pair is zero. If no such backup exists, Choose returns ErrTarget.
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

// foreignMaxAge is the age above which leftovers of another node are removed.
const foreignMaxAge = 7 * 24 * time.Hour

type begun struct {
	NodeID   uuid.UUID `json:"node_id"`
	Begun    time.Time `json:"begun"`
	Software string    `json:"software,omitempty"`
}

// removeLeftovers removes the leftovers of interrupted backups and removals. Without an exclusive lock, it skips the
// leftovers of a backup that another node may still be writing (isOwnOrStale).
func removeLeftovers(ctx context.Context, o Options, node uuid.UUID, exclusive bool) error {
	entries, err := o.Location.List(ctx, "")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list backups in %s: %w", o.Location.Path(""), err)
	}
	for _, e := range entries {
		if !isLeftover(e.Name) || !exclusive && !isOwnOrStale(ctx, o, e.Name, node) {
			continue
		}
		if err := removeLeftover(ctx, o.Location, e.Name); err != nil {
			return fmt.Errorf("remove files of an interrupted backup: %w", err)
		}
	}
	return nil
}

// isOwnOrStale reports whether this node may remove a marker and the files that belong to it. It may if this node
// wrote the marker, if the marker is older than foreignMaxAge, or if the marker marks a removal.
func isOwnOrStale(ctx context.Context, o Options, mark string, node uuid.UUID) bool {
	if strings.HasPrefix(mark, removedPrefix) {
		return true
	}
	var b begun
	raw, err := readObject(ctx, o.Location, inFolder(mark, partialMarkerName), manifestMaxBytes)
	if err == nil && json.Unmarshal(raw, &b) == nil && b.NodeID == node {
		return true
	}
	entries, err := o.Location.List(ctx, mark)
	return err == nil && !slices.ContainsFunc(entries, func(e Entry) bool {
		return o.Now().Sub(e.Changed) < foreignMaxAge
	})
}

// removeLeftover removes the backup to which a marker belongs, and then the marker. It removes a complete backup only
// if the marker marks a removal.
func removeLeftover(ctx context.Context, place Objects, mark string) error {
	set := setOf(mark)
	if _, isSet := parseName(set); isSet {
		_, err := Load(ctx, place, set)
		if isUnreadable(err) {
			return err
		}
		complete := err == nil || errors.Is(err, ErrNewerVersion)
		if !complete || strings.HasPrefix(mark, removedPrefix) {
			if err := removeFolder(ctx, place, set, manifestName); err != nil {
				return err
			}
		}
	}
	return removeFolder(ctx, place, mark)
}

// Remove removes a backup, or the leftovers of one. A crash leaves either the complete backup, or leftovers that are
// not listed as complete.
func Remove(ctx context.Context, place Objects, name string) error {
	if isLeftover(name) {
		return removeLeftover(ctx, place, name)
	}
	mark := removedPrefix + name
	err := putObject(ctx, place, inFolder(mark, partialMarkerName), []byte("{}"))
	if err == nil || errors.Is(err, fs.ErrExist) {
		err = removeLeftover(ctx, place, mark)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", place.Path(name), err)
	}
	return nil
}

// prune removes surplus generations, and the archived log that no generation needs. newest describes the new backup.
// If KeepGenerations is 0, prune removes nothing. The caller must hold the lock of the location.
func prune(ctx context.Context, o Options, newest Manifest) error {
	if o.KeepGenerations == 0 {
		return nil
	}
	sets, err := List(ctx, o.Location)
	if err != nil {
		return err
	}
	same := slices.DeleteFunc(sets, func(s Set) bool { return !s.Complete || !s.Manifest.sameStore(&newest) })
	for len(same) > o.KeepGenerations {
		if same[0].Manifest.Name == newest.Name {
			return fmt.Errorf("clock went backwards: %d backups in %s are newer than the new one; remove them manually",
				len(same)-1, o.Location.Path(""))
		}
		if err := Remove(ctx, o.Location, same[0].Name); err != nil {
			return err
		}
		same = same[1:]
	}
	if o.Archive == nil {
		return nil
	}
	// After a restore of an older state, the oldest backup may not have the lowest LSN.
	oldest := newest.Position.LSN
	for _, s := range same {
		oldest = min(oldest, s.Manifest.Position.LSN)
	}
	_, err = pruneArchive(ctx, o.Archive, oldest, time.Time{})
	return err
}

func (m *Manifest) sameStore(other *Manifest) bool {
	if m.PairID != uuid.Nil || other.PairID != uuid.Nil {
		return m.PairID == other.PairID
	}
	return m.StoreID == other.StoreID
}
