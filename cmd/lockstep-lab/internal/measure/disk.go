// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

const ioBytes = 1 << 20

// Warm writes a file of the given size in dir, and deletes it. In a virtual machine, the first access to memory and
// disk blocks that were unused for a while is slow, which would dominate the results.
func Warm(ctx context.Context, dir string, bytes int64) (err error) {
	if u, err := vfs.OS().Usage(dir); err == nil && uint64(bytes) > u.AvailableBytes/10*9 {
		return fmt.Errorf("warm: %d MB required, %d free in %s", bytes/1e6, u.AvailableBytes/1e6, dir)
	}
	f, err := os.CreateTemp(dir, "warm-")
	if err != nil {
		return fmt.Errorf("warm: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	piece := bench.Body(ioBytes)
	for done := int64(0); done < bytes; done += int64(len(piece)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := f.Write(piece); err != nil {
			return fmt.Errorf("warm: %w", err)
		}
	}
	return nil
}

func dropFromCache(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("evict from the page cache: %w", err)
	}
	defer func() { _ = f.Close() }() // the file was synced
	if err := f.Sync(); err != nil {
		return fmt.Errorf("evict from the page cache: %w", err)
	}
	return adviseDontNeed(f)
}

// dropDirFromCache evicts all files of a directory.
func dropDirFromCache(dir string) error {
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		return dropFromCache(name)
	})
	if err != nil {
		return fmt.Errorf("evict %s from the page cache: %w", dir, err)
	}
	return nil
}

// coldRead returns the rate of a plain read of a file that is not in the page cache, in MB/s. Then, the file is in the
// page cache.
func coldRead(ctx context.Context, name string) (float64, error) {
	if err := dropFromCache(name); err != nil {
		return 0, err
	}
	f, err := os.Open(name)
	if err != nil {
		return 0, fmt.Errorf("plain read: %w", err)
	}
	defer func() { _ = f.Close() }() // the file was only read
	buf, total, start := make([]byte, ioBytes), int64(0), time.Now()
	for ctx.Err() == nil {
		n, err := f.Read(buf)
		total += int64(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, fmt.Errorf("plain read: %w", err)
		}
	}
	return float64(total) / 1e6 / time.Since(start).Seconds(), ctx.Err()
}
