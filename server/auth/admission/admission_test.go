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

// testListener is a Listener with test connections from arbitrary addresses.
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

// visitor is one connection with both ends.
type visitor struct {
	t              *testing.T
	theirs, inside net.Conn // inside is nil if refused
}

func (d *testListener) visit(from string) *visitor {
	d.t.Helper()
	ours, theirs := net.Pipe()
	v := &visitor{t: d.t, theirs: theirs}
	d.incoming <- remoteConn{ours, address(from)}
	synctest.Wait()
	select {
	case v.inside = <-d.accepted:
	default:
		time.Sleep(time.Second) //nolint:forbidigo // simulated time: it may be held for a moment
		synctest.Wait()
		require.True(d.t, v.gone(), "it was rejected, and must be closed")
	}
	return v
}

// gone reports whether the connection was closed.
func (v *visitor) gone() bool {
	_ = v.theirs.SetReadDeadline(time.Now().Add(time.Millisecond)) // fails if the connection was closed
	_, err := v.theirs.Read(make([]byte, 1))
	return errors.Is(err, io.EOF)
}

// conn returns the Conn that a call finds.
func (v *visitor) conn() *admission.Conn {
	return admission.FromContext(peer.NewContext(v.t.Context(), &peer.Peer{Addr: v.inside.RemoteAddr()}))
}

// At the limit of connections, a new connection is refused unless one without calls can be evicted.
func TestLimitOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, admission.Limits{Connections: 2, PerAddress: 8, HandshakeTimeout: time.Minute}, "")
		a, b := d.visit("10.0.0.1:1"), d.visit("10.0.0.2:1")
		require.NotNil(t, a.inside)
		require.NotNil(t, b.inside)
		require.Nil(t, d.visit("10.0.0.3:1").inside, "no free slot, and the others are too new to be evicted")
		require.EqualValues(t, 1, d.Stats().Ended["full"])
		a.conn().Authenticated(false)
		time.Sleep(2 * time.Second) //nolint:forbidigo // simulated time
		c := d.visit("10.0.0.3:1")
		require.NotNil(t, c.inside, "the connection without calls is evicted")
		require.True(t, b.gone())
		require.False(t, a.gone())
		c.conn().Authenticated(false)
		time.Sleep(2 * time.Second) //nolint:forbidigo // simulated time
		require.Nil(t, d.visit("10.0.0.4:1").inside, "both are running")
		require.NoError(t, a.inside.Close())
		require.NotNil(t, d.visit("10.0.0.4:1").inside)
		require.EqualValues(t, 2, d.Stats().Open)
		require.EqualValues(t, 4, d.Stats().Accepted)
	})
}

// The connections of an address are limited; an IPv6 network counts as one address. Refusals are logged at a limited
// rate.
func TestLimitOfAnAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, admission.Limits{Connections: 100, PerAddress: 2, HandshakeTimeout: time.Minute}, "")
		for i, from := range []string{"10.0.0.1:1", "10.0.0.1:2", "[2001:db8::1]:1", "[2001:db8::2]:1"} {
			v := d.visit(from)
			require.NotNil(t, v.inside, i)
			v.conn().Authenticated(false)
		}
		require.Nil(t, d.visit("10.0.0.1:3").inside)
		require.Nil(t, d.visit("[2001:db8::3]:1").inside, "a network of IPv6 is one address")
		require.EqualValues(t, 2, d.Stats().Ended["address-full"])
		require.NotNil(t, d.visit("10.0.0.2:1").inside, "others are not concerned")
		require.NotNil(t, d.visit("[2001:db8:0:1::3]:1").inside)
		require.Equal(t, 1, d.logs.Len(), "logging is rate-limited")
	})
}

// A connection without an admitted call is closed after HandshakeTimeout, unless a call is in progress.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, admission.Limits{Connections: 100, PerAddress: 100, HandshakeTimeout: 10 * time.Second}, "")
		silent, known, asks := d.visit("10.0.0.1:1"), d.visit("10.0.0.1:2"), d.visit("10.0.0.1:3")
		known.conn().Authenticated(false)
		asks.conn().Begin()
		time.Sleep(9 * time.Second) //nolint:forbidigo // simulated time
		require.False(t, silent.gone())
		time.Sleep(2 * time.Second) //nolint:forbidigo // simulated time
		synctest.Wait()
		require.True(t, silent.gone())
		require.False(t, known.gone())
		require.False(t, asks.gone(), "a call is in progress")
		asks.conn().End()
		time.Sleep(11 * time.Second) //nolint:forbidigo // simulated time
		synctest.Wait()
		require.True(t, asks.gone())
		require.False(t, known.gone())
		require.EqualValues(t, 2, d.Stats().Ended["handshake-timeout"])
		require.EqualValues(t, 1, d.Stats().Open)
		require.NoError(t, silent.inside.Close(), "a second call has no effect")
		require.EqualValues(t, 1, d.Stats().Open)
	})
}

// Connections without a call use up the attempts of their address; a call refunds the attempt.
func TestAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, admission.Limits{Connections: 100, PerAddress: 8, HandshakeTimeout: time.Minute}, "")
		for range 100 {
			v := d.visit("10.0.0.1:1")
			require.NotNil(t, v.inside)
			v.conn().Authenticated(false)
			require.NoError(t, v.inside.Close())
		}
		for range 7 { // a connection that ends without a call costs slightly more than one attempt
			require.NoError(t, d.visit("10.0.0.1:1").inside.Close())
		}
		require.Nil(t, d.visit("10.0.0.1:1").inside)
		require.EqualValues(t, 1, d.Stats().Ended["too-many"])
		require.NotNil(t, d.visit("10.0.0.2:1").inside)
		require.NotNil(t, d.visit("10.0.0.1:1").inside, "a quarter is available again")
	})
}

