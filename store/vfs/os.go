// SPDX-License-Identifier: Apache-2.0

//go:build unix

package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// OS returns the operating system's filesystem.
func OS() FS { return osFS{} }

type osFS struct{}

func (osFS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	f, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &osFile{f: f}, nil
}

func (osFS) Remove(name string) error { return os.Remove(name) }

func (osFS) Rename(oldName, newName string) error { return os.Rename(oldName, newName) }

func (osFS) MkdirAll(dir string, perm fs.FileMode) error { return os.MkdirAll(dir, perm) }

func (osFS) ReadDir(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

func (osFS) Stat(name string) (FileInfo, error) {
	info, err := os.Stat(name)
	if err != nil {
		return FileInfo{}, err
	}
	return FileInfo{SizeBytes: info.Size(), IsDir: info.IsDir()}, nil
}

func (osFS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = retryEINTR(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if err == nil {
		return f, nil
	}
	_ = f.Close() // nothing was written
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrLocked
	}
	return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
}

func (osFS) Usage(dir string) (Usage, error) {
	var st unix.Statfs_t
	if err := retryEINTR(func() error { return unix.Statfs(dir, &st) }); err != nil {
		return Usage{}, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	block := uint64(st.Bsize) // a block size is positive; its type differs between systems
	return Usage{
		TotalBytes: st.Blocks * block, FreeBytes: st.Bfree * block, AvailableBytes: st.Bavail * block,
		NoInodes: st.Files > 0 && st.Ffree == 0, // some filesystems have no limit, and report 0 of 0
	}, nil
}

// osFile is an open file of the operating system. mu prevents Close from freeing the descriptor during an operation
// that uses the descriptor directly.
type osFile struct {
	f  *os.File
	mu sync.RWMutex // held for reading while the descriptor is used directly

	exact, direct, directWrite reopened // for ReadExactly, ReadUncached and WriteUncached
}

type reopened struct {
	once sync.Once
	file *os.File // nil if the file was not reopened
}

// close closes the reopened file. The caller must ensure that no read or write that could reopen the file is in
// progress.
func (r *reopened) close() error {
	r.once.Do(func() {})
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

func (f *osFile) Name() string { return f.f.Name() }

func (f *osFile) ReadAt(p []byte, off int64) (int, error) { return f.f.ReadAt(p, off) }

func (f *osFile) WriteAt(p []byte, off int64) (int, error) { return f.f.WriteAt(p, off) }

func (f *osFile) Truncate(sizeBytes int64) error { return f.f.Truncate(sizeBytes) }

func (f *osFile) SizeBytes() (int64, error) {
	info, err := f.f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (f *osFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(f.f.Close(), f.exact.close(), f.direct.close(), f.directWrite.close())
}

// descriptor returns the file descriptor. The caller must hold mu for reading while it uses the descriptor.
func (f *osFile) descriptor(op string) (int, error) {
	fd := f.f.Fd()
	if fd == ^uintptr(0) {
		return 0, f.pathError(op, fs.ErrClosed)
	}
	return int(fd), nil
}

func (f *osFile) pathError(op string, err error) error {
	return &fs.PathError{Op: op, Path: f.f.Name(), Err: err}
}

func (f *osFile) extend(sizeBytes int64) error {
	size, err := f.SizeBytes()
	if err != nil || size >= sizeBytes {
		return err
	}
	return f.f.Truncate(sizeBytes)
}

func (f *osFile) writeEach(offset int64, bufs [][]byte, skip int) (int, error) {
	done := skip
	for _, b := range bufs {
		if skip >= len(b) {
			skip -= len(b)
			continue
		}
		n, err := f.f.WriteAt(b[skip:], offset+int64(done))
		done += n
		if err != nil {
			return done, err
		}
		skip = 0
	}
	return done, nil
}

// retryEINTR retries a system call while it is interrupted by a signal.
func retryEINTR(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
