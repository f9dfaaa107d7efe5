// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/lockstep-mq/lockstep/store/iolock"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// spares manages files that can become segments. Files prepared in the background have the full size.
type spares struct {
	fs        vfs.FS
	dir       string
	sizeBytes int64
	// zeros is set if the files are filled with zeros and not only allocated.
	zeros bool

	makeMu iolock.Mutex
	// mu guards the fields below; only close accesses files under it.
	mu    sync.Mutex
	ready []spareFile
	next  uint64
}

type spareFile struct {
	path      string
	file      vfs.File
	sizeBytes int64
	written   bool
}

const (
	readySpares = 2
	// firstSegmentBytes is the maximum size of a segment that is created while a commit waits for it.
	firstSegmentBytes = 4 << 20
	// zeroChunk and zeroSyncEvery limit the load on the disk.
	zeroChunk     = 1 << 20
	zeroSyncEvery = 4 << 20
)

var errStopped = errors.New("stopped")

// take returns a file for a segment. If none is ready, it creates a small one.
func (s *spares) take() (f spareFile, ready bool, err error) {
	s.mu.Lock()
	if n := len(s.ready); n > 0 {
		f = s.ready[n-1]
		s.ready = s.ready[:n-1]
		s.mu.Unlock()
		return f, true, nil
	}
	s.mu.Unlock()
	f, err = s.make(min(s.sizeBytes, firstSegmentBytes), nil)
	return f, false, err
}

// prepare creates a spare file if none is ready. It can return errStopped if stop is closed.
func (s *spares) prepare(stop <-chan struct{}) error {
	s.makeMu.Lock()
	defer s.makeMu.Unlock()
	s.mu.Lock()
	enough := len(s.ready) > 0
	s.mu.Unlock()
	if enough {
		return nil
	}
	f, err := s.make(s.sizeBytes, stop)
	if err != nil {
		return err
	}
	s.offer(f)
	return nil
}

func (s *spares) wants(sizeBytes int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sizeBytes == s.sizeBytes && len(s.ready) < readySpares
}

func (s *spares) offer(f spareFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = append(s.ready, f)
}

// drop removes all spares: their old content could match new LSNs of the log.
func (s *spares) drop() error {
	s.mu.Lock()
	files := s.ready
	s.ready = nil
	s.mu.Unlock()
	var errs []error
	for _, f := range files {
		errs = append(errs, f.file.Close(), s.fs.Remove(f.path))
	}
	return errors.Join(errs...)
}

// close closes the spare files. The next Open removes them.
func (s *spares) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, f := range s.ready {
		errs = append(errs, f.file.Close())
	}
	s.ready = nil
	return errors.Join(errs...)
}

func (s *spares) newPath() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	return filepath.Join(s.dir, fmt.Sprintf("%020d", s.next))
}

// clear removes the spare files of an earlier process. They can contain LSNs that the log will use again.
func (s *spares) clear(names []string) error {
	for _, name := range names {
		_, isSpare := parseName(name, spareSuffix)
		_, isUnfinished := parseName(name, unfinishedSuffix)
		if !isSpare && !isUnfinished {
			continue
		}
		if err := s.fs.Remove(filepath.Join(s.dir, name)); err != nil && !isMissing(err) {
			return fmt.Errorf("removing an old spare log segment: %w", err)
		}
	}
	return nil
}

// make creates a spare file. After an error it removes the file.
func (s *spares) make(sizeBytes int64, stop <-chan struct{}) (spareFile, error) {
	base := s.newPath()
	unfinished := base + unfinishedSuffix
	f, err := s.fs.OpenFile(unfinished, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return spareFile{}, s.spaceError(err)
	}
	if s.zeros {
		err = fillZeros(f, sizeBytes, stop)
	} else {
		err = errors.Join(f.Allocate(0, sizeBytes), f.Sync())
	}
	if err == nil {
		err = s.fs.Rename(unfinished, base+spareSuffix)
	}
	if err != nil {
		_ = f.Close()
		_ = s.fs.Remove(unfinished) // if this fails too, the next Open removes it
		return spareFile{}, s.spaceError(err)
	}
	return spareFile{path: base + spareSuffix, file: f, sizeBytes: sizeBytes, written: s.zeros}, nil
}

// spaceError converts the error of a full disk to ErrNoSpace.
func (s *spares) spaceError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		if usage, usageErr := s.fs.Usage(s.dir); usageErr == nil && usage.NoInodes {
			return fmt.Errorf("%w: filesystem has no free inode (df -i): delete files, or create it with more: %w",
				ErrNoSpace, err)
		}
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	if errors.Is(err, errStopped) {
		return err
	}
	return fmt.Errorf("preparing a log segment: %w", err)
}

func fillZeros(f vfs.File, sizeBytes int64, stop <-chan struct{}) error {
	// Allocating first keeps the number of extents small; writing avoids a later conversion of unwritten extents.
	if err := f.Allocate(0, sizeBytes); err != nil {
		return err
	}
	zeros := make([]byte, min(zeroChunk, sizeBytes))
	for at := int64(0); at < sizeBytes; {
		select {
		case <-stop:
			return errStopped
		default:
		}
		n, err := f.WriteAt(zeros[:min(int64(len(zeros)), sizeBytes-at)], at)
		if err != nil {
			return err
		}
		at += int64(n)
		if at%zeroSyncEvery == 0 || at >= sizeBytes {
			if err := f.Sync(); err != nil {
				return err
			}
		}
	}
	return nil
}

func zeroRange(f vfs.File, from, to int64) error {
	zeros := make([]byte, min(zeroChunk, max(to-from, 0)))
	for from < to {
		n, err := f.WriteAt(zeros[:min(int64(len(zeros)), to-from)], from)
		if err != nil {
			return err
		}
		from += int64(n)
	}
	return nil
}
