// SPDX-License-Identifier: Apache-2.0

package vfs

import (
	"fmt"
	"os"
	"time"
)

const (
	// removeStepBytes is how much of a file RemoveLarge gives back at once, and removePause how long it lets others have
	// the filesystem then.
	removeStepBytes = 32 << 20
	removePause     = 5 * time.Millisecond
)

// RemoveLarge is Remove for a file that may be large: it is cut shorter step by step first. To give all of its space
// back at once takes the filesystem hundreds of milliseconds for each gigabyte, longer where it tells the disk as well,
// and other files' syncs wait for that. After an error, or a crash, the file may be there and shorter.
func RemoveLarge(fsys FS, name string) error {
	info, err := fsys.Stat(name)
	if err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	if !info.IsDir && info.SizeBytes > removeStepBytes {
		if err := cutShort(fsys, name, info.SizeBytes); err != nil {
			return fmt.Errorf("remove %s: %w", name, err)
		}
	}
	if err := fsys.Remove(name); err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}

// cutShort takes the end of a file away until little is left.
func cutShort(fsys FS, name string, size int64) (err error) {
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
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
