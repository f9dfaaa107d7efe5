// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const testTimeout = time.Minute

// node implements the services required to open a connection.
type node struct {
	pb.UnimplementedAccessServiceServer
	pb.UnimplementedAdminServiceServer
	pb.UnimplementedQueueServiceServer
}

func (*node) WhoAmI(context.Context, *pb.WhoAmIRequest) (*pb.WhoAmIResponse, error) {
	return &pb.WhoAmIResponse{Principal: "anonymous"}, nil
}

func (*node) GetStatus(context.Context, *pb.GetStatusRequest) (*pb.GetStatusResponse, error) {
	return &pb.GetStatusResponse{}, nil
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return l
}

// serve runs a Server for a node, and returns the Server and its log. change modifies the Options.
func serve(t *testing.T, change func(*Options)) (s *Server, logs *observer.ObservedLogs, stop func()) {
	t.Helper()
	return serveFor(t, &node{}, change)
}

// services are the services that a connection requires.
type services interface {
	pb.AccessServiceServer
	pb.AdminServiceServer
	pb.QueueServiceServer
}

// serveFor is like serve, with a given node.
func serveFor(
	t *testing.T, n services, change func(*Options),
) (s *Server, logs *observer.ObservedLogs, stop func()) {
	t.Helper()
	o, logs := optionsFor(t, n)
	change(&o)
	s = New(o)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return s, logs, func() {
		cancel()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(testTimeout):
			require.Fail(t, "the server does not end")
		}
	}
}

// optionsFor returns the options of a server for an active node.
func optionsFor(t *testing.T, n services) (Options, *observer.ObservedLogs) {
	t.Helper()
	inner := bufconn.Listen(1 << 20)
	g := grpc.NewServer()
	pb.RegisterAccessServiceServer(g, n)
	pb.RegisterAdminServiceServer(g, n)
	pb.RegisterQueueServiceServer(g, n)
	go func() { _ = g.Serve(inner) }()
	t.Cleanup(g.Stop)
	services, err := grpc.NewClient("passthrough:///node", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return inner.DialContext(ctx) }))
	require.NoError(t, err)
	t.Cleanup(func() { _ = services.Close() })
	core, logs := observer.New(zapcore.ErrorLevel)
	return Options{
		Listener: listen(t), ContainerID: "node", Version: "1", MaxMessageBytes: 1 << 20,
		MaxTransactionBytes: 64 << 20, Logger: zap.New(core), Services: services,
		Enter: func(Client) (func(context.Context) context.Context, func()) {
			return func(ctx context.Context) context.Context { return ctx }, func() {}
		},
		Hello:      func(net.Addr, string) {},
		Role:       func() (Role, <-chan struct{}) { return Role{Active: true}, nil },
		AutoCreate: func() bool { return false },
	}, logs
}

// peer is an AMQP client.
type peer struct {
	t    *testing.T
	conn net.Conn
	in   *wire.Reader
}

func dial(t *testing.T, s *Server, container string) *peer {
	t.Helper()
	return dialAs(t, s, container, nil)
}

// inMemory sets an in-memory listener, for tests in a synctest bubble.
func inMemory(o *Options) {
	_ = o.Listener.Close()
	o.Listener = bufconn.Listen(1 << 20)
}

func dialTo(s *Server) (net.Conn, error) {
	if l, ok := s.o.Listener.(interface{ Dial() (net.Conn, error) }); ok {
		return l.Dial()
	}
	return net.Dial("tcp", s.Address().String())
}

// dialAs opens a connection with properties.
func dialAs(t *testing.T, s *Server, container string, properties wire.Fields) *peer {
	t.Helper()
	conn, err := dialTo(s)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(testTimeout)))
	p := &peer{t: t, conn: conn, in: wire.NewReader(conn, 1<<20)}
	b := wire.AppendProtocolHeader(nil, wire.ProtocolAMQP)
	b = wire.AppendFrame(b, 0, &wire.Open{
		ContainerID: container, MaxFrameSize: 1 << 16, ChannelMax: 10, DesiredCapabilities: []wire.Symbol{soleConnection},
		Properties: properties,
	}, nil)
	p.write(wire.AppendFrame(b, 0, &wire.Begin{IncomingWindow: 1 << 30, OutgoingWindow: 1 << 30, HandleMax: 100}, nil))
	_, _, _ = p.in.ProtocolHeader() // later reads fail if it has not arrived
	return p
}

func (p *peer) write(b []byte) {
	p.t.Helper()
	_, err := p.conn.Write(b)
	require.NoError(p.t, err)
}

// attach attaches a link on which the peer sends.
func (p *peer) attach(handle uint32, queue string) {
	p.t.Helper()
	p.write(wire.AppendFrame(nil, 0, &wire.Attach{
		Name: queue, Handle: handle, Role: wire.RoleSender, Source: &wire.Source{}, Target: &wire.Node{Address: queue},
		InitialDeliveryCount: wire.Some(uint32(0)),
	}, nil))
}

// until reads frames up to one with a body of type T. It returns false if the connection ends first.
func until[T wire.Performative](p *peer) bool {
	for {
		var f wire.Frame
		if p.in.Next(&f) != nil {
			return false
		}
		if _, ok := f.Body.(T); ok {
			return true
		}
	}
}

// A panic in code of a connection, with or without its lock, terminates that connection, is logged and counted, and
// does not affect state shared with other connections.
func TestPanicEndsOneConnection(t *testing.T) {
	s, logs, stop := serve(t, func(o *Options) {
		var entered atomic.Int64
		enter := o.Enter
		o.Enter = func(c Client) (func(context.Context) context.Context, func()) {
			if entered.Add(1) == 2 {
				panic("before the connection is opened")
			}
			return enter(c)
		}
		o.Hello = func(_ net.Addr, name string) {
			if strings.Contains(name, "with the lock") {
				panic(name)
			}
		}
		o.AutoCreate = func() bool { panic("in a separate goroutine") }
	})
	defer stop()
	good := dial(t, s, "good")
	require.True(t, until[*wire.Begin](good))
	early := dial(t, s, "early")
	require.False(t, until[*wire.Begin](early))
	locked := dial(t, s, "with the lock")
	require.False(t, until[*wire.Open](locked), "its output may be invalid")
	attaching := dial(t, s, "attaching")
	require.True(t, until[*wire.Begin](attaching))
	attaching.attach(0, "q")
	require.False(t, until[*wire.Attach](attaching))

	require.Eventually(t, func() bool { return s.Defects() == 3 && logs.Len() == 3 }, testTimeout, time.Millisecond)
	for _, l := range logs.All() {
		require.Contains(t, l.ContextMap(), "panic")
		require.Contains(t, l.ContextMap()["stack"], "broker")
	}
	require.Eventually(t, func() bool { return len(s.all(false)) == 1 }, testTimeout, time.Millisecond,
		"others are served")
	again := dial(t, s, "attaching") // the only connection of its container
	require.True(t, until[*wire.Begin](again))
	good.attach(0, "") // an anonymous link makes no call to the node
	require.True(t, until[*wire.Attach](good))
	require.NoError(t, again.conn.Close())
	_, err := io.WriteString(good.conn, "junk that ends it")
	require.NoError(t, err)
}
