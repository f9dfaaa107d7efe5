// SPDX-License-Identifier: Apache-2.0

// Package simpair runs complete nodes in simulated time, for tests.
//
// Test runs a test in a testing/synctest bubble. A node in it is a call of node.Run, with store, replication, failover
// and all services. The network (test/simnet), the disk (test/vfs/memfs), etcd (failover/coordinator/memory) and the
// clock are simulated. Voters of the raft coordinator use the simulated network, and files of the operating system.
// Durations in simulated time are exact and do not depend on the machine.
//
//	simpair.Test(t, func(t *testing.T, w *simpair.World) {
//		a := w.Start(w.PairConfig("a"), node.Options{})
//		b := w.Start(w.PairConfig("b"), node.Options{})
//		w.WaitInSync(a, b)
//		w.Net.SetCut(a.Host(), b.Host(), true)
//		...
//	})
//
// A bubble has these rules:
//   - t.Run, t.Parallel and t.Deadline are not allowed inside; start a bubble per subtest.
//   - Real sockets and processes are not allowed inside: the clock stops while a goroutine waits for them. Files of the
//     operating system are allowed.
//   - A goroutine that waits for a sync.Mutex is not idle: the clock stops if the holder of the mutex sleeps.
//   - All goroutines must end before the test. Test stops the running nodes and closes the open connections.
//   - The clock starts at 2000-01-01. Create certificates inside the bubble.
package simpair

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/memory"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/test/simnet"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// Timeout is the longest simulated time for which the package waits for a condition.
const Timeout = time.Minute

// Poll is the interval at which conditions are checked, in simulated time.
const Poll = time.Millisecond

// Latency is the latency of each message in the network. With 0, a client that retries in a loop would stop the clock.
const Latency = time.Millisecond

// World is the environment shared by the nodes and clients of one test.
type World struct {
	T   *testing.T
	Net *simnet.Network
	// Disk contains the data directories that Dir returned, of nodes that are started without an FS in their options.
	Disk *memfs.FS
	// WrapCoordinator, if not nil, wraps the connection of each node to the coordinator. Set it before nodes start.
	WrapCoordinator func(failover.Coordinator) failover.Coordinator

	clients *simnet.Process

	mu    sync.Mutex // guards the fields below
	hosts map[string]string
	nodes []*Node
	dirs  int
	// coordinators contains the coordinators by endpoints and prefix.
	coordinators map[string]*memory.Server
}

// worlds contains the World of each running test, by its *testing.T.
var worlds sync.Map //nolint:gochecknoglobals // test helpers only have a *testing.T in common

// Test runs f in a new bubble.
func Test(t *testing.T, f func(t *testing.T, w *World)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &World{
			T: t, Net: simnet.New(simnet.Options{Delay: Latency}), Disk: memfs.New(),
			hosts: map[string]string{}, coordinators: map[string]*memory.Server{},
		}
		w.clients = w.Net.NewProcess(w.Host("client"))
		worlds.Store(t, w)
		t.Cleanup(func() { worlds.Delete(t) })
		t.Cleanup(w.stop)
		f(t, w)
	})
}

// Of returns the World of a test, or nil if the test does not run in Test.
func Of(t *testing.T) *World {
	w, _ := worlds.Load(t)
	found, _ := w.(*World)
	return found
}

// Host returns the IP address of the named host, which it assigns on first use. It is a loopback address, because
// loopback addresses do not require TLS.
func (w *World) Host(name string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hosts[name] == "" {
		w.hosts[name] = fmt.Sprintf("127.0.0.%d", len(w.hosts)+1)
	}
	return w.hosts[name]
}

// dirPrefix is the prefix of data directories on Disk.
const dirPrefix = "/simulated-data-"

// Dir returns the name of a new data directory.
func (w *World) Dir() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dirs++
	return fmt.Sprint(dirPrefix, w.dirs)
}

