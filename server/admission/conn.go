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

// Conn is a connection that was let in. A nil one is of a call that came another way; its methods do nothing.
type Conn struct {
	l      *Listener
	source *source
	remote Remote
	since  time.Time
	timer  *time.Timer
	expiry atomic.Pointer[time.Timer] // of the certificate of its client; nil without
	close  func() error
	over   chan struct{} // closed with it
	once   sync.Once
	err    error // of close
	id     uint64

	protocol string                 // empty: gRPC
	named    atomic.Pointer[string] // what the client calls itself in a protocol of its own

	ahead aheadOf

	caller                  atomic.Pointer[Caller]
	bytesIn, bytesOut       atomic.Uint64
	messagesIn, messagesOut atomic.Uint64 // those of streams that are open are counted by them

	streamsMu sync.Mutex // guards streams
	streams   map[*Stream]struct{}

	known atomic.Bool  // a call has passed the gate
	wrong atomic.Int32 // calls that were not let in
	calls atomic.Int32 // of those under way that need no caller to be known

	// guarded by Listener.mu
	element  *list.Element // in source.new; nil when it is not new any more
	reserved bool          // has a place of the peer, and has not shown that it is
}

// Remote is the address of a connection's other end, and finds the connection.
type Remote struct {
	net.Addr

	conn *Conn
}

// Of returns the connection that a call comes over; nil if it did not pass a Listener.
func Of(ctx context.Context) *Conn {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	if r, ok := p.Addr.(*Remote); ok {
		return r.conn
	}
	return nil
}

// Known notes that a call of it has passed the gate, and whether it is one that only the other node may make.
func (c *Conn) Known(isPeer bool) {
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
	c.notNew()
	if c.source.tries++; c.source.tries > float64(c.l.o.Limits().PerAddress) {
		c.source.tries = float64(c.l.o.Limits().PerAddress)
	}
}

// Unknown notes a call of which it was not believed, or not shown, who calls. A connection of which no call was let in
// is closed after some of them.
func (c *Conn) Unknown() {
	if c == nil || c.known.Load() || c.wrong.Add(1) != maxWrong {
		return
	}
	c.l.tell(Strangers, c.source.host, c.l.o.Limits())
	_ = c.end() // it is given up
}

// Begin notes a call that tells nothing of its caller. It does not make the connection known, but keeps it until End.
func (c *Conn) Begin() {
	if c != nil {
		c.calls.Add(1)
	}
}

// End is called after each Begin.
func (c *Conn) End() {
	if c != nil {
		c.calls.Add(-1)
	}
}

// notNew takes the connection off the list of new ones. Listener.mu is held.
func (c *Conn) notNew() {
	if c.element != nil {
		c.source.new.Remove(c.element)
		c.element = nil
		c.l.fresh--
	}
}

// expired closes the connection if it is still new.
func (c *Conn) expired(patience time.Duration) {
	if c.known.Load() {
		return
	}
	if c.calls.Load() > 0 {
		c.l.mu.Lock() // the timer may not have been noted yet
		defer c.l.mu.Unlock()
		c.timer.Reset(patience)
		return
	}
	limits := c.l.o.Limits()
	c.l.tell(Silent, c.source.host, limits)
	_ = c.end() // it is given up
}

// flooded closes the connection, and makes its address wait before it may make many others.
func (c *Conn) flooded() {
	limits := c.l.o.Limits()
	c.l.mu.Lock()
	c.source.owe(floodShare, limits)
	c.l.mu.Unlock()
	c.l.tell(Flood, c.source.host, limits)
	_ = c.end() // it is given up
}

