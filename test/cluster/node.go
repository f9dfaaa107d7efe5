// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/lockstep-mq/lockstep/cmd/lockstep/harness"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/vfs/faultdisk"
)

// stopBound is how long a node gets to end after SIGTERM before it is killed.
const stopBound = 20 * time.Second

// ErrNotRunning is returned when a signal is for a node that does not run.
var ErrNotRunning = errors.New("cluster: the node does not run")

// Node is one node of a pair: a process that can be started and ended again and again over the same data.
type Node struct {
	// Name as in its configuration.
	Name string
	// Dir holds node.yaml, the data and node.log.
	Dir string

	binary  string
	args    []string      // of the command line
	prefix  []string      // what the command line begins with; empty for the program itself
	address string        // where it listens, host:port
	port    *harness.Port // which is reserved for it; nil in a network of its own
	disk    *harness.Port // what its disk does is said here; nil without Options.Disk
	clock   clock         // of its machine; empty without Options.Clock
	conn    *grpc.ClientConn

	mu          sync.Mutex // guards all below
	cmd         *exec.Cmd
	exited      chan struct{} // closed when cmd is reaped
	err         error         // what Wait returned; written before exited is closed
	diskAtStart faultdisk.State
	boots       int // of its machine, if Options.Disk
}

// newNode prepares a node: its directory, its address, and its configuration file, which config makes. In a network it
// has its own address there, and else a free port.
func newNode(name, dir, binary string, network *Net, config func(listen string) string) (*Node, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	n := &Node{Name: name, Dir: dir, binary: binary}
	if network != nil {
		n.address, n.prefix = network.address(name), network.command(name)
	} else {
		port, err := harness.ReservePort()
		if err != nil {
			return nil, err
		}
		n.port, n.address = port, port.Address()
	}
	n.args = []string{"serve", "--config", n.configFile()}
	if err := os.WriteFile(n.configFile(), []byte(config(n.address)), 0o644); err != nil {
		return nil, errors.Join(fmt.Errorf("node %s: %w", name, err), n.givePort())
	}
	var err error
	n.conn, err = grpc.NewClient("passthrough:///"+n.address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 5 * time.Millisecond, Multiplier: 1.5,
				MaxDelay: 50 * time.Millisecond,
			},
			MinConnectTimeout: time.Second,
		}))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("node %s: %w", name, err), n.givePort())
	}
	return n, nil
}

// givePort gives the reserved port back.
func (n *Node) givePort() error {
	if n.port == nil {
		return nil
	}
	return n.port.Close()
}

func (n *Node) configFile() string { return filepath.Join(n.Dir, "node.yaml") }

// Address is where the node listens, host:port.
func (n *Node) Address() string { return n.address }

// DataDir is the node's store.
func (n *Node) DataDir() string { return filepath.Join(n.Dir, "data") }

// LogFile is where all that the node prints goes.
func (n *Node) LogFile() string { return filepath.Join(n.Dir, "node.log") }

// Conn is a connection to this very node, whatever its role.
func (n *Node) Conn() *grpc.ClientConn { return n.conn }

// Start starts the process. It does not wait for the node to serve.
func (n *Node) Start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd != nil {
		return fmt.Errorf("node %s runs already", n.Name)
	}
	log, err := os.OpenFile(n.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	defer func() { _ = log.Close() }() // the process has a descriptor of its own
	command := slices.Concat(n.prefix, []string{n.binary}, n.args)
	cmd := exec.Command(command[0], command[1:]...) //nolint:noctx // it ends by Kill or Stop, not with a context
	disk, err := n.diskEnvironment()
	if err != nil {
		return err
	}
	cmd.Env = slices.Concat(environment(), disk, n.clock.environment())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = dieWithUs()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	exited := make(chan struct{})
	n.cmd, n.exited = cmd, exited
	go func() {
		err := cmd.Wait()
		n.mu.Lock()
		n.err = err
		n.mu.Unlock()
		close(exited)
	}()
	return nil
}

