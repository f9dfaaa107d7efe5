// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithUs has the kernel kill a node when the test process dies, however it dies. The thread that starts the node
// must live as long as the test: Go ends a thread only with a goroutine that locked it, and none here does.
func dieWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// waitStopped waits until every thread of our child has stopped: the signal alone only asks for it.
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
