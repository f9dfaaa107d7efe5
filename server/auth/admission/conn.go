// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"container/list"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/peer"
)

// Conn is an admitted connection. A nil Conn represents a connection that no Listener has accepted. Exported methods
// of a nil Conn have no effect, except CloseForMemory, which requires a Conn.
type Conn struct {
	l      *Listener
	source *source
	remote Remote
	since  time.Time
	timer  *time.Timer
	expiry atomic.Pointer[time.Timer] // closes the connection when the client certificate expires; nil without one
	close  func() error
	over   chan struct{} // closed when the connection is closed
	once   sync.Once
	err    error // result of close
	id     uint64

	protocol string                 // protocol of the port; empty for gRPC
	named    atomic.Pointer[string] // name sent by the client in its protocol

	unprocessed connUnprocessed

	caller                  atomic.Pointer[Caller]
	bytesIn, bytesOut       atomic.Uint64
	messagesIn, messagesOut atomic.Uint64 // without messages of open streams, which Stream counts

	streamsMu sync.Mutex // guards streams
	streams   map[*Stream]struct{}

	known atomic.Bool  // a call has passed the auth interceptor
	wrong atomic.Int32 // number of calls that failed authentication
	calls atomic.Int32 // number of calls in progress that require no authentication

	// The fields below are guarded by Listener.mu.
	element  *list.Element // element in source.new; nil if the connection is not new
	reserved bool          // in a reserved slot, and not authenticated as the other node
}

// Remote is the remote address of a connection. It references the connection's Conn.
type Remote struct {
	net.Addr

	conn *Conn
}

// FromContext returns the connection of a call. It returns nil if no Listener has accepted the connection.
func FromContext(ctx context.Context) *Conn {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	if r, ok := p.Addr.(*Remote); ok {
		return r.conn
	}
	return nil
}

// Authenticated records that a call has passed the auth interceptor. isPeer reports whether the call is reserved for
// the other node. In a reserved slot, other calls have no effect.
func (c *Conn) Authenticated(isPeer bool) {
	if c == nil || c.known.Load() && !isPeer {
		return
	}
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.reserved && isPeer {
		c.reserved = false
		c.l.reserved--
	}
	if c.reserved || c.known.Swap(true) {
		return
	}
	c.timer.Stop()
	c.removeFromNew()
	c.source.tries = min(c.source.tries+1, float64(c.l.o.Limits().PerAddress))
}

// AuthenticationFailed records a call with invalid credentials. A connection without an admitted call is closed
// after maxFailures such calls.
func (c *Conn) AuthenticationFailed() {
	if c == nil || c.known.Load() || c.wrong.Add(1) != maxFailures {
		return
	}
	c.closeFor(Unauthenticated)
}

// Begin records the start of a call that requires no authentication. The connection does not time out until End is
// called, but it is not marked as authenticated.
func (c *Conn) Begin() {
	if c != nil {
		c.calls.Add(1)
	}
}

// End records the end of a call for which Begin was called.
func (c *Conn) End() {
	if c != nil {
		c.calls.Add(-1)
	}
}

// removeFromNew records that the connection is no longer new. The caller must hold Listener.mu.
func (c *Conn) removeFromNew() {
	if c.element != nil {
		c.source.new.Remove(c.element)
		c.element = nil
		c.l.fresh--
	}
}

func (c *Conn) expired(timeout time.Duration) {
	if c.known.Load() {
		return
	}
	if c.calls.Load() > 0 {
		c.l.mu.Lock() // the timer may not be stored yet
		defer c.l.mu.Unlock()
		c.timer.Reset(timeout)
		return
	}
	c.closeFor(HandshakeTimedOut)
}

func (c *Conn) closeFor(reason Reason) {
	c.l.refused(reason, c.source.host, c.l.o.Limits())
	_ = c.end() // the error is irrelevant, because the connection is abandoned
}

// closeAndCharge is like closeFor, but also subtracts 1/fraction of the maximum number of attempts from those of the
// address, which delays new connections.
func (c *Conn) closeAndCharge(reason Reason, fraction float64) {
	c.l.mu.Lock()
	c.source.charge(fraction, c.l.o.Limits())
	c.l.mu.Unlock()
	c.closeFor(reason)
}