// Config returns the settings of a node without a coordinator. The node runs on the host of the same name.
func (w *World) Config(name string) config.Config {
	c := config.Default()
	c.Node.Name = name
	c.Data.Dir = w.Dir()
	c.Listen = net.JoinHostPort(w.Host(name), "0")
	c.Coordinator.Type = config.CoordinatorNone
	c.WAL.SegmentBytes = 1 << 20
	c.Disk.LowWatermark = 0
	c.Memory.Budget = 16 << 20
	return c
}

// PairConfig returns the settings of a node of a pair.
func (w *World) PairConfig(name string) config.Config {
	c := w.Config(name)
	c.Coordinator.Type = config.CoordinatorEtcd
	c.Coordinator.Etcd.Endpoints = []string{"simulated:1"} // see CoordinatorOf
	return c
}

// CoordinatorOf returns the coordinator that the settings of a node refer to. Each combination of endpoints and
// prefix has a separate coordinator.
func (w *World) CoordinatorOf(c *config.Config) *memory.Server {
	key := strings.Join(c.Coordinator.Etcd.Endpoints, ",") + " " + c.Coordinator.Etcd.Prefix
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.coordinators[key] == nil {
		w.coordinators[key] = memory.NewServer(0)
	}
	return w.coordinators[key]
}

// Listen binds an address for the process of the clients.
func (w *World) Listen(ctx context.Context, address string) (net.Listener, error) {
	return w.clients.Listen(ctx, address)
}

// Dial connects to an address from the process of the clients.
func (w *World) Dial(ctx context.Context, address string) (net.Conn, error) {
	return w.clients.Dial(ctx, address)
}

// ClientOptions returns the gRPC options that clients need to connect to nodes.
func (w *World) ClientOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithContextDialer(w.Dial), grpc.WithIdleTimeout(0)}
}

// Connect returns a client connection to an address, without TLS unless the options set it.
func (w *World) Connect(address string, options ...grpc.DialOption) *grpc.ClientConn {
	w.T.Helper()
	all := append(w.ClientOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(80<<20), grpc.MaxCallSendMsgSize(160<<20)))
	conn, err := grpc.NewClient("passthrough:///"+address, append(all, options...)...)
	require.NoError(w.T, err)
	w.T.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Eventually waits until a condition holds.
func (w *World) Eventually(holds func() bool, message string, args ...any) {
	w.T.Helper()
	for end := time.Now().Add(Timeout); !holds(); {
		if time.Now().After(end) {
			require.FailNowf(w.T, "condition never satisfied", message, args...)
		}
		time.Sleep(Poll) //nolint:forbidigo // simulated time
	}
}

// WaitInSync waits until active reports the role active, and standby reports the role standby.
func (w *World) WaitInSync(active, standby *Node) {
	w.T.Helper()
	w.Eventually(func() bool {
		return active.Role() == pb.Role_ROLE_ACTIVE && standby.Role() == pb.Role_ROLE_STANDBY
	}, "%s active, %s standby", active.Config.Node.Name, standby.Config.Node.Name)
}

// StartPair starts two nodes, a and b, and waits until they are in sync with a as the active.
func (w *World) StartPair() (a, b *Node) {
	w.T.Helper()
	a = w.Start(w.PairConfig("a"), node.Options{})
	a.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	b = w.Start(w.PairConfig("b"), node.Options{})
	w.WaitInSync(a, b)
	return a, b
}

// stop stops the running nodes and ends the process of the clients.
func (w *World) stop() {
	w.mu.Lock()
	nodes := w.nodes
	w.mu.Unlock()
	for _, n := range nodes {
		_ = n.Stop() // the test checks the errors that it expects
	}
	w.clients.Kill()
}

// Logger returns a logger that writes to the log of the test if LOCKSTEP_TEST_LOGS is set, and otherwise discards
// everything.
func (w *World) Logger(name string) *zap.Logger {
	if os.Getenv("LOCKSTEP_TEST_LOGS") == "" {
		return zap.NewNop()
	}
	return zaptest.NewLogger(w.T).Named(name)
}
