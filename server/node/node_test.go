// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd/embedded"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/tlsfiles"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// testTimeout is the timeout of polls. It is in simulated time, except in the few tests on real sockets.
const testTimeout = time.Minute

// simulated runs a test in simulated time. Its nodes have an in-memory network, disk and coordinator.
func simulated(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	simpair.Test(t, func(t *testing.T, _ *simpair.World) { test(t) })
}

// took requires that the given duration has passed since a time, with a small tolerance for network latency.
func took(t *testing.T, want time.Duration, since time.Time, label ...any) {
	t.Helper()
	require.InDelta(t, want, time.Since(since), float64(50*simpair.Latency), label...)
}

// section runs a part of a simulated test, in which t.Run cannot be used.
func section(t *testing.T, name string, part func(t *testing.T)) {
	t.Helper()
	t.Log("section:", name)
	part(t)
}

// coordinatorServer is the coordinator of a pair under test.
type coordinatorServer interface{ Endpoints() []string }

// simulatedEtcd is the endpoint of a coordinator that simpair simulates.
type simulatedEtcd string

func (e simulatedEtcd) Endpoints() []string { return []string{string(e)} }

// startEtcd returns a new coordinator for a simulated test.
func startEtcd(t *testing.T) simulatedEtcd {
	t.Helper()
	w := simpair.Of(t)
	require.NotNil(t, w, "the test is not simulated")
	return simulatedEtcd("etcd" + strings.ReplaceAll(w.Dir(), "/", "-") + ":1")
}

// startRealEtcd starts an etcd that runs until the test ends.
func startRealEtcd(t *testing.T) *embedded.Server {
	t.Helper()
	etcd, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), UnsafeNoFsync: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, etcd.Close()) })
	return etcd
}

// settings returns the settings of a node under test.
func settings(t *testing.T, name string) config.Config {
	t.Helper()
	c := config.Default()
	c.Node.Name = name
	if w := simpair.Of(t); w != nil {
		c.Data.Dir = w.Dir()
	} else {
		c.Data.Dir = t.TempDir()
	}
	c.Listen = "127.0.0.1:0"
	c.Coordinator.Type = config.CoordinatorNone
	if simpair.Of(t) == nil { // long timeouts, so that roles do not change because of a slow machine
		c.Failover.Timeout, c.Failover.DropTimeout = config.Duration(2*time.Minute), config.Duration(time.Minute)
	}
	c.WAL.SegmentBytes = 4 << 20
	c.Disk.LowWatermark = 0
	c.Memory.Budget = 32 << 20
	return c
}

// settingsOnDisk is like settings, but uses the operating system's filesystem. It is for tests that change files
// of the store.
func settingsOnDisk(t *testing.T, name string) config.Config {
	t.Helper()
	c := settings(t, name)
	c.Data.Dir = t.TempDir()
	return c
}

// settingsOfPair returns the settings of a node of a pair.
func settingsOfPair(t *testing.T, name string, etcd coordinatorServer) config.Config {
	t.Helper()
	c := settings(t, name)
	c.Coordinator.Type = config.CoordinatorEtcd
	c.Coordinator.Etcd.Endpoints = etcd.Endpoints()
	return c
}

// testNode is a node that runs in this process.
type testNode struct {
	t           *testing.T
	config      config.Config
	ready       node.Ready
	cancel      context.CancelFunc
	done        <-chan struct{}
	failure     func() error // waits for done and returns the error
	conn        *grpc.ClientConn
	queues      pb.QueueServiceClient
	admin       pb.AdminServiceClient
	maintenance pb.MaintenanceServiceClient
	failed      bool // the error of the node is expected
}

// start runs a node until the test ends or stop is called.
func start(t *testing.T, c config.Config) *testNode {
	t.Helper()
	return startOn(t, c, nil)
}

// startOn is like start, but uses the given filesystem.
func startOn(t *testing.T, c config.Config, fs vfs.FS) *testNode {
	t.Helper()
	return startIn(t, c, node.Options{FS: fs})
}

// startIn is like start, but uses the given options.
func startIn(t *testing.T, c config.Config, o node.Options) *testNode {
	t.Helper()
	n := &testNode{t: t, config: c}
	if w := simpair.Of(t); w != nil {
		launched := w.Launch(c, o)
		n.ready, n.cancel, n.done, n.failure = launched.Ready, launched.Shutdown, launched.Done(), launched.Err
	} else {
		n.launch(o)
	}
	if n.ready.Address == "" {
		require.NoError(t, n.failure())
		t.Fatal("the node stopped immediately")
	}
	t.Cleanup(n.stop)
	n.dial()
	return n
}