// end closes the connection and frees its slot. Further calls have no effect.
func (c *Conn) end() error {
	c.once.Do(func() {
		c.timer.Stop()
		c.err = c.close()
		close(c.over)
		if timer := c.expiry.Load(); timer != nil {
			timer.Stop()
		}
		c.connEnded()
		l := c.l
		limits, now := l.o.Limits(), time.Now()
		l.mu.Lock()
		defer l.mu.Unlock()
		c.removeFromNew()
		if c.reserved {
			c.reserved = false
			l.reserved--
		}
		if !c.known.Load() {
			c.source.charge(abandonedFraction, limits)
		}
		c.source.open--
		l.open--
		delete(l.conns, c.id)
		l.evict(c.source, limits, now)
	})
	return c.err
}

// wire parses the HTTP/2 frames that gRPC reads and writes. It buffers the received data: the bytes returned last
// belong to the frame that gRPC processes.
type wire struct {
	conn   *Conn
	in     frames
	out    frameHeaders
	buffer []byte // the unread part is from
	from   []byte
	err    error // error of the last read, returned after the buffered bytes
}

const wireBytes = 32 << 10 // size of the buffer, as in gRPC

// read reads from inner into b. It delays, and finally closes, the connection of a client that exceeds a limit.
func (w *wire) read(inner net.Conn, b []byte) (int, error) {
	if len(w.from) == 0 {
		if w.err != nil {
			return 0, w.err
		}
		if w.buffer == nil {
			w.buffer = make([]byte, wireBytes)
		}
		n, err := inner.Read(w.buffer)
		if n == 0 {
			return 0, err //nolint:wrapcheck // a net.OpError has the details
		}
		w.from, w.err = w.buffer[:n], err
		w.conn.await()
	}
	n := copy(b, w.from)
	w.from = w.from[n:]
	pause, ok := w.in.pass(w.conn, b[:n])
	if !ok {
		w.conn.closeAndCharge(Flood, floodFraction)
		return 0, errFlood
	}
	if pause > 0 {
		timer := time.NewTimer(min(pause, longestPause))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-w.conn.over:
		}
	}
	return n, nil
}

// write writes b to inner, and detects in b the calls that gRPC ends. If gRPC closes the connection because of too many
// pings, write closes it as a flood.
func (w *wire) write(inner net.Conn, b []byte) (int, error) {
	n, err := inner.Write(b)
	w.out.passOut(w.conn, b[:n])
	return n, err //nolint:wrapcheck // a net.OpError has the details
}

// tcpConn wraps a TCP connection and keeps its methods. plainConn wraps other connections. wire is nil if another
// connection, such as securedConn, parses the frames, or if the protocol is not HTTP/2.
type (
	tcpConn struct {
		*net.TCPConn

		conn *Conn
		wire *wire
	}
	plainConn struct {
		net.Conn

		conn *Conn
		wire *wire
	}
)

func (c *tcpConn) Read(b []byte) (int, error)  { return c.conn.read(c.TCPConn, c.wire, b) }
func (c *tcpConn) Write(b []byte) (int, error) { return c.conn.write(c.TCPConn, c.wire, b) }
func (c *tcpConn) Close() error                { return c.conn.end() }
func (c *tcpConn) RemoteAddr() net.Addr        { return &c.conn.remote }

func (c *plainConn) Read(b []byte) (int, error)  { return c.conn.read(c.Conn, c.wire, b) }
func (c *plainConn) Write(b []byte) (int, error) { return c.conn.write(c.Conn, c.wire, b) }
func (c *plainConn) Close() error                { return c.conn.end() }
func (c *plainConn) RemoteAddr() net.Addr        { return &c.conn.remote }

func (c *Conn) read(inner net.Conn, w *wire, b []byte) (n int, err error) {
	if w != nil {
		n, err = w.read(inner, b)
	} else {
		n, err = inner.Read(b)
	}
	c.bytesIn.Add(uint64(n))
	return n, err //nolint:wrapcheck // a net.OpError has the details
}

func (c *Conn) write(inner net.Conn, w *wire, b []byte) (n int, err error) {
	if w != nil {
		n, err = w.write(inner, b)
	} else {
		n, err = inner.Write(b)
	}
	c.bytesOut.Add(uint64(n))
	return n, err //nolint:wrapcheck // a net.OpError has the details
}
