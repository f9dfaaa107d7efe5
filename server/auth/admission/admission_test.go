// SPDX-License-Identifier: Apache-2.0

package admission_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc/peer"

	"github.com/lockstep-mq/lockstep/server/auth/admission"
)

// testListener is a Listener that accepts test connections from arbitrary addresses.
type testListener struct {
	t        *testing.T
	incoming chan net.Conn
	accepted chan net.Conn
	*admission.Listener

	limits admission.Limits
	logs   *observer.ObservedLogs
}

func (d *testListener) Accept() (net.Conn, error) {
	c, ok := <-d.incoming
	if !ok {
		return nil, errors.New("closed")
	}
	return c, nil
}

type remoteConn struct {
	net.Conn

	remote net.Addr
}

func (c remoteConn) RemoteAddr() net.Addr { return c.remote }

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

func open(t *testing.T, limits admission.Limits, peerHost string) *testListener {
	t.Helper()
	if limits.Handshakes == 0 {
		limits.Handshakes = 1000
	}
	core, logs := observer.New(zapcore.WarnLevel)
	d := &testListener{t: t, incoming: make(chan net.Conn), accepted: make(chan net.Conn, 1), limits: limits, logs: logs}
	d.Listener = admission.New(fakeListener{d}, admission.Options{
		Limits: func() admission.Limits { return d.limits }, Logger: zap.New(core),
		IsPeer: func(host string) bool { return host == peerHost },
	})
	go func() {
		for {
			c, err := d.Listener.Accept()
			if err != nil {
				return
			}
			d.accepted <- c
		}
	}()
	t.Cleanup(func() { close(d.incoming) })
	return d
}

type fakeListener struct{ d *testListener }

func (l fakeListener) Accept() (net.Conn, error) { return l.d.Accept() }
func (l fakeListener) Addr() net.Addr            { return address("here") }
func (l fakeListener) Close() error              { return nil }

// testConn contains both ends of a connection.
type testConn struct {
	t              *testing.T
	client, server net.Conn // server is nil if the listener refused the connection
}

func (d *testListener) connectFrom(from string) *testConn {
	d.t.Helper()
	server, client := net.Pipe()
	v := &testConn{t: d.t, client: client}
	d.incoming <- remoteConn{server, address(from)}
	synctest.Wait()
	select {
	case v.server = <-d.accepted:
	default:
		time.Sleep(time.Second) //nolint:forbidigo // simulated time: the listener may delay closing
		synctest.Wait()
		require.True(d.t, v.closed(), "a refused connection is closed")
	}
	return v
}

// closed reports whether the connection was closed.
func (v *testConn) closed() bool {
	_ = v.client.SetReadDeadline(time.Now().Add(time.Millisecond)) // an error means that the connection was closed
	_, err := v.client.Read(make([]byte, 1))
	return errors.Is(err, io.EOF)
}

// conn returns the Conn in the context of a call on the connection.
func (v *testConn) conn() *admission.Conn {
	return admission.FromContext(peer.NewContext(v.t.Context(), &peer.Peer{Addr: v.server.RemoteAddr()}))
}

// At the limit of connections, a new connection is refused unless a connection without calls can be evicted.
func TestConnectionLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, admission.Limits{Connections: 2, PerAddress: 8, HandshakeTimeout: time.Minute}, "")
		a, b := d.connectFrom("10.0.0.1:1"), d.connectFrom("10.0.0.2:1")
		require.NotNil(t, a.server)
		require.NotNil(t, b.server)
		require.Nil(t, d.connectFrom("10.0.0.3:1").server, "no connection is old enough to be evicted")
		require.EqualValues(t, 1, d.Stats().Ended["full"])
		a.conn().Authenticated(false)
		time.Sleep(2 * time.Second) //nolint:forbidigo // simulated time
		c := d.connectFrom("10.0.0.3:1")
		require.NotNil(t, c.server, "the connection without calls is evicted")
		require.True(t, b.closed())
		require.False(t, a.closed())
		c.conn().Authenticated(false)
		time.Sleep(2 * time.Second) //nolint:forbidigo // simulated time
		require.Nil(t, d.connectFrom("10.0.0.4:1").server, "both connections have admitted calls")
		require.NoError(t, a.server.Close())
		require.NotNil(t, d.connectFrom("10.0.0.4:1").server)
		require.EqualValues(t, 2, d.Stats().Open)
		require.EqualValues(t, 4, d.Stats().Accepted)
	})
}

// The number of connections from an address is limited. An IPv6 network counts as one address. The logs of
// refusals are rate-limited.
func TestConnectionLimitPerAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, admission.Limits{Connections: 100, PerAddress: 2, HandshakeTimeout: time.Minute}, "")
		for i, from := range []string{"10.0.0.1:1", "10.0.0.1:2", "[2001:db8::1]:1", "[2001:db8::2]:1"} {
			v := d.connectFrom(from)
			require.NotNil(t, v.server, i)
			v.conn().Authenticated(false)
		}
		require.Nil(t, d.connectFrom("10.0.0.1:3").server)
		require.Nil(t, d.connectFrom("[2001:db8::3]:1").server, "an IPv6 network counts as one address")
		require.EqualValues(t, 2, d.Stats().Ended["address-full"])
		require.NotNil(t, d.connectFrom("10.0.0.2:1").server, "other addresses are unaffected")
		require.NotNil(t, d.connectFrom("[2001:db8:0:1::3]:1").server)
		require.Equal(t, 1, d.logs.Len(), "logging is rate-limited")
	})
}

