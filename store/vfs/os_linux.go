// SPDX-License-Identifier: Apache-2.0

package vfs

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Sync uses fdatasync, which omits the inode of a file if the size did not change.
func (f *osFile) Sync() error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	fd, err := f.descriptor("fdatasync")
	if err != nil {
		return err
	}
	// A failed fdatasync is not retried (INV-7), except after EINTR, which means that nothing was done.
	if err := retryEINTR(func() error { return unix.Fdatasync(fd) }); err != nil {
		return f.pathError("fdatasync", err)
	}
	return nil
}

// SyncRange uses sync_file_range, which writes allocated blocks but no filesystem metadata.
func (f *osFile) SyncRange(offset, length int64) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	fd, err := f.descriptor("sync_file_range")
	if err != nil {
		return err
	}
	const all = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	if err := retryEINTR(func() error { return unix.SyncFileRange(fd, offset, length, all) }); err != nil {
		return f.pathError("sync_file_range", err)
	}
	return nil
}

func (f *osFile) WriteVec(offset int64, bufs ...[]byte) (int, error) {
	total := 0
	for _, b := range bufs {
		total += len(b)
	}
	done, err := f.pwritev(offset, bufs)
	if err != nil || done == total {
		return done, err
	}
	// A short write is rare (file size limit, full disk): os.File writes the rest, or returns the error.
	return f.writeEach(offset, bufs, done)
}

func (f *osFile) pwritev(offset int64, bufs [][]byte) (int, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	fd, err := f.descriptor("pwritev")
	if err != nil {
		return 0, err
	}
	for {
		n, err := unix.Pwritev(fd, bufs, offset)
		switch {
		case err == nil:
			return n, nil
		case errors.Is(err, unix.EINTR):
		default:
			return max(n, 0), f.pathError("pwritev", err)
		}
	}
}

func (f *osFile) Allocate(offset, length int64) error {
	err := f.fallocate(offset, length)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return f.extend(offset + length)
	}
	return err
}

// WriteBehind uses sync_file_range without waiting.
func (f *osFile) WriteBehind(offset, length int64) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if fd, err := f.descriptor("sync_file_range"); err == nil {
		_ = unix.SyncFileRange(fd, offset, length, unix.SYNC_FILE_RANGE_WRITE) // a hint
	}
}

func (f *osFile) DropCache(offset, length int64) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if fd, err := f.descriptor("fadvise"); err == nil {
		_ = unix.Fadvise(fd, offset, length, unix.FADV_DONTNEED) // a hint
	}
}

// CachedBytes requires Linux 6.5.
func (f *osFile) CachedBytes(offset, length int64) (int64, bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	fd, err := f.descriptor("cachestat")
	if err != nil || offset < 0 || length < 0 {
		return 0, false
	}
	var st unix.Cachestat_t
	r := unix.CachestatRange{Off: uint64(offset), Len: uint64(length)}
	if err := unix.Cachestat(uint(fd), &r, &st, 0); err != nil {
		return 0, false
	}
	return min(int64(st.Cache)*int64(os.Getpagesize()), length), true
}

// ReadExactly uses a separate descriptor with POSIX_FADV_RANDOM.
func (f *osFile) ReadExactly(p []byte, offset int64) (int, error) {
	file := f.reopen(&f.exact, os.O_RDONLY)
	if file == nil {
		return f.f.ReadAt(p, offset)
	}
	return file.ReadAt(p, offset)
}

// ReadUncached uses a separate descriptor with O_DIRECT.
func (f *osFile) ReadUncached(p []byte, offset int64) (int, error) {
	return f.uncached(&f.direct, os.O_RDONLY, func(file *os.File) (int, error) { return file.ReadAt(p, offset) })
}

// WriteUncached uses a separate descriptor with O_DIRECT.
func (f *osFile) WriteUncached(p []byte, offset int64) (int, error) {
	return f.uncached(&f.directWrite, os.O_WRONLY, func(file *os.File) (int, error) { return file.WriteAt(p, offset) })
}

// TakesDirect reports whether the filesystem of an existing file supports O_DIRECT. If the file cannot be opened for
// another reason, it returns true.
func (osFS) TakesDirect(name string) bool {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return !errors.Is(err, unix.EINVAL)
	}
	return f.Close() == nil
}

// uncached calls do with the reopened file, or with the original file if the file cannot be reopened or the filesystem
// does not support O_DIRECT.
func (f *osFile) uncached(r *reopened, flag int, do func(*os.File) (int, error)) (int, error) {
	if file := f.reopen(r, flag|unix.O_DIRECT); file != nil {
		n, err := do(file)
		if !errors.Is(err, unix.EINVAL) {
			return n, err
		}
	}
	return do(f.f)
}

// reopen opens the file again on the first call, and returns the result; nil if that failed.
func (f *osFile) reopen(r *reopened, flag int) *os.File {
	f.mu.RLock()
	defer f.mu.RUnlock()
	r.once.Do(func() {
		fd, err := f.descriptor("open")
		if err != nil {
			return
		}
		// The file may have been renamed or removed.
		r.file, _ = os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), flag, 0)
		if r.file != nil && flag == os.O_RDONLY {
			_ = unix.Fadvise(int(r.file.Fd()), 0, 0, unix.FADV_RANDOM)
		}
	})
	return r.file
}

func (f *osFile) fallocate(offset, length int64) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	fd, err := f.descriptor("fallocate")
	if err != nil {
		return err
	}
	if err := retryEINTR(func() error { return unix.Fallocate(fd, 0, offset, length) }); err != nil {
		return f.pathError("fallocate", err)
	}
	return nil
}
