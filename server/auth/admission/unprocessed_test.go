// SPDX-License-Identifier: Apache-2.0

package admission_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/proto/codec"
	"github.com/lockstep-mq/lockstep/server"
	"github.com/lockstep-mq/lockstep/server/auth/admission"
	"github.com/lockstep-mq/lockstep/test/simnet"
)

// sink is a service with a streaming and a unary method. The streaming method receives one request for each value
// that taking receives. The unary method responds when free is closed.
type sink struct {
	taking chan struct{}
	// free, if not nil, blocks calls until it is closed.
	free chan struct{}
}

func (s *sink) desc() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: "test.Sink", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
			MethodName: "Work",
			Handler: func(_ any, _ context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				err := dec(&raw{})
				<-s.free
				return &raw{}, err
			},
		}},
		Streams: []grpc.StreamDesc{{
			StreamName: "Take", ClientStreams: true, ServerStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error {
				if s.free != nil {
					over := admission.IncomingFromContext(stream.Context()).Blocked()
					<-s.free
					over()
				}
				for {
					select {
					case <-s.taking:
					case <-stream.Context().Done():
						return nil
					}
					if err := stream.RecvMsg(&raw{}); err != nil {
						return nil //nolint:nilerr // the client has ended the stream
					}
				}
			},
		}},
	}
}

// raw is a message with arbitrary content of a given length.
type raw struct{ bytes int }

func (r *raw) Reset()         {}
func (r *raw) String() string { return "" }
func (r *raw) ProtoMessage()  {}

type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) ([]byte, error) {
	r, _ := v.(*raw)
	return make([]byte, r.bytes), nil
}

func (rawCodec) Unmarshal(data []byte, v any) error {
	if counted, ok := v.(*codec.Counted); ok {
		counted.Bytes, v = len(data)+5, counted.Message
	}
	r, _ := v.(*raw)
	r.bytes = len(data)
	return nil
}

const unprocessedLimit = 4 << 20

// serveSink serves a sink behind a Listener with UnprocessedBytes = unprocessedLimit.
func serveSink(t *testing.T) (s *sink, l *admission.Listener, address string) {
	t.Helper()
	return serveRequests(t, 1<<20)
}

// serveRequests is like serveSink, but with the given maximum size of a request.
func serveRequests(t *testing.T, requestBytes int64) (s *sink, l *admission.Listener, address string) {
	t.Helper()
	network := simnet.New(simnet.Options{Delay: time.Millisecond})
	port, err := network.NewProcess("127.0.0.9").Listen(t.Context(), "127.0.0.9:7420")
	require.NoError(t, err)
	networks.Store(t, network)
	t.Cleanup(func() { networks.Delete(t) })
	l = admission.New(port, admission.Options{
		Limits: func() admission.Limits {
			return admission.Limits{Connections: 100, PerAddress: 100, Handshakes: 100, HandshakeTimeout: time.Minute}
		},
		Plain: true, Logger: zap.NewNop(), UnprocessedBytes: unprocessedLimit, RequestBytes: requestBytes,
	})
	s = &sink{taking: make(chan struct{})}
	g := grpc.NewServer(append(admission.ServerOptions(), grpc.ForceServerCodec(rawCodec{}),
		grpc.InitialWindowSize(1<<20), grpc.InitialConnWindowSize(4<<20), grpc.MaxRecvMsgSize(int(4*requestBytes)))...)
	r := server.Registrar{Services: g}
	r.RegisterService(s.desc(), s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(l)
	}()
	t.Cleanup(func() {
		g.Stop()
		<-done
	})
	return s, l, port.Addr().String()
}

// networks maps each test to its network.
var networks sync.Map

// dial connects from a host of the test's network.
func dial(ctx context.Context, t *testing.T, from, to string) (net.Conn, error) {
	n, _ := networks.Load(t)
	return n.(*simnet.Network).NewProcess(from).Dial(ctx, to)
}

// take starts a call of the streaming method from a local address.
func take(t *testing.T, address, from string) grpc.ClientStream {
	t.Helper()
	return call(t, connect(t, address, from, nil))
}

// connect connects from a local address. If line is not nil, it wraps the connection.
func connect(t *testing.T, address, from string, line func(net.Conn) net.Conn) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})),
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
			c, err := dial(ctx, t, from, to)
			if err == nil && line != nil {
				c = line(c)
			}
			return c, err
		}))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func call(t *testing.T, conn *grpc.ClientConn) grpc.ClientStream {
	t.Helper()
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
		"/test.Sink/Take")
	require.NoError(t, err)
	return stream
}

