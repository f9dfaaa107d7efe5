// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

const putSuffix = ".new"

// directory is a location in a filesystem. Objects are files. Folders are directories; Delete removes a directory
// when it becomes empty.
type directory struct {
	fs   vfs.FS
	root string
}

// Directory returns the location at path root in fsys. If fsys is nil, it uses the operating system's filesystem. The
// directory is created on first use.
func Directory(fsys vfs.FS, root string) Objects {
	if fsys == nil {
		fsys = vfs.OS()
	}
	return directory{fs: fsys, root: root}
}

func (d directory) Path(name string) string { return filepath.Join(d.root, filepath.FromSlash(name)) }

// Put writes the object under a temporary name, syncs it, and renames it.
func (d directory) Put(ctx context.Context, name string, _ PutOptions, fill func(w io.Writer) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("write %s: %w", d.Path(name), err)
	}
	final := d.Path(name)
	folder := filepath.Dir(final)
	if _, err := d.fs.Stat(final); err == nil {
		if err := d.fs.SyncDir(folder); err != nil { // an earlier Put may have failed after the rename
			return fmt.Errorf("sync directory entry %s: %w", final, noSpace(err))
		}
		return fmt.Errorf("write %s: %w", final, fs.ErrExist)
	}
	if err := vfs.MkdirAllSync(d.fs, folder, 0o750); err != nil {
		return fmt.Errorf("create directory %s: %w", folder, noSpace(err))
	}
	err := d.write(final+putSuffix, fill)
	if err == nil {
		err = d.fs.Rename(final+putSuffix, final)
	}
	if err != nil {
		_ = d.fs.Remove(final + putSuffix) // Sweep retries
		d.dropEmpty(folder)
		return fmt.Errorf("write %s: %w", final, noSpace(err))
	}
	if err := d.fs.SyncDir(folder); err != nil {
		return fmt.Errorf("sync directory entry %s: %w", final, noSpace(err))
	}
	return nil
}

func (d directory) write(name string, fill func(w io.Writer) error) error {
	file, err := d.fs.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	w := fileWriter{file: file}
	if err = fill(&w); err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// fileWriter starts the writeback of written data early, and limits the amount of dirty data. It does not sync, because
// a sync of a growing file commits the filesystem journal, and the syncs of the log wait for that.
type fileWriter struct {
	file    vfs.File
	offset  int64
	started int64 // the writeback of data before this offset was started
	written int64 // data before this offset is written, but not durable
}

func (w *fileWriter) Write(p []byte) (int, error) {
	n, err := w.file.WriteAt(p, w.offset)
	w.offset += int64(n)
	if err != nil || w.offset-w.started < writebackBytes {
		return n, err
	}
	if cached, ok := w.file.(vfs.Cached); ok {
		cached.WriteBehind(w.started, w.offset-w.started)
	}
	w.started = w.offset
	if end := w.offset - dirtyBytes; end > w.written {
		err = w.file.SyncRange(w.written, end-w.written)
		w.written = end
	}
	return n, err
}

func (d directory) Open(_ context.Context, name string) (Object, error) {
	file, err := d.fs.OpenFile(d.Path(name), os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", d.Path(name), err)
	}
	return file, nil
}

func (d directory) List(_ context.Context, folder string) ([]Entry, error) {
	names, err := d.fs.ReadDir(d.Path(folder))
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", d.Path(folder), err)
	}
	entries := make([]Entry, 0, len(names))
	for _, name := range names {
		info, err := d.fs.Stat(d.Path(inFolder(folder, name)))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed in the meantime
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", d.Path(folder), err)
		}
		entries = append(entries, Entry{Name: name, Folder: info.IsDir, Bytes: info.SizeBytes})
	}
	return entries, nil
}

// Delete also removes the folder of the object if it is then empty.
func (d directory) Delete(_ context.Context, name string) error {
	path := d.Path(name)
	err := d.fs.Remove(path)
	if err == nil {
		err = d.fs.SyncDir(filepath.Dir(path))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	d.dropEmpty(filepath.Dir(path))
	return nil
}

// dropEmpty removes a directory if it is empty and not the root. It ignores errors.
func (d directory) dropEmpty(dir string) {
	if filepath.Clean(dir) == filepath.Clean(d.root) {
		return
	}
	if names, err := d.fs.ReadDir(dir); err == nil && len(names) == 0 && d.fs.Remove(dir) == nil {
		_ = d.fs.SyncDir(filepath.Dir(dir)) // an empty directory is harmless
	}
}

func (d directory) Move(_ context.Context, from, to string) error {
	source, target := d.Path(from), d.Path(to)
	if err := vfs.MkdirAllSync(d.fs, filepath.Dir(target), 0o750); err != nil {
		return fmt.Errorf("create directory %s: %w", filepath.Dir(target), noSpace(err))
	}
	err := d.fs.Rename(source, target)
	if err == nil {
		err = errors.Join(d.fs.SyncDir(filepath.Dir(target)), d.fs.SyncDir(filepath.Dir(source)))
	}
	if err != nil {
		return fmt.Errorf("move %s to %s: %w", source, target, err)
	}
	return nil
}

// Sweep removes unfinished files regardless of their start time. The caller must hold the lock or be the only
// process.
func (d directory) Sweep(ctx context.Context, folder string, _ time.Time) error {
	entries, err := d.List(ctx, folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Folder && (strings.HasSuffix(e.Name, putSuffix) || strings.HasSuffix(e.Name, previousArchiveTmp)) {
			if err := d.Delete(ctx, inFolder(folder, e.Name)); err != nil {
				return err
			}
		}
	}
	if folder != "" { // a crash may have left the folder empty
		d.dropEmpty(d.Path(folder))
	}
	return nil
}

func (d directory) Lock(context.Context) (io.Closer, bool, error) {
	if err := vfs.MkdirAllSync(d.fs, d.root, 0o750); err != nil {
		return nil, false, fmt.Errorf("create directory %s: %w", d.root, err)
	}
	lock, err := d.fs.Lock(d.Path(lockName))
	if errors.Is(err, vfs.ErrLocked) {
		return nil, false, fmt.Errorf("%w: %s", ErrBusy, d.root)
	}
	if err != nil {
		return nil, false, fmt.Errorf("lock directory %s: %w", d.root, err)
	}
	return lock, true, nil
}

func (d directory) Available(context.Context) (uint64, error) {
	usage, err := d.fs.Usage(d.root)
	if err != nil {
		return 0, fmt.Errorf("get free space of %s: %w", d.root, err)
	}
	return usage.AvailableBytes, nil
}
