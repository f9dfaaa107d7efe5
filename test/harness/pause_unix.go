// SPDX-License-Identifier: Apache-2.0

//go:build unix

package harness

import "syscall"

// Pause stops the process with SIGSTOP and waits until it has stopped. Its connections stay open.
func (p *process) Pause() error {
	if _, err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return waitStopped(p.PID())
}

// Wake resumes a paused process (SIGCONT), which is unaware of the elapsed time.
func (p *process) Wake() error {
	_, err := p.signal(syscall.SIGCONT)
	return err
}