// signal sends sig and returns the channel that is closed when the process is gone.
func (n *Node) signal(sig syscall.Signal) (<-chan struct{}, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd == nil {
		return nil, fmt.Errorf("%w: %s", ErrNotRunning, n.Name)
	}
	if err := n.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return nil, fmt.Errorf("node %s: %v: %w", n.Name, sig, err)
	}
	return n.exited, nil
}

func (n *Node) forget() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cmd = nil
	return n.err
}

// Kill ends the process with SIGKILL and waits until it is gone, with all of its sockets.
func (n *Node) Kill() error {
	exited, err := n.signal(syscall.SIGKILL)
	if err != nil {
		return err
	}
	<-exited
	_ = n.forget() // "signal: killed" is what was asked for
	return nil
}

// Stop asks the process to end (SIGTERM) and returns how it ended. After a generous time it is ended with SIGQUIT,
// which is an error; what it was doing, goroutine by goroutine, is in LogFile then.
func (n *Node) Stop() error {
	exited, err := n.signal(syscall.SIGTERM)
	if err != nil {
		return err
	}
	select {
	case <-exited:
		if err := n.forget(); err != nil {
			return fmt.Errorf("node %s after SIGTERM: %w", n.Name, err)
		}
		return nil
	case <-time.After(stopBound):
		return errors.Join(fmt.Errorf("node %s did not end within %v of SIGTERM", n.Name, stopBound), n.Dump())
	}
}

// Dump ends the process with SIGQUIT: what it was doing, goroutine by goroutine, is in LogFile then.
func (n *Node) Dump() error {
	exited, err := n.signal(syscall.SIGQUIT)
	if err != nil {
		return err
	}
	_ = n.Wake() // a paused process is to tell, too
	select {
	case <-exited:
	case <-time.After(stopBound):
	}
	return n.Kill()
}

// Pause stops the process with SIGSTOP and waits until it has stopped: its connections stay open and it does nothing.
func (n *Node) Pause() error {
	if _, err := n.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	n.mu.Lock()
	pid := n.cmd.Process.Pid
	n.mu.Unlock()
	return waitStopped(pid)
}

// Wake lets a paused process go on (SIGCONT), in the belief that no time has passed.
func (n *Node) Wake() error {
	_, err := n.signal(syscall.SIGCONT)
	return err
}

// PID is the id of the process that was started last; 0 while none runs.
func (n *Node) PID() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd == nil {
		return 0
	}
	return n.cmd.Process.Pid
}

// Exited is closed when the process is gone; nil while none was started.
func (n *Node) Exited() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd == nil {
		return nil
	}
	return n.exited
}

// Running tells whether the process was started and not ended by the test; it may have ended by itself.
func (n *Node) Running() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cmd != nil
}

// Status asks the node what it is, once.
func (n *Node) Status(ctx context.Context) (*pb.GetStatusResponse, error) {
	s, err := pb.NewAdminServiceClient(n.conn).GetStatus(ctx, &pb.GetStatusRequest{})
	if err != nil {
		return nil, fmt.Errorf("status of %s: %w", n.Name, err)
	}
	return s, nil
}

// Digest asks the node for a hash of its content.
func (n *Node) Digest(ctx context.Context) (Digest, error) {
	d, err := pb.NewAdminServiceClient(n.conn).GetDigest(ctx, &pb.GetDigestRequest{})
	if err != nil {
		return Digest{}, fmt.Errorf("digest of %s: %w", n.Name, err)
	}
	return Digest{Node: n.Name, LSN: d.GetLsn(), Content: d.GetContent(), Messages: d.GetMessages()}, nil
}

// close ends the process, if it runs, and gives everything back.
func (n *Node) close() error {
	var err error
	if n.Running() {
		err = n.Kill()
	}
	if n.disk != nil {
		err = errors.Join(err, n.disk.Close())
	}
	return errors.Join(err, n.conn.Close(), n.givePort())
}