// A connection without an admitted call is closed after HandshakeTimeout, unless a call is in progress.
func TestHandshakeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, admission.Limits{Connections: 100, PerAddress: 100, HandshakeTimeout: 10 * time.Second}, "")
		silent, known, calling := d.connectFrom("10.0.0.1:1"), d.connectFrom("10.0.0.1:2"), d.connectFrom("10.0.0.1:3")
		known.conn().Authenticated(false)
		calling.conn().Begin()
		time.Sleep(9 * time.Second) //nolint:forbidigo // simulated time
		require.False(t, silent.closed())
		time.Sleep(2 * time.Second) //nolint:forbidigo // simulated time
		synctest.Wait()
		require.True(t, silent.closed())
		require.False(t, known.closed())
		require.False(t, calling.closed(), "a call is in progress")
		calling.conn().End()
		time.Sleep(11 * time.Second) //nolint:forbidigo // simulated time
		synctest.Wait()
		require.True(t, calling.closed())
		require.False(t, known.closed())
		require.EqualValues(t, 2, d.Stats().Ended["handshake-timeout"])
		require.EqualValues(t, 1, d.Stats().Open)
		require.NoError(t, silent.server.Close(), "a second call has no effect")
		require.EqualValues(t, 1, d.Stats().Open)
	})
}

// A connection without a call uses an attempt of its address. Its first call refunds the attempt.
func TestConnectionAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, admission.Limits{Connections: 100, PerAddress: 8, HandshakeTimeout: time.Minute}, "")
		for range 100 {
			v := d.connectFrom("10.0.0.1:1")
			require.NotNil(t, v.server)
			v.conn().Authenticated(false)
			require.NoError(t, v.server.Close())
		}
		for range 7 { // a connection that ends without a call costs slightly more than one attempt
			require.NoError(t, d.connectFrom("10.0.0.1:1").server.Close())
		}
		require.Nil(t, d.connectFrom("10.0.0.1:1").server)
		require.EqualValues(t, 1, d.Stats().Ended["too-many"])
		require.NotNil(t, d.connectFrom("10.0.0.2:1").server)
		require.NotNil(t, d.connectFrom("10.0.0.1:1").server, "a quarter of the attempts is refilled")
	})
}

// A connection that ends without a call costs its address more than one attempt. Therefore an address with only
// such connections may open fewer connections over time. Its open connections are not affected.
func TestAbandonedConnectionsReduceAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, admission.Limits{Connections: 5000, PerAddress: 2048, HandshakeTimeout: time.Minute}, "")
		good := d.connectFrom("10.0.0.1:1")
		good.conn().Authenticated(false)
		connectWithoutCall := func() (accepted int) {
			for range 1000 {
				if v := d.connectFrom("10.0.0.1:2"); v.server != nil {
					require.NoError(t, v.server.Close())
					accepted++
				} else {
					break
				}
			}
			return accepted
		}
		require.InDelta(t, 2048/9, connectWithoutCall(), 2)
		start := d.Stats().Accepted
		for range 60 { // each refusal takes a second of simulated time
			connectWithoutCall()
		}
		require.Less(t, d.Stats().Accepted-start, uint64(60*512/8), "an eighth of the rate of connections with calls")
		require.False(t, good.closed())
		require.NotNil(t, d.connectFrom("10.0.0.2:1").server)
	})
}

// The number of connections without a call is limited across all addresses.
func TestHandshakeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, admission.Limits{
			Connections: 100, PerAddress: 100, Handshakes: 4, HandshakeTimeout: time.Minute,
		}, "")
		known := d.connectFrom("10.0.0.1:1")
		known.conn().Authenticated(false)
		var held []*testConn
		for i := range 4 {
			held = append(held, d.connectFrom(fmt.Sprintf("10.0.1.%d:1", i)))
			require.NotNil(t, held[i].server)
		}
		require.Nil(t, d.connectFrom("10.0.2.1:1").server, "the handshake limit is reached")
		require.EqualValues(t, 1, d.Stats().Ended["handshakes"])
		// The refusal took a second, so the oldest connections may be evicted now.
		require.NotNil(t, d.connectFrom("10.0.2.1:1").server)
		require.EqualValues(t, 1, d.Stats().Ended["evicted"])
		require.False(t, known.closed())
	})
}

// An address with admitted connections can open connections even if unauthenticated clients use all handshake
// slots.
func TestHandshakesOfAuthenticatedClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, admission.Limits{
			Connections: 100, PerAddress: 100, Handshakes: 4, HandshakeTimeout: time.Minute,
		}, "")
		d.connectFrom("10.0.0.1:1").conn().Authenticated(false)
		for i := range 4 {
			require.NotNil(t, d.connectFrom(fmt.Sprintf("10.0.1.%d:1", i)).server)
		}
		require.NotNil(t, d.connectFrom("10.0.0.1:2").server)
		require.Nil(t, d.connectFrom("10.0.0.1:3").server, "the limit is exceeded by at most a quarter")
	})
}