// The data of a request counts until the handler receives the next request or returns.
func TestUnprocessedBytesAreCounted(t *testing.T) { synctest.Test(t, testUnprocessedBytesAreCounted) }

func testUnprocessedBytesAreCounted(t *testing.T) {
	s, l, address := serveSink(t)
	stream := take(t, address, "127.0.0.1")
	unprocessed := func(bytes int64) {
		require.Eventually(t, func() bool { return l.Stats().UnprocessedBytes == bytes }, time.Minute, time.Millisecond,
			"%d bytes", bytes)
	}
	for range 3 {
		require.NoError(t, stream.SendMsg(&raw{1000}))
	}
	unprocessed(3 * 1005)
	s.taking <- struct{}{}
	s.taking <- struct{}{} // the first request is processed
	unprocessed(2 * 1005)
	require.NoError(t, stream.CloseSend())
	close(s.taking)
	require.ErrorIs(t, stream.RecvMsg(&raw{}), io.EOF)
	unprocessed(0)
}

// The data of canceled calls and of closed connections does not count.
func TestUnprocessedBytesOfCancelledCalls(t *testing.T) {
	synctest.Test(t, testUnprocessedBytesOfCancelledCalls)
}

func testUnprocessedBytesOfCancelledCalls(t *testing.T) {
	_, l, address := serveSink(t)
	stream := take(t, address, "127.0.0.1")
	require.NoError(t, stream.SendMsg(&raw{100_000}))
	require.Eventually(t, func() bool { return l.Stats().UnprocessedBytes == 100_005 }, time.Minute, time.Millisecond)
	for _, c := range l.List() {
		_, err := l.CloseConnection(c.ID)
		require.NoError(t, err)
	}
	require.Equal(t, codes.Unavailable, status.Code(stream.RecvMsg(&raw{})))
	require.Eventually(t, func() bool { return l.Stats().UnprocessedBytes == 0 }, time.Minute, time.Millisecond)
}

// A client with incomplete requests in many calls is paused and then disconnected. In the meantime, clients from
// other addresses are served.
func TestExcessiveMemoryClosesConnection(t *testing.T) {
	synctest.Test(t, testExcessiveMemoryClosesConnection)
}

func testExcessiveMemoryClosesConnection(t *testing.T) {
	s, l, address := serveSink(t)
	holder := sendIncomplete(t, address)
	require.Eventually(t, func() bool { return l.Stats().UnprocessedBytes > unprocessedLimit }, time.Minute,
		time.Millisecond)
	start := time.Now()
	good := take(t, address, "127.0.0.3")
	go func() {
		for time.Since(start) < time.Minute {
			select {
			case s.taking <- struct{}{}: // may be a call of the client that never completes a request
			case <-t.Context().Done():
				return
			}
		}
	}()
	for l.Stats().Ended["memory"] == 0 {
		require.Less(t, l.Stats().UnprocessedBytes, int64(unprocessedLimit+4<<20))
		require.NoError(t, good.SendMsg(&raw{1000}))
		require.Less(t, time.Since(start), 30*time.Second, "the connection is still open")
		<-time.After(10 * time.Millisecond)
	}
	_, err := io.Copy(io.Discard, holder)
	require.True(t, err == nil || !isTimeout(err), "%v", err)
	require.Eventually(t, func() bool { return l.Stats().UnprocessedBytes < 100_000 }, time.Minute, time.Millisecond)
	require.NoError(t, good.SendMsg(&raw{1000}))
	require.Equal(t, uint64(1), l.Stats().Ended["memory"])
}

// A client is not disconnected because of unprocessed data while its requests wait for the node. It is disconnected
// while they wait for data from the client.
func TestBlockedRequestKeepsConnection(t *testing.T) {
	synctest.Test(t, testBlockedRequestKeepsConnection)
}

func testBlockedRequestKeepsConnection(t *testing.T) {
	s, l, address := serveSink(t)
	s.free = make(chan struct{})
	sendIncomplete(t, address)
	require.Eventually(t, func() bool { return l.Stats().UnprocessedBytes > unprocessedLimit }, time.Minute,
		time.Millisecond)
	<-time.After(4 * time.Second)
	require.Zero(t, l.Stats().Ended["memory"])
	close(s.free)
	require.Eventually(t, func() bool { return l.Stats().Ended["memory"] == 1 }, time.Minute, time.Millisecond)
}

// A client with only complete requests is not disconnected, regardless of how long their processing takes.
func TestProcessingKeepsConnection(t *testing.T) { synctest.Test(t, testProcessingKeepsConnection) }