// A connection that ends without a call costs its address more than one with a call. An address with only such
// connections may open fewer and fewer; its open connections are unaffected.
func TestConnectionsWithoutCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, admission.Limits{Connections: 5000, PerAddress: 2048, HandshakeTimeout: time.Minute}, "")
		good := d.visit("10.0.0.1:1")
		good.conn().Authenticated(false)
		breakOff := func() (accepted int) {
			for range 1000 {
				if v := d.visit("10.0.0.1:2"); v.inside != nil {
					require.NoError(t, v.inside.Close())
					accepted++
				} else {
					break
				}
			}
			return accepted
		}
		require.InDelta(t, 2048/9, breakOff(), 2)
		start := d.Stats().Accepted
		for range 60 { // each refusal takes a second of simulated time
			breakOff()
		}
		require.Less(t, d.Stats().Accepted-start, uint64(60*512/8), "an eighth of the limit with calls")
		require.False(t, good.gone())
		require.NotNil(t, d.visit("10.0.0.2:1").inside)
	})
}

// The number of connections without a call is limited over all addresses; addresses with admitted connections have a
// higher limit.
func TestHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, admission.Limits{
			Connections: 100, PerAddress: 100, Handshakes: 4, HandshakeTimeout: time.Minute,
		}, "")
		known := d.visit("10.0.0.1:1")
		known.conn().Authenticated(false)
		var held []*visitor
		for i := range 4 {
			held = append(held, d.visit(fmt.Sprintf("10.0.1.%d:1", i)))
			require.NotNil(t, held[i].inside)
		}
		require.Nil(t, d.visit("10.0.2.1:1").inside, "the count is the same")
		require.EqualValues(t, 1, d.Stats().Ended["handshakes"])
		// The refusal took a second, so the oldest connections may be evicted now.
		require.NotNil(t, d.visit("10.0.2.1:1").inside)
		require.EqualValues(t, 1, d.Stats().Ended["evicted"])
		require.False(t, known.gone())
	})
}

// An address with admitted connections can connect although unauthenticated clients fill the handshake slots.
func TestHandshakesOfAuthenticatedClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, admission.Limits{
			Connections: 100, PerAddress: 100, Handshakes: 4, HandshakeTimeout: time.Minute,
		}, "")
		d.visit("10.0.0.1:1").conn().Authenticated(false)
		for i := range 4 {
			require.NotNil(t, d.visit(fmt.Sprintf("10.0.1.%d:1", i)).inside)
		}
		require.NotNil(t, d.visit("10.0.0.1:2").inside)
		require.Nil(t, d.visit("10.0.0.1:3").inside, "at most a quarter more")
	})
}

// A listener that refuses thousands of connections per second slows down.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, admission.Limits{Connections: 16, PerAddress: 8, HandshakeTimeout: time.Hour}, "")
		for i := range 8 {
			d.visit(fmt.Sprintf("10.0.0.1:%d", i)).conn().Authenticated(false)
		}
		start := time.Now()
		for range 4400 {
			ours, _ := net.Pipe()
			d.incoming <- remoteConn{ours, address("10.0.0.1:1")}
		}
		require.InDelta(t, time.Second, time.Since(start), float64(100*time.Millisecond),
			"a burst of 400, then 4,000 per second")
		<-time.After(time.Second) // simulated; the last connection is accepted but not yet refused
		synctest.Wait()
		require.EqualValues(t, 4400, d.Stats().Ended["address-full"]+d.Stats().Ended["too-many"])
	})
}

// The other node can connect regardless of the number of connections; other clients with its address are closed.
func TestPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, admission.Limits{Connections: 1, PerAddress: 1, HandshakeTimeout: time.Minute}, "10.0.0.9")
		first := d.visit("10.0.0.9:1")
		first.conn().Authenticated(false)
		client, other := d.visit("10.0.0.9:2"), d.visit("10.0.0.9:3")
		require.NotNil(t, client.inside)
		require.NotNil(t, other.inside)
		other.conn().Authenticated(true)
		client.conn().Authenticated(false)
		require.Nil(t, d.visit("10.0.0.1:1").inside)
		time.Sleep(2 * time.Second) //nolint:forbidigo // simulated time
		synctest.Wait()
		require.True(t, client.gone(), "a client in a slot of the other node")
		require.False(t, other.gone())
		require.False(t, first.gone())
	})
}

// A connection with calls that fail authentication is closed, unless an earlier call was admitted.
func TestUnauthenticatedClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, admission.Limits{Connections: 10, PerAddress: 10, HandshakeTimeout: time.Minute}, "")
		unknown, known := d.visit("10.0.0.1:1"), d.visit("10.0.0.1:2")
		known.conn().Authenticated(false)
		for range 20 {
			unknown.conn().AuthenticationFailed()
			known.conn().AuthenticationFailed()
		}
		require.True(t, unknown.gone())
		require.False(t, known.gone())
		require.EqualValues(t, 1, d.Stats().Ended["unauthenticated"])
	})
}

// The methods of a nil Conn do nothing.
func TestNilConnDoesNothing(t *testing.T) {
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

// Over a real connection, only clients that cancel calls or change settings too often are closed, regardless of how the
// bytes are split.
func TestFloods(t *testing.T) {
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
		{"frames of no type", 200, 500, true, true},
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
					_, _ = client.Write(f[:5]) // in pieces
					if _, err := client.Write(f[5:]); err != nil {
						return
					}
				}
				_ = client.Close()
			}()
			inside, err := l.Accept()
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, struct{ io.Reader }{inside}) // as gRPC reads
			require.Equal(t, c.flood, err != nil, "%v", err)
			require.Equal(t, c.flood, l.Stats().Ended["flood"] == 1)
		})
	}
}