// A listener that refuses thousands of connections per second slows down its Accept calls.
func TestAcceptSlowsAfterRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, admission.Limits{Connections: 16, PerAddress: 8, HandshakeTimeout: time.Hour}, "")
		for i := range 8 {
			d.connectFrom(fmt.Sprintf("10.0.0.1:%d", i)).conn().Authenticated(false)
		}
		start := time.Now()
		for range 4400 {
			ours, _ := net.Pipe()
			d.incoming <- remoteConn{ours, address("10.0.0.1:1")}
		}
		require.InDelta(t, time.Second, time.Since(start), float64(100*time.Millisecond),
			"a burst of 400, then 4,000 per second")
		<-time.After(time.Second) // simulated time; the last connection is accepted but not refused yet
		synctest.Wait()
		require.EqualValues(t, 4400, d.Stats().Ended["address-full"]+d.Stats().Ended["too-many"])
	})
}

// The other node can connect even if the limits are reached. Other clients from the address of that node are
// disconnected if they use the reserved slots.
func TestPeerConnectsAtLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, admission.Limits{Connections: 1, PerAddress: 1, HandshakeTimeout: time.Minute}, "10.0.0.9")
		first := d.connectFrom("10.0.0.9:1")
		first.conn().Authenticated(false)
		client, other := d.connectFrom("10.0.0.9:2"), d.connectFrom("10.0.0.9:3")
		require.NotNil(t, client.server)
		require.NotNil(t, other.server)
		other.conn().Authenticated(true)
		client.conn().Authenticated(false)
		require.Nil(t, d.connectFrom("10.0.0.1:1").server)
		time.Sleep(2 * time.Second) //nolint:forbidigo // simulated time
		synctest.Wait()
		require.True(t, client.closed(), "a client in a slot reserved for the other node")
		require.False(t, other.closed())
		require.False(t, first.closed())
	})
}

// A connection with repeated authentication failures is closed, unless one of its calls was admitted.
func TestAuthenticationFailuresCloseConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, admission.Limits{Connections: 10, PerAddress: 10, HandshakeTimeout: time.Minute}, "")
		unknown, known := d.connectFrom("10.0.0.1:1"), d.connectFrom("10.0.0.1:2")
		known.conn().Authenticated(false)
		for range 20 {
			unknown.conn().AuthenticationFailed()
			known.conn().AuthenticationFailed()
		}
		require.True(t, unknown.closed())
		require.False(t, known.closed())
		require.EqualValues(t, 1, d.Stats().Ended["unauthenticated"])
	})
}

// The methods of a nil Conn have no effect.
func TestNilConn(t *testing.T) {
	c := admission.FromContext(context.Background())
	require.Nil(t, c)
	c.Authenticated(true)
	c.AuthenticationFailed()
	c.Begin()
	c.End()
}

// frame returns an HTTP/2 frame header with a payload.
func frame(kind byte, payload int) []byte {
	b := make([]byte, 9+payload)
	b[0], b[1], b[2], b[3] = byte(payload>>16), byte(payload>>8), byte(payload), kind
	return b
}

// A client that sends too many RST_STREAM, SETTINGS, PRIORITY or unknown frames is disconnected, regardless of
// how the bytes are split. The test uses a TCP connection.
func TestFrameFloods(t *testing.T) {
	for _, c := range []struct {
		name  string
		kind  byte
		count int
		plain bool
		flood bool
	}{
		{"data", 0, 10_000, true, false},
		{"headers", 1, 10_000, true, false},
		{"some resets", 3, 400, true, false},
		{"resets", 3, 4_000, true, true},
		{"resets within TLS", 3, 4_000, false, false},
		{"settings", 4, 500, true, true},
		{"priorities", 2, 500, true, true},
		{"frames of unknown type", 200, 500, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			raw, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer func() { _ = raw.Close() }()
			l := admission.New(raw, admission.Options{
				Limits: func() admission.Limits {
					return admission.Limits{Connections: 10, PerAddress: 10, Handshakes: 10, HandshakeTimeout: time.Minute}
				},
				Plain: c.plain, Logger: zap.NewNop(),
			})
			client, err := net.Dial("tcp", raw.Addr().String())
			require.NoError(t, err)
			defer func() { _ = client.Close() }()
			go func() {
				_, _ = client.Write(make([]byte, 24))
				for i := range c.count {
					f := frame(c.kind, i%300)
					_, _ = client.Write(f[:5]) // sent in pieces
					if _, err := client.Write(f[5:]); err != nil {
						return
					}
				}
				_ = client.Close()
			}()
			accepted, err := l.Accept()
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, struct{ io.Reader }{accepted}) // as gRPC reads
			require.Equal(t, c.flood, err != nil, "%v", err)
			require.Equal(t, c.flood, l.Stats().Ended["flood"] == 1)
		})
	}
}
