// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// ReadDir calls fn with the last checkpoint in the data directory of a stopped node, under the directory's lock. Errors
// are those of datadir.Lock.
func ReadDir(fsys vfs.FS, dir string, fn func(*Checkpoint) error) (err error) {
	lock, err := datadir.Lock(fsys, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	file, err := page.Open(fsys, datadir.PageFile(dir), page.Options{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("open page.db: %w", err)
	}
	return ReadFile(file, fn)
}

// ReadFile calls fn with the last checkpoint of an open page file, and closes the file.
func ReadFile(file *page.File, fn func(*Checkpoint) error) error {
	c := Open(file, file.Pin(), Options{})
	err := fn(c)
	c.Close()
	return errors.Join(err, file.Close())
}