// launch runs a node on real sockets and waits until it listens or has stopped.
func (n *testNode) launch(o node.Options) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var err error
	n.cancel, n.done, n.failure = cancel, done, func() error { <-done; return err }
	ready := make(chan node.Ready, 1)
	logger := zap.NewNop()
	if os.Getenv("LOCKSTEP_TEST_LOGS") != "" {
		logger = zaptest.NewLogger(n.t).Named(n.config.Node.Name)
	}
	go func() {
		defer close(done)
		o.Version, o.OnReady = "test", func(r node.Ready) { ready <- r }
		err = node.Run(ctx, n.config, logger, o)
	}()
	select {
	case n.ready = <-ready:
	case <-done:
	}
}

func (n *testNode) dial() {
	n.t.Helper()
	creds := insecure.NewCredentials()
	if n.config.TLS.On() {
		source, err := tlsfiles.Open(tlsfiles.Options{Files: n.config.TLS.Files()})
		require.NoError(n.t, err)
		creds = source.Credentials(nil)
	}
	var err error
	n.conn, err = grpc.NewClient("passthrough:///"+n.ready.Address, append(clientOptions(n.t),
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(80<<20), grpc.MaxCallSendMsgSize(160<<20)))...)
	require.NoError(n.t, err)
	n.queues, n.admin = pb.NewQueueServiceClient(n.conn), pb.NewAdminServiceClient(n.conn)
	n.maintenance = pb.NewMaintenanceServiceClient(n.conn)
}

// clientOptions returns the gRPC dial options of the test's clients.
func clientOptions(t *testing.T) []grpc.DialOption {
	t.Helper()
	if w := simpair.Of(t); w != nil {
		return w.ClientOptions()
	}
	return nil
}

// dialer returns a function that connects to ports of nodes.
func dialer(t *testing.T) func(ctx context.Context, network, address string) (net.Conn, error) {
	t.Helper()
	if w := simpair.Of(t); w != nil {
		return func(ctx context.Context, _, address string) (net.Conn, error) { return w.Dial(ctx, address) }
	}
	return (&net.Dialer{}).DialContext
}

// diskOf returns the default disk of the test's nodes.
func diskOf(t *testing.T) vfs.FS {
	t.Helper()
	if w := simpair.Of(t); w != nil {
		return w.Disk
	}
	return vfs.OS()
}

// stop stops the node and waits until it has stopped. It may be called more than once.
func (n *testNode) stop() {
	n.cancel()
	if err := n.failure(); !n.failed {
		require.NoError(n.t, err)
	}
	_ = n.conn.Close()
}

func (n *testNode) role() pb.Role {
	st, err := n.admin.GetStatus(n.t.Context(), &pb.GetStatusRequest{})
	if err != nil {
		return pb.Role_ROLE_UNSPECIFIED
	}
	return st.GetRole()
}

// waitFor waits until the node has the role.
func (n *testNode) waitFor(role pb.Role) {
	n.t.Helper()
	require.Eventually(n.t, func() bool { return n.role() == role }, testTimeout, 5*time.Millisecond,
		"%s should become %s", n.config.Node.Name, role)
	if role != pb.Role_ROLE_ACTIVE {
		return
	}
	// The node may not have received the address of the in-sync standby from the coordinator yet.
	require.Eventually(n.t, func() bool {
		nodes := n.status().GetPair().GetNodes()
		return len(nodes) == 2 && nodes[0].GetAddress() != "" && nodes[1].GetAddress() != ""
	}, testTimeout, 5*time.Millisecond, "%s should receive the other node's address", n.config.Node.Name)
}

// startAlone starts a standalone node and waits until it serves clients.
func startAlone(t *testing.T, change func(*config.Config)) *testNode {
	t.Helper()
	c := settings(t, "alone")
	if change != nil {
		change(&c)
	}
	n := start(t, c)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	return n
}

// startPair starts two nodes and waits until the second node is in sync.
func startPair(t *testing.T, etcd coordinatorServer) (active, standby *testNode) {
	t.Helper()
	active = start(t, settingsOfPair(t, "a", etcd))
	active.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	standby = start(t, settingsOfPair(t, "b", etcd))
	standby.waitFor(pb.Role_ROLE_STANDBY)
	active.waitFor(pb.Role_ROLE_ACTIVE)
	return active, standby
}

func (n *testNode) createQueue(name string) *pb.Queue {
	n.t.Helper()
	resp, err := n.queues.CreateQueue(n.t.Context(), &pb.CreateQueueRequest{Name: name})
	require.NoError(n.t, err)
	return resp.GetQueue()
}

func batch(bodies ...string) []*pb.Message {
	out := make([]*pb.Message, 0, len(bodies))
	for _, b := range bodies {
		out = append(out, &pb.Message{Body: []byte(b)})
	}
	return out
}

