// SPDX-License-Identifier: Apache-2.0

//go:build unix

package harness

import "syscall"

// Pause suspends the process with SIGSTOP, and waits until it is stopped. Its connections stay open.
func (p *process) Pause() error {
	if _, err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return waitStopped(p.PID())
}

// Wake resumes a paused process with SIGCONT.
func (p *process) Wake() error {
	_, err := p.signal(syscall.SIGCONT)
	return err
}
