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

// The directories contain gigabytes, so they are removed no matter how a measurement ends.

// Name prefix of the directories, and the file in them that is locked while in use.
const (
	DirPrefix = "lockstep-bench-"
	DirLock   = "in-use" // held by the measuring process; the kernel releases it when the process dies
)

// NewDir creates the directory for the data, and returns a function that removes it. It also removes directories of
// killed measurements.
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
	// If the reader of the output exits (`lockstep bench … | head`), SIGPIPE would kill the process. Handling the
	// signal makes only printing fail.
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	return dir, func() {
		_ = os.RemoveAll(dir) // with the lock held: another measurement could find a directory without its lock
		_ = lock.Close()
		signal.Stop(pipes)
	}, nil
}

// removeLeftovers removes directories in base of measurements that did not clean up. It keeps directories that are in
// use, belong to other programs, or were created by a release without locking.
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
