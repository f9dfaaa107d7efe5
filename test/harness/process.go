// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopBound is how long a process gets to end after SIGTERM, and after SIGQUIT, before it is killed.
const stopBound = 20 * time.Second

// ErrNotRunning is returned when a process is to be ended or paused that was not started, or was ended before.
var ErrNotRunning = errors.New("it does not run")

// process is a program that can be started and ended again and again.
type process struct {
	name        string // for errors
	log         string // file that gets all that it prints
	command     []string
	environment func() ([]string, error) // more variables at each start; nil for none

	mu     sync.Mutex    // guards all below
	cmd    *exec.Cmd     // nil before the first start, and once Kill or Stop has ended it
	exited chan struct{} // of the last start; closed when the process is reaped
	err    error         // how it ended
}

// Start starts the process. It does not wait for the node to serve.
func (p *process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil && !p.isGone() {
		return fmt.Errorf("%s runs already", p.name)
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	defer func() { _ = log.Close() }()                  // the process has a descriptor of its own
	cmd := exec.Command(p.command[0], p.command[1:]...) //nolint:noctx // a node; it ends by Kill or Stop, not with a context
	cmd.Env = Environment()
	if p.environment != nil {
		more, err := p.environment()
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		cmd.Env = append(cmd.Env, more...)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = processAttributes()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	exited := make(chan struct{})
	p.cmd, p.exited = cmd, exited
	go func() { // ends with the process, which Close ends
		err := cmd.Wait()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(exited)
	}()
	return nil
}

// Environment is that of this process without what configures Lockstep: that is not meant for other nodes.
func Environment() []string {
	return slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "LOCKSTEP_") })
}

// isGone tells whether the process that was started last has ended. mu is held.
func (p *process) isGone() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// signal sends s and returns the channel that is closed when the process is gone.
func (p *process) signal(s syscall.Signal) (<-chan struct{}, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return nil, fmt.Errorf("%s: %w", p.name, ErrNotRunning)
	}
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return nil, fmt.Errorf("%s: %v: %w", p.name, s, err)
	}
	return p.exited, nil
}

// ended notes that the process was ended, and returns how.
func (p *process) ended() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd = nil
	return p.err
}

// Kill ends the process with SIGKILL and waits until it is gone, with all of its sockets.
func (p *process) Kill() error {
	exited, err := p.signal(syscall.SIGKILL)
	if err != nil {
		return err
	}
	<-exited
	_ = p.ended() // "signal: killed" is what was asked for
	return nil
}

// Stop asks the process to end (SIGTERM) and returns how it ended. After a generous time it is ended with SIGQUIT,
// which is an error; what it was doing, goroutine by goroutine, is in LogFile then.
func (p *process) Stop() error {
	exited, err := p.signal(syscall.SIGTERM)
	if errors.Is(err, ErrNotRunning) {
		return err
	} else if err != nil {
		return errors.Join(err, p.Kill())
	}
	timer := time.NewTimer(stopBound)
	defer timer.Stop()
	select {
	case <-exited:
		if err := p.ended(); err != nil && !terminated(err) {
			return fmt.Errorf("%s stopped with %w\n--- end of %s:\n%s", p.name, err, p.log, p.LogTail())
		}
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("%s did not end within %v of SIGTERM", p.name, stopBound), p.Dump())
	}
}

// terminated tells whether a process ended by the SIGTERM itself: it had not come so far as to handle it.
func terminated(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGTERM
}

// Dump ends the process with SIGQUIT: what it was doing, goroutine by goroutine, is in LogFile then.
func (p *process) Dump() error {
	exited, err := p.signal(syscall.SIGQUIT)
	if err != nil {
		return errors.Join(err, p.Kill())
	}
	_ = p.Wake() // a paused process is to tell, too
	timer := time.NewTimer(stopBound)
	defer timer.Stop()
	select {
	case <-exited:
	case <-timer.C:
	}
	return p.Kill()
}

// PID of the process; 0 while it does not run.
func (p *process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.isGone() {
		return 0
	}
	return p.cmd.Process.Pid
}

// Exited is closed when the process that was started last is gone; nil while none was started.
func (p *process) Exited() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exited
}

// Running tells whether the process was started and not ended by Kill or Stop; it may have ended by itself.
func (p *process) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd != nil
}

// Ended tells whether the process that was started has ended by itself.
func (p *process) Ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd != nil && p.isGone()
}

// Failure tells why the process has ended by itself, or nil.
func (p *process) Failure() error {
	if !p.Ended() {
		return nil
	}
	p.mu.Lock()
	err := p.err
	p.mu.Unlock()
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("%s ended by itself: %w\n--- end of %s:\n%s", p.name, err, p.log, p.LogTail())
}

// LogFile is where all goes that the process prints.
func (p *process) LogFile() string { return p.log }

// LogTail returns the end of the log.
func (p *process) LogTail() string {
	const tail = 2000
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	if len(b) > tail {
		b = b[len(b)-tail:]
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			b = b[i+1:]
		}
	}
	return string(b)
}

// end ends the process if it runs: with SIGTERM, or at once.
func (p *process) end(atOnce bool) error {
	switch {
	case !p.Running():
		return nil
	case atOnce || p.Ended():
		return p.Kill()
	default:
		return p.Stop()
	}
}
