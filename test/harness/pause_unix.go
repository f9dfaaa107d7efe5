// SPDX-License-Identifier: Apache-2.0

//go:build unix

package harness

import "syscall"

// Pause stops the process with SIGSTOP and waits until it has stopped: its connections stay open and it does nothing.
func (p *process) Pause() error {
	if _, err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return waitStopped(p.PID())
}

// Wake lets a paused process go on (SIGCONT), in the belief that no time has passed.
func (p *process) Wake() error {
	_, err := p.signal(syscall.SIGCONT)
	return err
}
