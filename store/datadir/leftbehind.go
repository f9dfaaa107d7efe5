// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

// TruncatedPrefix is the name prefix of files with records that were truncated or copied from the log.
const TruncatedPrefix = "cut-"

const truncatedSuffix = ".seg"

// TruncatedName returns the name of a file with records from LSN first on, saved at the given time.
func TruncatedName(first uint64, at time.Time) string {
	return fmt.Sprintf("%s%020d-%s%s", TruncatedPrefix, first, at.UTC().Format("20060102T150405.000"), truncatedSuffix)
}

// TruncatedFirst returns the LSN in a name returned by TruncatedName. ok reports whether the name has this form.
func TruncatedFirst(name string) (first uint64, ok bool) {
	digits, ok := strings.CutPrefix(name, TruncatedPrefix)
	if !ok || !strings.HasSuffix(name, truncatedSuffix) {
		return 0, false
	}
	digits, _, _ = strings.Cut(digits, "-")
	first, err := strconv.ParseUint(digits, 10, 64)
	return first, err == nil
}

// Kinds of LeftBehind.
const (
	LeftDamagedStore = "damaged-store"
	LeftOldPageFile  = "old-page-file"
	LeftTruncatedLog = "cut-log"
)

// LeftBehind is a file or directory that the store does not use and leaves for an operator.
type LeftBehind struct {
	Path, Kind string
	Bytes      uint64
}

// ListLeftBehind returns the files and directories that the operator may remove.
func ListLeftBehind(fsys vfs.FS, dir string) ([]LeftBehind, error) {
	names, err := fsys.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list the data directory: %w", err)
	}
	var left []LeftBehind
	for _, name := range names {
		kind := leftKind(name)
		if kind == "" {
			continue
		}
		path := filepath.Join(dir, name)
		n, err := SizeOf(fsys, path)
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed concurrently
		case err != nil:
			return nil, fmt.Errorf("read sizes in the data directory: %w", err)
		default:
			left = append(left, LeftBehind{Path: path, Kind: kind, Bytes: n})
		}
	}
	return left, nil
}

func leftKind(name string) string {
	switch {
	case strings.HasPrefix(name, quarantinePrefix):
		return LeftDamagedStore
	case name == OldFileName:
		return LeftOldPageFile
	case strings.HasPrefix(name, TruncatedPrefix) && strings.HasSuffix(name, truncatedSuffix):
		return LeftTruncatedLog
	default:
		return ""
	}
}

// SizeOf returns the size of a file, or the total size of the files in a directory tree.
func SizeOf(fsys vfs.FS, path string) (bytes uint64, err error) {
	info, err := fsys.Stat(path)
	if err != nil {
		return 0, err
	}
	if !info.IsDir {
		return uint64(max(info.SizeBytes, 0)), nil
	}
	names, err := fsys.ReadDir(path)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		n, err := SizeOf(fsys, filepath.Join(path, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		bytes += n
	}
	return bytes, nil
}
