// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopBound is how long a node may take to stop before it is killed.
const stopBound = 10 * time.Second

// Node is one node: a process that can be ended and started again over the same data.
type Node struct {
	// Name, "a" or "b".
	Name string
	// Address that it listens on, host:port.
	Address string
	// Dir holds its data and log.Dir.
	Dir string

	binary string
	args   []string

	mu      sync.Mutex // guards all below
	port    *Port      // reserved for the node; nil when its address was given, and after close
	cmd     *exec.Cmd  // nil while it does not run
	exited  chan struct{}
	exit    error // how it ended
	failure error // why it ended, if this process did not end it
}

// newNode prepares a node; listen may be empty.
func newNode(name, binary, dir, listen string, settings map[string]string) (*Node, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	n := &Node{Name: name, Address: listen, Dir: dir, binary: binary}
	if listen == "" {
		port, err := ReservePort()
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", name, err)
		}
		n.port, n.Address = port, port.Address()
	}
	n.args = []string{
		"serve", "--node-name=" + name, "--data-dir=" + filepath.Join(dir, "data"),
		"--listen=" + n.Address,
	}
	for _, k := range slices.Sorted(maps.Keys(settings)) {
		n.args = append(n.args, "--"+k+"="+settings[k])
	}
	return n, nil
}

// DataDir is the node's data directory.
func (n *Node) DataDir() string { return filepath.Join(n.Dir, "data") }

// LogFile is where all goes that the node prints.
func (n *Node) LogFile() string { return filepath.Join(n.Dir, "node.log") }

// Command is the command line that the node was started with.
func (n *Node) Command() string { return n.binary + " " + strings.Join(n.args, " ") }

// Start starts the process. It does not wait for it to serve.
func (n *Node) Start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd != nil {
		return fmt.Errorf("node %s runs already", n.Name)
	}
	log, err := os.OpenFile(n.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640) //nolint:gosec // a log, which the group may read
	if err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	defer func() { _ = log.Close() }()       // the process has a descriptor of its own
	cmd := exec.Command(n.binary, n.args...) //nolint:noctx // this very program; it ends by Kill or Stop, not with a context
	// Settings of this process are not meant for the nodes.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "LOCKSTEP_") })
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = processAttributes()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	exited := make(chan struct{})
	n.cmd, n.exited, n.failure = cmd, exited, nil
	go func() { // ends with the process, which Close ends
		err := cmd.Wait()
		n.mu.Lock()
		n.exit = err
		if n.cmd == cmd {
			n.cmd = nil
			n.failure = fmt.Errorf("node %s ended by itself: %w\n--- end of %s:\n%s", n.Name, orExit(err), n.LogFile(),
				n.LogTail())
		}
		n.mu.Unlock()
		close(exited)
	}()
	return nil
}

func orExit(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// PID of the process; 0 while it does not run.
func (n *Node) PID() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd == nil {
		return 0
	}
	return n.cmd.Process.Pid
}

// Failure tells why the process ended by itself, or nil.
func (n *Node) Failure() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.failure
}

// Exited is closed when the process is gone.
func (n *Node) Exited() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.exited
}

// signal sends s to the process, which is expected to end by it.
func (n *Node) signal(s os.Signal) (exited <-chan struct{}, running bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd == nil {
		return nil, false, nil
	}
	err = n.cmd.Process.Signal(s)
	n.cmd = nil
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return n.exited, true, fmt.Errorf("node %s: %w", n.Name, err)
	}
	return n.exited, true, nil
}

// Kill ends the process with SIGKILL and returns at once; it is gone when Exited is closed.
func (n *Node) Kill() error {
	_, running, err := n.signal(os.Kill)
	if !running {
		return fmt.Errorf("node %s does not run", n.Name)
	}
	return err
}

// Stop asks the process to stop, and kills it if that takes too long; it is gone then and can be started again. A
// process that fails while it stops is an error.
func (n *Node) Stop() error {
	n.mu.Lock()
	cmd := n.cmd
	n.mu.Unlock()
	exited, running, err := n.signal(syscall.SIGTERM)
	if !running {
		if c := n.Exited(); c != nil {
			<-c // killed before: wait until it is reaped
		}
		return err
	}
	timer := time.NewTimer(stopBound)
	defer timer.Stop()
	select {
	case <-exited:
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.exit != nil && !terminated(n.exit) {
			err = errors.Join(err, fmt.Errorf("node %s stopped with %w\n--- end of %s:\n%s", n.Name, n.exit,
				n.LogFile(), n.LogTail()))
		}
	case <-timer.C:
		err = errors.Join(err, fmt.Errorf("node %s did not stop within %v and was killed", n.Name, stopBound),
			cmd.Process.Kill())
		<-exited
	}
	return err
}

// close stops the process and gives its port back.
func (n *Node) close() error {
	err := n.Stop()
	n.mu.Lock()
	port := n.port
	n.port = nil
	n.mu.Unlock()
	if port != nil {
		err = errors.Join(err, port.Close())
	}
	return err
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

// LogTail returns the end of the log.
func (n *Node) LogTail() string {
	const tail = 2000
	b, err := os.ReadFile(n.LogFile())
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
