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

// DirPrefix is the name prefix of the data directories, and DirLock is the name of the lock file in them. A directory
// can contain gigabytes. After a killed measurement, the next one in the same parent directory removes it.
const (
	DirPrefix = "lockstep-bench-"
	DirLock   = "in-use" // held by the measuring process; the kernel releases it when the process dies
)

// NewDir creates a data directory in the given directory, or in the temporary directory if given is empty. remove
// removes the data directory; until it is called, SIGPIPE does not terminate the process. NewDir also removes data
// directories that killed measurements left in the same parent directory.
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
		_ = os.RemoveAll(dir) // before unlocking, so that no other measurement removes the directory as well
		_ = lock.Close()
		signal.Stop(pipes)
	}, nil
}

// removeLeftovers removes data directories in base that are not locked. It keeps directories without a lock file:
// other programs, or releases without locking, may have created them.
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
