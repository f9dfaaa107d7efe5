// SPDX-License-Identifier: Apache-2.0

package bound

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"net"
)

const bufferBytes = 256 << 10

const lengthBytes = 4

type tcpListener struct{ net.Listener }

func listenTCP() (listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // listening on a local address does not block
	if err != nil {
		return nil, fmt.Errorf("bound: %w", err)
	}
	return tcpListener{l}, nil
}

func (l tcpListener) address() string { return l.Addr().String() }

func (l tcpListener) serve(handle func(conn)) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return fmt.Errorf("bound: %w", err)
		}
		go func() {
			t := newTCP(c)
			defer t.Close()
			handle(t)
		}()
	}
}

// tcpConn is a conn of length-prefixed messages.
type tcpConn struct {
	net.Conn
	r    *bufio.Reader
	w    *bufio.Writer
	last int // bytes of the last received message, which are still in r
	head [lengthBytes]byte
	long []byte // buffer for messages larger than r
}

func dialTCP(ctx context.Context, address string) (conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("bound: %w", err)
	}
	return newTCP(c), nil
}

func newTCP(c net.Conn) *tcpConn {
	return &tcpConn{Conn: c, r: bufio.NewReaderSize(c, bufferBytes), w: bufio.NewWriterSize(c, bufferBytes)}
}

func (c *tcpConn) send(m message) error {
	binary.BigEndian.PutUint32(c.head[:], uint32(m.size()))
	if _, err := c.w.Write(c.head[:]); err != nil {
		return err //nolint:wrapcheck // relays and loads add the operation
	}
	for _, part := range m.parts() {
		if _, err := c.w.Write(part); err != nil {
			return err //nolint:wrapcheck // as above
		}
	}
	return nil
}

func (c *tcpConn) flush() error { return c.w.Flush() } //nolint:wrapcheck // as above

func (c *tcpConn) receive() (message, error) {
	if _, err := c.r.Discard(c.last); err != nil {
		return message{}, err //nolint:wrapcheck // as above
	}
	c.last = 0
	head, err := c.r.Peek(lengthBytes)
	if err != nil {
		return message{}, err //nolint:wrapcheck // as above
	}
	n := int(binary.BigEndian.Uint32(head))
	if n > maxMessage {
		return message{}, fmt.Errorf("message of %d bytes exceeds the maximum of %d", n, maxMessage)
	}
	if lengthBytes+n > bufferBytes {
		return c.receiveLong(n)
	}
	whole, err := c.r.Peek(lengthBytes + n)
	if err != nil {
		return message{}, err //nolint:wrapcheck // as above
	}
	c.last = lengthBytes + n
	return plain(whole[lengthBytes:]), nil
}

func (c *tcpConn) receiveLong(n int) (message, error) {
	if _, err := c.r.Discard(lengthBytes); err != nil {
		return message{}, err //nolint:wrapcheck // as above
	}
	if cap(c.long) < n {
		c.long = make([]byte, n)
	}
	for read := 0; read < n; {
		k, err := c.r.Read(c.long[read:n])
		if err != nil {
			return message{}, err //nolint:wrapcheck // as above
		}
		read += k
	}
	return plain(c.long[:n]), nil
}

func (c *tcpConn) waiting() bool {
	rest := c.r.Buffered() - c.last
	if rest < lengthBytes {
		return false
	}
	all, err := c.r.Peek(c.last + lengthBytes)
	return err == nil && rest >= lengthBytes+int(binary.BigEndian.Uint32(all[c.last:]))
}