// end closes the connection and gives its place back, once.
func (c *Conn) end() error {
	c.once.Do(func() {
		c.timer.Stop()
		c.err = c.close()
		close(c.over)
		if timer := c.expiry.Load(); timer != nil {
			timer.Stop()
		}
		c.allOver()
		l := c.l
		limits, now := l.o.Limits(), time.Now()
		l.mu.Lock()
		defer l.mu.Unlock()
		c.notNew()
		if c.reserved {
			c.reserved = false
			l.reserved--
		}
		if !c.known.Load() {
			c.source.owe(abandonShare, limits)
		}
		c.source.open--
		l.open--
		delete(l.conns, c.id)
		l.forget(c.source, limits, now)
	})
	return c.err
}

// wire is what gRPC reads from and writes to: it sees the frames of HTTP/2. It has a buffer of its own, so that what it
// has handed out last is the frame that gRPC looks at.
type wire struct {
	conn   *Conn
	in     frames
	out    frameHeaders
	buffer []byte // from is what of it was not handed out yet
	from   []byte
	err    error // of the last read, when all is handed out
}

// wireBytes is the length of the buffer: as much as gRPC's own would have.
const wireBytes = 32 << 10

// read hands out what comes from inner: a client that floods is read more slowly at first, and then no more.
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
			return 0, err //nolint:wrapcheck // a net.OpError says everything
		}
		w.from, w.err = w.buffer[:n], err
		w.conn.await()
	}
	n := copy(b, w.from)
	w.from = w.from[n:]
	pause, ok := w.in.pass(w.conn, b[:n])
	if !ok {
		w.conn.flooded()
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

// write passes on what gRPC writes, and notes which calls end with it.
func (w *wire) write(inner net.Conn, b []byte) (int, error) {
	n, err := inner.Write(b)
	w.out.passOut(w.conn, b[:n])
	return n, err //nolint:wrapcheck // a net.OpError says everything
}

// tcpConn is a connection that can do what a TCP connection can.
type tcpConn struct {
	*net.TCPConn

	conn *Conn
	wire *wire // nil: another one above it sees the frames, or there are none
}

// Read reads, and ends the connection of a client that floods. With TLS it cannot see that.
func (c *tcpConn) Read(b []byte) (n int, err error) {
	if c.wire != nil {
		n, err = c.wire.read(c.TCPConn, b)
	} else {
		n, err = c.TCPConn.Read(b)
	}
	c.conn.bytesIn.Add(uint64(n))
	return n, err //nolint:wrapcheck // a net.OpError says everything
}

// Write writes.
func (c *tcpConn) Write(b []byte) (n int, err error) {
	if c.wire != nil {
		n, err = c.wire.write(c.TCPConn, b)
	} else {
		n, err = c.TCPConn.Write(b)
	}
	c.conn.bytesOut.Add(uint64(n))
	return n, err //nolint:wrapcheck // a net.OpError says everything
}

// Close ends the connection.
func (c *tcpConn) Close() error { return c.conn.end() }

// RemoteAddr is a *Remote.
func (c *tcpConn) RemoteAddr() net.Addr { return &c.conn.remote }

// plainConn is a connection that is none of TCP.
type plainConn struct {
	net.Conn

	conn *Conn
	wire *wire // as in tcpConn
}

// Read reads.
func (c *plainConn) Read(b []byte) (n int, err error) {
	if c.wire != nil {
		n, err = c.wire.read(c.Conn, b)
	} else {
		n, err = c.Conn.Read(b)
	}
	c.conn.bytesIn.Add(uint64(n))
	return n, err //nolint:wrapcheck // the error is the connection's
}

// Write writes.
func (c *plainConn) Write(b []byte) (n int, err error) {
	if c.wire != nil {
		n, err = c.wire.write(c.Conn, b)
	} else {
		n, err = c.Conn.Write(b)
	}
	c.conn.bytesOut.Add(uint64(n))
	return n, err //nolint:wrapcheck // the error is the connection's
}

// Close ends the connection.
func (c *plainConn) Close() error { return c.conn.end() }

// RemoteAddr is a *Remote.
func (c *plainConn) RemoteAddr() net.Addr { return &c.conn.remote }
