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

// stopBound is how long a process may take to exit after SIGTERM, and after a following SIGQUIT, before it is killed.
const stopBound = 20 * time.Second

// ErrNotRunning is returned if a signal is sent to a process that was not started, or was killed or stopped.
var ErrNotRunning = errors.New("process is not running")

type process struct {
	name        string // for errors
	log         string // file for its output
	command     []string
	environment func() ([]string, error) // additional variables at each start; may be nil

	mu     sync.Mutex    // guards all fields below
	cmd    *exec.Cmd     // nil before the first start, and after Kill or Stop
	exited chan struct{} // closed when the last started process is reaped
	err    error         // exit error
}

// Start starts the process. It does not wait until the node serves.
func (p *process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil && !p.hasExited() {
		return fmt.Errorf("%s is already running", p.name)
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	defer func() { _ = log.Close() }()                  // the process has its own descriptor
	cmd := exec.Command(p.command[0], p.command[1:]...) //nolint:noctx // a node ends by Kill or Stop, not with a context
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
	go func() { // ends when the process exits; Pair.Close stops the process
		err := cmd.Wait()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(exited)
	}()
	return nil
}

// Environment returns the environment of this process without LOCKSTEP_ variables, which do not apply to the nodes.
func Environment() []string {
	return slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "LOCKSTEP_") })
}

// hasExited reports whether the last started process has exited. The caller holds mu.
func (p *process) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// signal sends s to the process, and returns a channel that is closed when the process has exited.
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

func (p *process) ended() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd = nil
	return p.err
}

// Kill kills the process with SIGKILL, and waits until it has exited. Its sockets are then closed.
func (p *process) Kill() error {
	exited, err := p.signal(syscall.SIGKILL)
	if err != nil {
		return err
	}
	<-exited
	_ = p.ended() // ignore the expected error "signal: killed"
	return nil
}

// Stop sends SIGTERM, waits until the process has exited, and returns its exit error, unless SIGTERM terminated the
// process. If the process does not exit within 20 s, Stop sends SIGQUIT, and returns an error; LogFile then contains
// the goroutine dump.
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
		return errors.Join(fmt.Errorf("%s did not exit within %v after SIGTERM", p.name, stopBound), p.Dump())
	}
}

// terminated reports whether SIGTERM terminated the process, because it had not installed a handler yet.
func terminated(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGTERM
}

// Dump terminates the process with SIGQUIT. LogFile then contains the goroutine dump.
func (p *process) Dump() error {
	exited, err := p.signal(syscall.SIGQUIT)
	if err != nil {
		return errors.Join(err, p.Kill())
	}
	_ = p.Wake() // a paused process does not handle the signal
	timer := time.NewTimer(stopBound)
	defer timer.Stop()
	select {
	case <-exited:
	case <-timer.C:
	}
	return p.Kill()
}

// PID returns the process ID, or 0 while the process is not running.
func (p *process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.hasExited() {
		return 0
	}
	return p.cmd.Process.Pid
}

// Exited returns a channel that is closed when the last started process has exited, or nil before the first start.
func (p *process) Exited() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exited
}

// Running reports whether the process was started, and not stopped by Kill or Stop. It may have exited unexpectedly.
func (p *process) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd != nil
}

// Ended reports whether the process has exited unexpectedly: it was neither killed nor stopped.
func (p *process) Ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd != nil && p.hasExited()
}

// Failure returns the reason why the process has exited unexpectedly, with the end of its log; nil if it has not.
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
	return fmt.Errorf("%s exited unexpectedly: %w\n--- end of %s:\n%s", p.name, err, p.log, p.LogTail())
}

// LogFile returns the path of the file with the output of the process.
func (p *process) LogFile() string { return p.log }

// LogTail returns the end of the process's output.
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

// end stops the process, if it is running, with SIGTERM or, if atOnce is set, with SIGKILL.
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
