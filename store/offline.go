package store

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// offlineCacheBytes bounds the tree nodes held by the offline tools.
const offlineCacheBytes = 32 << 20

// openOffline opens a page file for reading, beside nobody: the data directory's lock is held meanwhile, so that no
// running node writes to what is being read.
func openOffline(fsys vfs.FS, dir string) (*page.File, func() error, error) {
	lock, err := fsys.Lock(filepath.Join(dir, lockName))
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %s: %w; stop the node first, or use the admin command of the running node",
			ErrInUse, dir, err)
	}
	file, err := page.Open(fsys, filepath.Join(dir, pageFileName), page.Options{ReadOnly: true})
	if err != nil {
		_ = lock.Close()
		return nil, nil, fmt.Errorf("open page.db: %w", err)
	}
	return file, func() error {
		err := file.Close()
		if lerr := lock.Close(); err == nil {
			err = lerr
		}
		if err != nil {
			return fmt.Errorf("close page.db: %w", err)
		}
		return nil
	}, nil
}

// CheckDir checks the page file of a node that is not running, as Store.Check does. Read-only.
func CheckDir(ctx context.Context, fsys vfs.FS, dir string, progress func(done, total uint64)) (_ Report, err error) {
	file, done, err := openOffline(fsys, dir)
	if err != nil {
		return Report{}, err
	}
	defer func() {
		if cerr := done(); err == nil {
			err = cerr
		}
	}()
	return checkFile(ctx, file, file.Pin(), offlineCacheBytes, nil, progress)
}

// DigestDir hashes the logical content of the last checkpoint of a node that is not running. Read-only.
func DigestDir(ctx context.Context, fsys vfs.FS, dir string) (_ Digest, err error) {
	file, done, err := openOffline(fsys, dir)
	if err != nil {
		return Digest{}, err
	}
	defer func() {
		if cerr := done(); err == nil {
			err = cerr
		}
	}()
	return digestFile(ctx, file, file.Pin(), offlineCacheBytes, nil)
}

// ReadIdentity reads who the node in a data directory is. Read-only.
func ReadIdentity(fsys vfs.FS, dir string) (Identity, error) {
	id, err := readIdentity(fsys, dir)
	if err != nil {
		return Identity{}, err
	}
	return id.public(), nil
}

// LogDir is where the log of a data directory is, for wal's offline reader.
func LogDir(dir string) string { return filepath.Join(dir, logDirName) }

// PageFile is where the page file of a data directory is, for page's offline reader.
func PageFile(dir string) string { return filepath.Join(dir, pageFileName) }
