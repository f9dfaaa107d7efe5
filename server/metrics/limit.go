// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"net"
	"sync"
)

// Connections that the port of metrics and probes takes at once, and those of one address. Who asks for metrics and
// probes needs one or two; further ones are closed, so that a client that opens many leaves room for the probes of
// others, and takes no memory and no open files from the node.
const (
	maxConnections           = 256
	maxConnectionsPerAddress = 32
)

// limitedListener closes what is too many.
type limitedListener struct {
	net.Listener

	mu     sync.Mutex // guards what follows
	open   int
	byHost map[string]int
}

func limited(l net.Listener) *limitedListener {
	return &limitedListener{Listener: l, byHost: make(map[string]int)}
}

// Accept returns the next connection for which there is room.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // the server compares it
		}
		host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
		if err != nil {
			host = conn.RemoteAddr().String()
		}
		if l.take(host) {
			return &limitedConn{Conn: conn, leave: sync.OnceFunc(func() { l.leave(host) })}, nil
		}
		_ = conn.Close() // it is not let in
	}
}

func (l *limitedListener) take(host string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= maxConnections || l.byHost[host] >= maxConnectionsPerAddress {
		return false
	}
	l.open++
	l.byHost[host]++
	return true
}

func (l *limitedListener) leave(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.byHost[host]--; l.byHost[host] == 0 {
		delete(l.byHost, host)
	}
}

type limitedConn struct {
	net.Conn

	leave func()
}

// Close makes room for another one.
func (c *limitedConn) Close() error {
	defer c.leave()
	return c.Conn.Close() //nolint:wrapcheck // the server compares it
}
