// SPDX-License-Identifier: Apache-2.0

package vfs

import (
	"errors"
	"io/fs"
	"path/filepath"
)

// MkdirAllSync creates a directory and its missing parents durably.
func MkdirAllSync(fsys FS, dir string, perm fs.FileMode) error {
	dir = filepath.Clean(dir)
	sync := []string{filepath.Dir(dir)} // always: an earlier attempt may have created the directory without a sync
	for at := filepath.Dir(dir); at != filepath.Dir(at); at = filepath.Dir(at) {
		_, err := fsys.Stat(at)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		sync = append(sync, filepath.Dir(at))
	}
	if err := fsys.MkdirAll(dir, perm); err != nil {
		return err
	}
	for _, at := range sync {
		if err := fsys.SyncDir(at); err != nil {
			return err
		}
	}
	return nil
}
