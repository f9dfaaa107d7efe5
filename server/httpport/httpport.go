// SPDX-License-Identifier: Apache-2.0

// Package httpport is a port of a node that speaks HTTP: that of the console, and that of metrics and probes. It bounds
// what clients may take: connections, how long they may say nothing, and the size of their headers.
package httpport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// stopLimit is how long requests that are under way may still take when the node stops.
const stopLimit = 500 * time.Millisecond

// Options of Listen. All bounds of 0 mean none.
type Options struct {
	// Address to listen on, host:port; port 0 takes a free one.
	Address string
	// Listen binds the address; nil means a TCP port of the machine.
	Listen func(ctx context.Context, address string) (net.Listener, error)
	// TLS of the port; nil: none.
	TLS *tls.Config
	// Handler of all requests.
	Handler http.Handler
	// Connections that are open at the same time, and those from one address: further ones are closed at once, so that
	// a client that opens many leaves room for others, and takes no memory and no open files from the node.
	Connections, ConnectionsPerAddress int
	// ReadHeaderTimeout, ReadTimeout and WriteTimeout bound how long the headers of a request, all of it, and the answer
	// may take; IdleTimeout bounds how long a connection may wait for the next request.
	ReadHeaderTimeout, ReadTimeout, WriteTimeout, IdleTimeout time.Duration
	// MaxHeaderBytes bounds the headers of a request.
	MaxHeaderBytes int
	// ErrorLog gets what goes wrong with connections; nil: the standard logger.
	ErrorLog *log.Logger
}

// Port answers requests while Run runs.
type Port struct {
	listener net.Listener
	http     *http.Server
}

// Listen binds the address. Run must be called, or Close.
func Listen(ctx context.Context, o Options) (*Port, error) {
	if o.Listen == nil {
		o.Listen = listenTCP
	}
	l, err := o.Listen(ctx, o.Address)
	if err != nil {
		return nil, err
	}
	l = limited(l, o.Connections, o.ConnectionsPerAddress)
	if o.TLS != nil {
		l = tls.NewListener(l, o.TLS)
	}
	return &Port{listener: l, http: &http.Server{
		Handler: o.Handler, ReadHeaderTimeout: o.ReadHeaderTimeout, ReadTimeout: o.ReadTimeout,
		WriteTimeout: o.WriteTimeout, IdleTimeout: o.IdleTimeout, MaxHeaderBytes: o.MaxHeaderBytes, ErrorLog: o.ErrorLog,
	}}, nil
}

func listenTCP(ctx context.Context, address string) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "tcp", address) //nolint:wrapcheck // the caller says which port it is
}

// Address that it is bound to, host:port.
func (p *Port) Address() string { return p.listener.Addr().String() }

// Close gives the port back if Run was never called.
func (p *Port) Close() { _ = p.listener.Close() }

// Run serves until ctx ends; then it calls ending, if that is not nil, which ends requests that would not end by
// themselves, waits a moment for those that are under way, and returns nil. Another error says that the port is lost.
func (p *Port) Run(ctx context.Context, ending func()) error {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		if ending != nil {
			ending()
		}
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
		defer cancel()
		if p.http.Shutdown(limit) != nil {
			_ = p.http.Close()
		}
	}()
	err := p.http.Serve(p.listener)
	if errors.Is(err, http.ErrServerClosed) {
		<-stopped
		return nil
	}
	return fmt.Errorf("serve: %w", err)
}

// limitedListener closes what is too many.
type limitedListener struct {
	net.Listener

	most, perHost int // 0: any number

	mu     sync.Mutex // guards what follows
	open   int
	byHost map[string]int
}

func limited(l net.Listener, most, perHost int) *limitedListener {
	return &limitedListener{Listener: l, most: most, perHost: perHost, byHost: make(map[string]int)}
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
	if l.most > 0 && l.open >= l.most || l.perHost > 0 && l.byHost[host] >= l.perHost {
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
