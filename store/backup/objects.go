// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"time"
)

// Objects is a location of backups, or of a log archive: named objects that are written once and never changed.
//
// Names are relative paths with slashes. The part before the last slash is the folder. All methods are safe for
// concurrent use. They return fs.ErrNotExist, fs.ErrExist, ErrNoSpace and the context's errors where these apply.
type Objects interface {
	// Put creates an object with the content written by fill. The object is not visible before it is complete, and is
	// durable when Put returns nil. If the object exists, Put returns fs.ErrExist, and the object is durable. If fill
	// fails, no object is created.
	Put(ctx context.Context, name string, o PutOptions, fill func(w io.Writer) error) error
	// Open opens an object for reading. Reads from a bucket fail when ctx ends. The caller must close the object.
	Open(ctx context.Context, name string) (Object, error)
	// List returns the objects and folders in a folder ("" for the root), sorted by name, but not the content of these
	// folders. A folder exists while it is not empty.
	List(ctx context.Context, folder string) ([]Entry, error)
	// Delete removes an object durably. A missing object is not an error.
	Delete(ctx context.Context, name string) error
	// Move renames an object. A crash leaves it under either name, or under both.
	Move(ctx context.Context, from, to string) error
	// Sweep removes the leftovers of unfinished Put calls for a folder, and in a bucket also for its subfolders. If
	// before is not zero, it only removes leftovers of calls that started earlier; a directory ignores before.
	Sweep(ctx context.Context, folder string, before time.Time) error
	// Lock locks the location until lock is closed, and returns ErrBusy if it is already locked. If exclusive is false,
	// the location cannot be locked, and other processes may use it concurrently.
	Lock(ctx context.Context) (lock io.Closer, exclusive bool, err error)
	// Available returns the number of bytes that can still be written; math.MaxUint64 if unlimited.
	Available(ctx context.Context) (uint64, error)
	// Path returns the path of an object or a folder, for messages and for command arguments.
	Path(name string) string
}

// PutOptions configures Put.
type PutOptions struct {
	// AboutBytes is the approximate size, if known. It determines the size of the parts into which a large object is
	// split.
	AboutBytes uint64
}

// Object is an object open for reading.
type Object interface {
	io.ReaderAt
	io.Closer
	SizeBytes() (int64, error)
}

// Entry is an object or a folder in a listing.
type Entry struct {
	Name   string // in the folder
	Folder bool
	Bytes  int64
	// Changed is an object's modification time according to the clock of the location, or zero if unknown.
	Changed time.Time
}

func inFolder(folder, name string) string { return path.Join(folder, name) }

func readObject(ctx context.Context, place Objects, name string, limit int64) (_ []byte, err error) {
	f, err := place.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read-only: nothing can be lost
	size, err := f.SizeBytes()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", place.Path(name), err)
	}
	if size > limit {
		return nil, fmt.Errorf("%s has %d bytes, expected at most %d",
			place.Path(name), size, limit)
	}
	b := make([]byte, size)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read %s: %w", place.Path(name), err)
	}
	return b[:n], nil
}

func putObject(ctx context.Context, place Objects, name string, content []byte) error {
	return place.Put(ctx, name, PutOptions{AboutBytes: uint64(len(content))}, func(w io.Writer) error {
		_, err := w.Write(content)
		return err //nolint:wrapcheck // Put names the object
	})
}

// removeFolder removes a folder. It removes the objects named in first before all others.
func removeFolder(ctx context.Context, place Objects, folder string, first ...string) error {
	if err := place.Sweep(ctx, folder, time.Time{}); err != nil {
		return fmt.Errorf("remove %s: %w", place.Path(folder), err)
	}
	for _, name := range first {
		if err := place.Delete(ctx, inFolder(folder, name)); err != nil {
			return fmt.Errorf("remove %s: %w", place.Path(folder), err)
		}
	}
	entries, err := place.List(ctx, folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", place.Path(folder), err)
	}
	for _, e := range entries {
		if err := place.Delete(ctx, inFolder(folder, e.Name)); err != nil {
			return fmt.Errorf("remove %s: %w", place.Path(folder), err)
		}
	}
	return nil
}