func (n *testNode) publish(queue string, bodies ...string) *pb.PublishResponse {
	n.t.Helper()
	resp, err := n.queues.Publish(n.t.Context(), &pb.PublishRequest{Queue: queue, Messages: batch(bodies...)})
	require.NoError(n.t, err)
	return resp
}

// kind returns the error that a status represents.
func kind(err error) error { return apierror.FromStatus(err) }

type consumer struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[pb.ConsumeRequest, pb.ConsumeResponse]
	early  []*pb.StoredMessage // received while waiting for a confirmation
}

func (n *testNode) consume(queue string, credit uint32) *consumer {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.t.Context())
	n.t.Cleanup(cancel)
	stream, err := n.queues.Consume(ctx)
	require.NoError(n.t, err)
	require.NoError(n.t, stream.Send(&pb.ConsumeRequest{Attach: &pb.Attach{Queue: queue}, Credit: credit}))
	resp, err := stream.Recv()
	require.NoError(n.t, err)
	require.True(n.t, resp.GetAttached())
	return &consumer{t: n.t, stream: stream}
}

// take waits until the consumer has received n messages, and returns them.
func (c *consumer) take(n int) []*pb.StoredMessage {
	c.t.Helper()
	got := c.early
	c.early = nil
	for len(got) < n {
		resp, err := c.stream.Recv()
		require.NoError(c.t, err)
		got = append(got, resp.GetMessages()...)
	}
	require.Len(c.t, got, n)
	return got
}

// confirm sends a request and waits for its confirmation. Messages received before the confirmation are returned by
// the next call of take.
func (c *consumer) confirm(req *pb.ConsumeRequest) {
	c.t.Helper()
	require.NoError(c.t, c.stream.Send(req))
	for {
		resp, err := c.stream.Recv()
		require.NoError(c.t, err)
		c.early = append(c.early, resp.GetMessages()...)
		if resp.GetConfirmed() >= req.GetConfirm() {
			return
		}
	}
}

func bodies(messages []*pb.StoredMessage) []string {
	out := make([]string, 0, len(messages))
	for _, m := range messages {
		out = append(out, string(m.GetMessage().GetBody()))
	}
	return out
}

func span(first, last uint64) []*pb.SequenceRange {
	return []*pb.SequenceRange{{First: first, Last: last}}
}

func TestStandalonePublishConsume(t *testing.T) { simulated(t, testStandalonePublishConsume) }

func testStandalonePublishConsume(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("orders")
	for i := range 10 {
		resp := n.publish("orders", fmt.Sprint(i))
		require.Equal(t, uint64(i+1), resp.GetFirstSequence())
	}
	c := n.consume("orders", 100)
	require.Equal(t, []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}, bodies(c.take(10)))
	c.confirm(&pb.ConsumeRequest{Ack: span(1, 10), Confirm: 1})
	q, err := n.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: "orders"})
	require.NoError(t, err)
	require.Zero(t, q.GetQueue().GetMessages())
	require.Equal(t, uint64(11), q.GetQueue().GetSubscriptions()[0].GetFloor())
	require.Equal(t, uint32(1), q.GetQueue().GetSubscriptions()[0].GetConsumers())
}

// After a restart, the node binds the same port and has all acknowledged messages.
func TestStandaloneRestart(t *testing.T) { simulated(t, testStandaloneRestart) }

func testStandaloneRestart(t *testing.T) {
	c := settings(t, "alone")
	n := start(t, c)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	n.createQueue("orders")
	n.publish("orders", "one", "two")
	n.stop()

	c.Listen = n.ready.Address
	n = start(t, c)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	require.Equal(t, []string{"one", "two"}, bodies(n.consume("orders", 10).take(2)))
}

// The standby takes over in a pair with a real etcd and real sockets.
func TestTakeoverWithRealEtcd(t *testing.T) {
	active, standby := startPair(t, startRealEtcd(t))
	active.createQueue("orders")
	active.publish("orders", "one", "two")
	active.stop()
	start := time.Now()
	require.Eventually(t, func() bool {
		_, err := standby.queues.Publish(t.Context(), &pb.PublishRequest{Queue: "orders", Messages: batch("three")})
		return err == nil
	}, testTimeout, 2*time.Millisecond)
	t.Logf("the next publish was acknowledged after %s", time.Since(start))
	require.Equal(t, []string{"one", "two", "three"}, bodies(standby.consume("orders", 10).take(3)))
}

func freePort(t *testing.T) net.Listener {
	t.Helper()
	listen := func(ctx context.Context, address string) (net.Listener, error) {
		return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	}
	if w := simpair.Of(t); w != nil {
		listen = w.Listen
	}
	l, err := listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}
