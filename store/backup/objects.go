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

// Objects is a place for save-sets, or for a log archive: named objects that are written once and never changed. There
// are two: a directory (Directory), and a bucket of an S3 server, in server/objects/s3.
//
// A name is relative, with slashes: what is before the last one is its folder. All methods are safe for concurrent use,
// and return fs.ErrNotExist, fs.ErrExist, ErrNoSpace and the context's errors where these apply.
type Objects interface {
	// Put makes an object of what fill writes. It has its name only when it is whole and durable: when Put returns nil.
	// An object of that name that is there already stays as it is: fs.ErrExist. When fill fails, there is no object.
	Put(ctx context.Context, name string, o PutOptions, fill func(w io.Writer) error) error
	// Open opens an object for reading at any offset; the context bounds the reads. The caller must close it.
	Open(ctx context.Context, name string) (Object, error)
	// List returns what is in a folder ("" for the whole place), by name, folders included, but not what is in these.
	// A folder is there as long as something is in it; of one that is not there, fs.ErrNotExist is returned.
	List(ctx context.Context, folder string) ([]Entry, error)
	// Delete removes an object, durably. One that is not there is no error.
	Delete(ctx context.Context, name string) error
	// Move gives an object another name. A crash leaves it under either name, or under both.
	Move(ctx context.Context, from, to string) error
	// Sweep removes what Puts into a folder, or into one in it, have left that were begun before a time and never
	// ended; the zero time stands for all.
	Sweep(ctx context.Context, folder string, before time.Time) error
	// Lock takes the place for one process, where that is possible: ErrBusy if another one has it. Where it is not, the
	// result is not exclusive, and others may be at work at the same time.
	Lock(ctx context.Context) (lock io.Closer, exclusive bool, err error)
	// Available is how many bytes can still be put here; math.MaxUint64 where nothing bounds them.
	Available(ctx context.Context) (uint64, error)
	// Path of an object or a folder, for people and for the commands that take one.
	Path(name string) string
}

// PutOptions say how an object is written.
type PutOptions struct {
	// AboutBytes is how large it will be, about, so that a large one can be cut into few enough parts. 0: not known.
	AboutBytes uint64
	// Paced tells that others use the same disk: it is written in small pieces.
	Paced bool
}

// Object is open for reading.
type Object interface {
	io.ReaderAt
	io.Closer
	// SizeBytes is how large it is.
	SizeBytes() (int64, error)
}

// Entry is an object or a folder in a listing.
type Entry struct {
	// Name in its folder.
	Name string
	// Folder tells a folder from an object.
	Folder bool
	// Bytes and Changed of an object. Changed is by the clock of the place, and zero where that does not say it.
	Bytes   int64
	Changed time.Time
}

// in is the name of an object in a folder.
func inFolder(folder, name string) string { return path.Join(folder, name) }

// readObject reads a small object whole.
func readObject(ctx context.Context, place Objects, name string, limit int64) (_ []byte, err error) {
	f, err := place.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing can be lost
	size, err := f.SizeBytes()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", place.Path(name), err)
	}
	if size > limit {
		return nil, fmt.Errorf("%s has %d bytes, at most %d were expected: it is not what it should be",
			place.Path(name), size, limit)
	}
	b := make([]byte, size)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read %s: %w", place.Path(name), err)
	}
	return b[:n], nil
}

// putObject writes a small object.
func putObject(ctx context.Context, place Objects, name string, content []byte) error {
	return place.Put(ctx, name, PutOptions{AboutBytes: uint64(len(content))}, func(w io.Writer) error {
		_, err := w.Write(content)
		return err //nolint:wrapcheck // Put says what it was writing
	})
}

// removeFolder removes a folder and everything in it, those first that are named.
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