func testProcessingKeepsConnection(t *testing.T) {
	s, l, address := serveSink(t)
	s.free = make(chan struct{})
	conn := connect(t, address, "127.0.0.2", nil)
	const calls = 5 // calls of 1 MiB each, more than unprocessedLimit in total
	answers := make(chan error, calls)
	for range calls {
		go func() { answers <- conn.Invoke(t.Context(), "/test.Sink/Work", &raw{1 << 20}, &raw{}) }()
	}
	require.Eventually(t, func() bool { return l.Stats().UnprocessedBytes > unprocessedLimit }, time.Minute,
		time.Millisecond)
	<-time.After(5 * time.Second)
	close(s.free)
	for range calls {
		require.NoError(t, <-answers)
	}
	require.Zero(t, l.Stats().Ended["memory"])
	require.Eventually(t, func() bool { return l.Stats().UnprocessedBytes == 0 }, time.Minute, time.Millisecond)
}

// slowLine is a connection that sends the first bytes without delay and later bytes at a limited rate.
type slowLine struct {
	net.Conn

	fast, perSecond int
}

func (l *slowLine) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var w int
		if l.fast <= 0 {
			<-time.After(50 * time.Millisecond)
		}
		w, err = l.Conn.Write(b[n:min(len(b), n+max(l.fast, l.perSecond/20))])
		l.fast -= w
		n += w
	}
	return n, err
}

// A request that is larger than UnprocessedBytes can arrive over a slow connection.
func TestSlowRequestKeepsConnection(t *testing.T) { synctest.Test(t, testSlowRequestKeepsConnection) }

func testSlowRequestKeepsConnection(t *testing.T) {
	s, l, address := serveRequests(t, 2*unprocessedLimit)
	stream := call(t, connect(t, address, "127.0.0.2", func(c net.Conn) net.Conn {
		return &slowLine{Conn: c, fast: unprocessedLimit + 256<<10, perSecond: 256 << 10}
	}))
	go func() { _ = stream.SendMsg(&raw{unprocessedLimit + 2<<20}) }()
	s.taking <- struct{}{}
	start := time.Now()
	s.taking <- struct{}{} // the request has arrived
	require.Greater(t, time.Since(start), 5*time.Second)
	require.Zero(t, l.Stats().Ended["memory"])
}

func isTimeout(err error) bool {
	timeout, ok := err.(net.Error) //nolint:errorlint // of io.Copy
	return ok && timeout.Timeout()
}

// sendIncomplete sends incomplete requests in 64 calls, as fast as the node reads them.
func sendIncomplete(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := dial(t.Context(), t, "127.0.0.2", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	go sendIncompleteCalls(conn)
	return conn
}

func sendIncompleteCalls(conn net.Conn) {
	h := newRawClient(conn)
	for i := range 64 {
		h.begin(uint32(2*i + 1))
		_ = h.WriteData(uint32(2*i+1), false, binary.BigEndian.AppendUint32([]byte{0}, 2<<20))
	}
	for range 60 {
		for i := range 64 {
			if h.WriteData(uint32(2*i+1), false, make([]byte, 16<<10)) != nil {
				return
			}
		}
	}
}

// rawClient is a raw HTTP/2 client.
type rawClient struct {
	*http2.Framer

	fields bytes.Buffer
	hpack  *hpack.Encoder
}

func newRawClient(conn net.Conn) *rawClient {
	_, _ = io.WriteString(conn, http2.ClientPreface)
	h := &rawClient{Framer: http2.NewFramer(conn, conn)}
	h.hpack = hpack.NewEncoder(&h.fields)
	_ = h.WriteSettings()
	return h
}

// begin sends the header of a call.
func (h *rawClient) begin(id uint32) {
	h.fields.Reset()
	for _, f := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: "/test.Sink/Take"},
		{Name: ":authority", Value: "node"},
		{Name: "content-type", Value: "application/grpc"},
	} {
		_ = h.hpack.WriteField(f) // writes to memory
	}
	_ = h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: h.fields.Bytes(), EndHeaders: true})
}

// A connection that gRPC closes because of too many pings counts as a flood.
func TestPingFlood(t *testing.T) { synctest.Test(t, testPingFlood) }

func testPingFlood(t *testing.T) {
	_, l, address := serveSink(t)
	conn, err := dial(t.Context(), t, "127.0.0.1", address)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	h := newRawClient(conn)
	for range 10 {
		_ = h.WritePing(false, [8]byte{1})
	}
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err = io.Copy(io.Discard, conn)
	require.True(t, err == nil || !isTimeout(err), "%v", err)
	require.Eventually(t, func() bool { return l.Stats().Ended["flood"] == 1 }, time.Minute, time.Millisecond)
}
