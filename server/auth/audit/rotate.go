// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// oldName is the format of the time in the name of a rotated file, such as audit-2026-11-28T10-15-04.123.jsonl.
const oldName = "2006-01-02T15-04-05.000"

// rotatedFile is a file that is rotated before a write would exceed its maximum size. It is not safe for
// concurrent use.
type rotatedFile struct {
	path string
	max  int64
	keep int      // number of rotated files to keep
	file *os.File // nil if it is not open, for example after a failed rotation
	size int64
}

func (f *rotatedFile) open() error {
	file, err := os.OpenFile(f.path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err //nolint:wrapcheck // the error contains the path
	}
	f.file = file
	info, err := file.Stat()
	if err != nil {
		return err //nolint:wrapcheck // the error contains the path
	}
	f.size = info.Size()
	return nil
}

func (f *rotatedFile) Write(line []byte) (int, error) {
	if f.file != nil && f.size > 0 && f.size+int64(len(line)) > f.max {
		if err := f.rotate(); err != nil {
			return 0, err
		}
	}
	if f.file == nil {
		if err := f.open(); err != nil {
			return 0, err
		}
	}
	n, err := f.file.Write(line)
	f.size += int64(n)
	return n, err //nolint:wrapcheck // the error contains the path
}

func (f *rotatedFile) rotate() error {
	if err := f.Close(); err != nil {
		return err
	}
	ext := filepath.Ext(f.path)
	prefix := strings.TrimSuffix(f.path, ext) + "-"
	if err := os.Rename(f.path, prefix+time.Now().UTC().Format(oldName)+ext); err != nil {
		return fmt.Errorf("rotate: %w", err)
	}
	entries, err := os.ReadDir(filepath.Dir(f.path))
	if err != nil {
		return fmt.Errorf("rotate: %w", err)
	}
	var old []string // sorted by time
	for _, e := range entries {
		at, isOld := strings.CutPrefix(strings.TrimSuffix(e.Name(), ext), filepath.Base(prefix))
		if _, err := time.Parse(oldName, at); isOld && err == nil {
			old = append(old, filepath.Join(filepath.Dir(f.path), e.Name()))
		}
	}
	slices.Sort(old)
	for _, path := range old[:max(0, len(old)-f.keep)] {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("rotate: %w", err)
		}
	}
	return nil
}

func (f *rotatedFile) Close() error {
	file := f.file
	f.file = nil
	if file == nil {
		return nil
	}
	return file.Close() //nolint:wrapcheck // the error contains the path
}
