// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

// This file gives measurements a directory, and takes it away however they end: gigabytes are in it.

// What a directory of a measurement is called, and the file in it that is locked while it is used.
const (
	DirPrefix = "lockstep-bench-"
	DirLock   = "in-use" // held by the process that measures; the system lets go of it when that dies
)

// NewDir makes the directory for the data, and what removes it. Directories of measurements that were killed are
// removed as well.
func NewDir(given string) (dir string, remove func(), err error) {
	base := given
	if base == "" {
		base = os.TempDir()
	} else if err := os.MkdirAll(base, 0o750); err != nil {
		return "", nil, fmt.Errorf("--dir: %w", err)
	}
	removeLeftovers(base)
	if dir, err = os.MkdirTemp(base, DirPrefix); err != nil {
		return "", nil, fmt.Errorf("bench: %w", err)
	}
	lock, err := vfs.OS().Lock(filepath.Join(dir, DirLock))
	if err != nil {
		_ = os.RemoveAll(dir)
		return "", nil, fmt.Errorf("bench: %w", err)
	}
	// A reader that goes away (`lockstep bench … | head`) would end the process on the spot. So it only makes printing
	// fail.
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	return dir, func() {
		_ = os.RemoveAll(dir) // with the lock: another measurement could find a directory without its lock
		_ = lock.Close()
		signal.Stop(pipes)
	}, nil
}

// removeLeftovers removes what measurements left in base that could not clean up. What is in use, not ours, or of a
// release that did not lock its directories, stays.
func removeLeftovers(base string) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, e := range entries {
		dir := filepath.Join(base, e.Name())
		name := filepath.Join(dir, DirLock)
		if !e.IsDir() || !strings.HasPrefix(e.Name(), DirPrefix) {
			continue
		}
		if _, err := os.Stat(name); err != nil {
			continue
		}
		if lock, err := vfs.OS().Lock(name); err == nil {
			_ = os.RemoveAll(dir)
			_ = lock.Close()
		}
	}
}
