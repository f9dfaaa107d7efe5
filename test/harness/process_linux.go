// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// processAttributes makes the kernel kill a node when this process exits for any reason, and protects nodes from Ctrl-C
// in the terminal. The kernel tracks the thread that started the node. Go ends a thread only with a goroutine locked to
// it, and the starting goroutine is not locked.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// waitStopped waits until every thread of the child has stopped, or the child has exited, because the signal is
// asynchronous.
func waitStopped(pid int) error {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for process %d to stop: %w", pid, err)
		default:
			return nil
		}
	}
}
