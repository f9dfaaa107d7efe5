// SPDX-License-Identifier: Apache-2.0

package vfs

import (
	"errors"
	"fmt"
	"os"
	"time"
)

const (
	// removeStepBytes is the number of bytes freed in one step. removePause is the pause after each step.
	removeStepBytes = 32 << 20
	removePause     = 5 * time.Millisecond
)

// RemoveLarge truncates a large file in steps before it removes it. After an error or a crash, the file may still
// exist with a smaller size.
func RemoveLarge(fsys FS, name string) error {
	info, err := fsys.Stat(name)
	if err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	if !info.IsDir && info.SizeBytes > removeStepBytes {
		if err := shrinkBeforeRemove(fsys, name, info.SizeBytes); err != nil {
			return fmt.Errorf("remove %s: %w", name, err)
		}
	}
	if err := fsys.Remove(name); err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}

func shrinkBeforeRemove(fsys FS, name string, size int64) error {
	f, err := fsys.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	for size > removeStepBytes && err == nil {
		size -= removeStepBytes
		if err = f.Truncate(size); err == nil {
			<-time.After(removePause)
		}
	}
	return errors.Join(err, f.Close())
}
