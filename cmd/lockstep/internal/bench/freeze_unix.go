// SPDX-License-Identifier: Apache-2.0

//go:build unix

package bench

import (
	"fmt"
	"syscall"
)

// freeze stops a process without ending it; its connections stay open.
func freeze(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("freeze process %d: %w", pid, err)
	}
	return nil
}

func thaw(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		return fmt.Errorf("thaw process %d: %w", pid, err)
	}
	return nil
}
