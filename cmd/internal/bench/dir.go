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

// Name prefix of the data directories, and the file in them that is locked while in use. The directories contain
// gigabytes: they are removed however a measurement ends.
const (
	DirPrefix = "lockstep-bench-"
	DirLock   = "in-use" // held by the measuring process; the kernel releases it when the process dies
)

// NewDir creates a data directory in the given directory, or in the temporary directory if the name is empty. It
// returns a function that removes it. It also removes data directories of killed measurements in the same place.
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
		_ = os.RemoveAll(dir) // with the lock held, so that no other measurement removes it at the same time
		_ = lock.Close()
		signal.Stop(pipes)
	}, nil
}

// removeLeftovers removes data directories in base that are not locked. It does not remove directories without a
// lock file, which other programs or releases without locking have created.
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
