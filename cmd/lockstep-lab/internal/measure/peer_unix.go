// SPDX-License-Identifier: Apache-2.0

//go:build unix

package measure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// inGroup gives the command a process group of its own, all of which is told to end when the context does.
func inGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
}

// lockPoll is how often a lock that is held is tried again.
const lockPoll = 200 * time.Millisecond

// Lock takes the lock that benchmarks on this machine share, so that they do not run at the same time; it waits until
// ctx ends. An empty name is no lock. waits is called once if it has to wait.
func Lock(ctx context.Context, name string, waits func()) (unlock func() error, err error) {
	if name == "" {
		return func() error { return nil }, nil
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644) //nolint:gosec // all users of the machine share it
	if err != nil {
		return nil, fmt.Errorf("lock of all benchmarks: %w", err)
	}
	for first := true; ; first = false {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f.Close, nil // closing unlocks
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", name, err), f.Close())
		}
		if first {
			waits()
		}
		if err := pause(ctx, lockPoll); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
}
