// SPDX-License-Identifier: Apache-2.0

package simnet

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// listener is a bound port. It implements net.Listener.
type listener struct {
	p      *Process
	at     string
	queue  chan *conn
	once   sync.Once
	closed chan struct{}
}

func (l *listener) shut() { l.once.Do(func() { close(l.closed) }) }

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It resets connections that were not accepted.
func (l *listener) Close() error {
	l.p.n.mu.Lock()
	if l.p.n.listeners[l.at] == l {
		delete(l.p.n.listeners, l.at)
	}
	l.p.n.mu.Unlock()
	l.shut()
	for {
		select {
		case c := <-l.queue:
			c.end(syscall.ECONNRESET)
		default:
			return nil
		}
	}
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return addr(l.at) }

// addr returns a net.Addr: a *net.TCPAddr if the host is an IP address, otherwise an address.
func addr(at string) net.Addr {
	if ip, err := netip.ParseAddrPort(at); err == nil {
		return net.TCPAddrFromAddrPort(ip)
	}
	return address(at)
}

// address is a net.Addr of a host that is not an IP address.
type address string

func (a address) Network() string { return "simulated" }
func (a address) String() string  { return string(a) }

// conn is one end of a connection. It implements net.Conn.
type conn struct {
	p             *Process
	in, out       *pipe
	local, remote net.Addr
}

// register adds the connection to its process. It returns false if the process has been killed.
func (c *conn) register() bool {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	if c.p.isDead() {
		return false
	}
	c.p.conns[c] = struct{}{}
	return true
}

// end closes this end of the connection. Later calls on it return an error; the other end reads reason after all
// bytes that were sent earlier.
func (c *conn) end(reason error) {
	c.p.mu.Lock()
	delete(c.p.conns, c)
	c.p.mu.Unlock()
	here, there := reason, reason
	if errors.Is(reason, io.EOF) {
		here = net.ErrClosed
	}
	c.in.abandon(here)
	c.out.finish(there)
}

func (c *conn) Read(b []byte) (int, error)        { return c.in.read(b) }
func (c *conn) Write(b []byte) (int, error)       { return c.out.write(b) }
func (c *conn) Close() error                      { c.end(io.EOF); return nil }
func (c *conn) LocalAddr() net.Addr               { return c.local }
func (c *conn) RemoteAddr() net.Addr              { return c.remote }
func (c *conn) SetDeadline(t time.Time) error     { return c.SetReadDeadline(t) } // writes never block
func (c *conn) SetWriteDeadline(time.Time) error  { return nil }
func (c *conn) SetReadDeadline(t time.Time) error { c.in.setDeadline(t); return nil }
