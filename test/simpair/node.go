// SPDX-License-Identifier: Apache-2.0

package simpair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/memory"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/simnet"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// ErrLeak is returned by Node.Err and Node.Stop when the node has open connections after node.Run has returned.
var ErrLeak = errors.New("simpair: open connections after node.Run")

// Node is a simulated process: one call of node.Run.
type Node struct {
	// Config contains the settings of the node.
	Config config.Config
	// Ready contains the addresses of the node. It is set before Launch returns, if the node listens.
	Ready node.Ready

	w       *World
	options node.Options
	process *simnet.Process
	cancel  context.CancelFunc
	killed  atomic.Bool
	done    chan struct{} // closed when node.Run has returned
	err     error         // set before done is closed
	ended   sync.Once

	mu          sync.Mutex // guards the fields below
	coordinator *memory.Coordinator
	conn        *grpc.ClientConn
}

// Launch starts a node on the host of its listen address, and waits until it listens or has ended. Launch sets the
// network, the boot ID and the coordinator of the node's environment. A boot ID and a coordinator in o take
// precedence. If o.FS is nil, the node uses w.Disk for a data directory from World.Dir, and the filesystem of the
// operating system for any other directory.
func (w *World) Launch(c config.Config, o node.Options) *Node {
	w.T.Helper()
	w.awaitKilled(c.Data.Dir)
	host, _, err := net.SplitHostPort(c.Listen)
	require.NoError(w.T, err)
	ctx, cancel := context.WithCancel(context.Background())
	n := &Node{
		Config: c, w: w, options: o, process: w.Net.NewProcess(host), cancel: cancel, done: make(chan struct{}),
	}
	if o.FS == nil {
		o.FS = w.Disk
		if !strings.HasPrefix(c.Data.Dir, dirPrefix) {
			o.FS = vfs.OS()
		}
	}
	disk := faultfs.New(o.FS)
	disk.SetHook(func(faultfs.Op) error {
		if n.killed.Load() {
			return syscall.EIO
		}
		return nil
	})
	o.FS = disk
	if o.Version == "" {
		o.Version = "test"
	}
	e := &o.Environment
	e.Listen, e.Dial, e.BootID = n.process.Listen, n.process.Dial, cmp.Or(e.BootID, "boot")
	if c.Coordinator.Type == config.CoordinatorEtcd && e.Coordinator == nil {
		e.Coordinator = n.connectCoordinator
	}
	ready := make(chan node.Ready, 1)
	onReady := o.OnReady
	o.OnReady = func(r node.Ready) {
		n.Ready = r
		if onReady != nil {
			onReady(r)
		}
		ready <- r
	}
	logger := w.Logger(c.Node.Name)
	w.mu.Lock()
	w.nodes = append(w.nodes, n)
	w.mu.Unlock()
	go func() {
		defer close(n.done)
		n.err = node.Run(ctx, c, logger, o)
		time.Sleep(time.Nanosecond) //nolint:forbidigo // simulated time: all goroutines that can end do so first
		if open := n.process.Connections(); open > 0 && !n.killed.Load() {
			n.err = errors.Join(n.err, fmt.Errorf("%w: %d", ErrLeak, open))
		}
	}()
	select {
	case <-ready:
	case <-n.done:
	}
	return n
}

// Start is like Launch, but fails the test if the node does not listen.
func (w *World) Start(c config.Config, o node.Options) *Node {
	w.T.Helper()
	n := w.Launch(c, o)
	require.NotEmpty(w.T, n.Ready.Address, "the node ended: %v", n.err)
	return n
}

// awaitKilled waits until the killed nodes of a data directory have ended. Until then, they hold the directory's
// lock.
func (w *World) awaitKilled(dir string) {
	w.mu.Lock()
	nodes := slices.Clone(w.nodes)
	w.mu.Unlock()
	for _, n := range nodes {
		if n.killed.Load() && n.Config.Data.Dir == dir {
			<-n.done
		}
	}
}

func (n *Node) connectCoordinator(failover.NodeInfo) (failover.Coordinator, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.coordinator = n.w.CoordinatorOf(&n.Config).Connect()
	if wrap := n.w.WrapCoordinator; wrap != nil {
		return wrap(n.coordinator), nil
	}
	return n.coordinator, nil
}

// SetCoordinatorReachable makes the coordinator unreachable for the node, or reachable again.
func (n *Node) SetCoordinatorReachable(reachable bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.coordinator != nil {
		n.coordinator.SetReachable(reachable)
	}
}

// Host returns the IP address of the node's host.
func (n *Node) Host() string {
	host, _, _ := net.SplitHostPort(n.Config.Listen)
	return host
}

// Conn returns a client connection to the node, without TLS.
func (n *Node) Conn() *grpc.ClientConn {
	n.w.T.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conn == nil {
		n.conn = n.w.Connect(n.Ready.Address)
	}
	return n.conn
}

// Admin returns the admin service of the node.
func (n *Node) Admin() pb.AdminServiceClient { return pb.NewAdminServiceClient(n.Conn()) }

// Queues returns the queue service of the node.
func (n *Node) Queues() pb.QueueServiceClient { return pb.NewQueueServiceClient(n.Conn()) }

// Role returns the role that the node reports, or ROLE_UNSPECIFIED if the node does not respond.
func (n *Node) Role() pb.Role {
	st, err := n.Admin().GetStatus(n.w.T.Context(), &pb.GetStatusRequest{})
	if err != nil {
		return pb.Role_ROLE_UNSPECIFIED
	}
	return st.GetRole()
}

// WaitFor waits until the node reports the role.
func (n *Node) WaitFor(role pb.Role) {
	n.w.T.Helper()
	n.w.Eventually(func() bool { return n.Role() == role }, "%s should become %s", n.Config.Node.Name, role)
}

// Done returns a channel that is closed when the node has ended.
func (n *Node) Done() <-chan struct{} { return n.done }

// Err waits for node.Run and returns its error.
func (n *Node) Err() error {
	<-n.done
	return n.err
}

// Shutdown requests a stop of the node, and does not wait for it.
func (n *Node) Shutdown() { n.cancel() }

// Stop stops the node and returns the error of node.Run. The error is nil after Kill.
func (n *Node) Stop() error {
	n.cancel()
	<-n.done
	n.ended.Do(n.process.Kill) // closes its connections, as the kernel would
	if n.killed.Load() {
		return nil
	}
	return n.err
}

// Kill ends the node like SIGKILL: it immediately loses the network, the disk and the coordinator. Its writes stay in
// the page cache, and its lease lasts until it expires.
func (n *Node) Kill() {
	n.killed.Store(true)
	n.SetCoordinatorReachable(false) // first, so that the node cannot drop a standby after its kill
	n.ended.Do(n.process.Kill)
	n.cancel()
}

// Restart stops the node if it is running, starts it with the same settings and address, and waits until it listens.
func (n *Node) Restart() *Node {
	n.w.T.Helper()
	require.NoError(n.w.T, n.Stop())
	c := n.Config
	c.Listen = n.Ready.Address
	return n.w.Start(c, n.options)
}
