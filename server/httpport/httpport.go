// SPDX-License-Identifier: Apache-2.0

// Package httpport implements the HTTP ports of a node. It limits the number of connections, and the idle time and
// header size of clients.
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

const stopLimit = 500 * time.Millisecond // maximum wait for requests in progress

// Options configures Listen. Connections and ConnectionsPerAddress are unlimited if they are 0. For the other limits,
// 0 has the same meaning as in http.Server.
type Options struct {
	Address        string                                                          // host:port; port 0 selects a free port
	Listen         func(ctx context.Context, address string) (net.Listener, error) // nil for a TCP port of the host
	TLS            *tls.Config                                                     // nil for plain HTTP
	Handler        http.Handler
	MaxHeaderBytes int
	ErrorLog       *log.Logger // nil for the standard logger
	// Connections limits the number of open connections. ConnectionsPerAddress limits the number from one address.
	// Further connections are closed immediately.
	Connections, ConnectionsPerAddress int
	// ReadHeaderTimeout, ReadTimeout and WriteTimeout limit the time for the headers of a request, for the whole
	// request, and for the response. IdleTimeout limits the time between two requests.
	ReadHeaderTimeout, ReadTimeout, WriteTimeout, IdleTimeout time.Duration
}

// Port is an HTTP port.
type Port struct {
	listener net.Listener
	http     *http.Server
}

// Listen binds the address. The caller must call Run or Close.
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
	return (&net.ListenConfig{}).Listen(ctx, "tcp", address) //nolint:wrapcheck // the caller adds the port
}

// Address returns the bound address, host:port.
func (p *Port) Address() string { return p.listener.Addr().String() }

// Close closes the listener. It is needed only if Run is not called.
func (p *Port) Close() { _ = p.listener.Close() }

// Run serves requests until ctx ends. It then calls ending, which may be nil and must end long-running requests. It
// waits up to stopLimit for requests in progress, closes the remaining connections, and returns nil. If the listener
// fails, Run returns an error.
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

type limitedListener struct {
	net.Listener

	most, perHost int // 0 means no limit

	mu     sync.Mutex // guards the fields below
	open   int
	byHost map[string]int
}

func limited(l net.Listener, most, perHost int) *limitedListener {
	return &limitedListener{Listener: l, most: most, perHost: perHost, byHost: make(map[string]int)}
}

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
		_ = conn.Close() // the connection is refused
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

func (c *limitedConn) Close() error {
	defer c.leave()
	return c.Conn.Close() //nolint:wrapcheck // the server compares it
}
