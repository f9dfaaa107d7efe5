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

// inGroup runs a command in its own process group, which receives SIGTERM when the context ends.
func inGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
}

const lockPoll = 200 * time.Millisecond

// Lock locks the file with the given name, which all benchmarks on this machine share. An empty name disables locking.
// If another benchmark holds the lock, Lock calls waits once, and waits for the lock until ctx ends. unlock releases
// the lock.
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
		if err := elapse(ctx, lockPoll); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
}
