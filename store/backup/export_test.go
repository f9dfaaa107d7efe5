// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"time"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

// ListArchive returns the files of an archive, oldest first.
func ListArchive(fsys vfs.FS, dir string) ([]ArchiveFile, error) {
	return listArchive(context.Background(), Directory(fsys, dir), 0)
}

// PruneArchive is pruneArchive for a directory.
func PruneArchive(fsys vfs.FS, dir string, beforeLSN uint64, olderThan time.Time) (int, error) {
	return pruneArchive(context.Background(), Directory(fsys, dir), beforeLSN, olderThan)
}
