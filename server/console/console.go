// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/inprocess"
)

const (
	// readHeaderTimeout, readTimeout and writeTimeout bound how long a connection may take for its headers, for all of
	// a request, and for reading the answer. Events have bounds of their own.
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 15 * time.Second
	writeTimeout      = 2 * time.Minute
	idleTimeout       = time.Minute
	// maxHeaderBytes bounds the headers of a request.
	maxHeaderBytes = 16 << 10
	// maxConnections bounds the connections; more are closed at once.
	maxConnections = 256
	// stopLimit is how long requests that are under way may still take when the node stops.
	stopLimit = 500 * time.Millisecond
)

// ErrNotForwarded is returned by Options.Other when nothing that a session shows can be shown to the other node.
var ErrNotForwarded = errors.New("the other node wants a certificate of whoever calls it, and that of a browser " +
	"cannot be passed on: use the console of that node")

// Options of Listen.
type Options struct {
	// Address to listen on, host:port; port 0 takes a free one.
	Address string
	// TLS of the port; nil: none.
	TLS *tls.Config
	// Node is the name of this node.
	Node string
	// Own is the connection to this node's services, which is one of Link.
	Own grpc.ClientConnInterface
	// Link of Own.
	Link *inprocess.Link
	// Other is a connection to the services of the node at an address, over which a call has the rights of the token
	// that it shows. The error is ErrNotForwarded if there is none.
	Other func(address string) (grpc.ClientConnInterface, error)
	// OtherStatus asks the node at an address as this node, for sessions that may have the status of this one.
	OtherStatus func(ctx context.Context, address string) (*pb.GetStatusResponse, error)
	// Anonymous: as long as everybody may do everything, nobody has to sign in. It must be false where more could be
	// done by that than without the console.
	Anonymous bool
	// SignInWait is how many seconds an address has to wait before it may try to sign in again; 0: it need not.
	SignInWait func(from net.Addr) (seconds float64)
	// Logger of the console.
	Logger *zap.Logger
	// Now is the clock; nil: the system's.
	Now func() time.Time
}

// Server answers browsers until Run's context ends.
type Server struct {
	o         Options
	listener  net.Listener
	port      string
	http      *http.Server
	pages     []Page
	templates map[string]*template.Template
	assets    map[string]asset
	sessions  *sessions
	hub       *hub
	samples   *samples
	tasks     *tasks
}

// Listen binds the address. Run must be called, or Close.
func Listen(ctx context.Context, o Options) (*Server, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Server{o: o, pages: pages(), sessions: newSessions(o.Now)}
	s.hub, s.samples, s.tasks = newHub(s), newSamples(), newTasks(s)
	var err error
	if s.assets, err = loadAssets(); err != nil {
		return nil, err
	}
	if s.templates, err = loadTemplates(s.pages, s.assets); err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.Address)
	if err != nil {
		return nil, fmt.Errorf("console.listen: %w", err)
	}
	if _, s.port, err = net.SplitHostPort(l.Addr().String()); err != nil {
		return nil, errors.Join(fmt.Errorf("console.listen: %w", err), l.Close())
	}
	l = limitConnections(l, maxConnections)
	if o.TLS != nil {
		l = tls.NewListener(l, o.TLS)
	}
	s.http = &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: readHeaderTimeout, ReadTimeout: readTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: zap.NewStdLog(o.Logger.WithOptions(zap.IncreaseLevel(zap.ErrorLevel))),
	}
	s.listener = l
	return s, nil
}

// URLAt is what others reach it by, who reach the node by an address; where it listens on its machine alone, they do
// not.
func (s *Server) URLAt(advertised string) string {
	asked, _, err := net.SplitHostPort(s.o.Address)
	ip := net.ParseIP(asked)
	host, _, herr := net.SplitHostPort(advertised)
	if err != nil || herr != nil || asked != "" && (ip == nil || !ip.IsUnspecified()) {
		return s.URL()
	}
	return s.scheme() + "://" + net.JoinHostPort(host, s.port) + "/"
}

// URL that a browser on this machine reaches it by.
func (s *Server) URL() string {
	scheme := s.scheme()
	host, port, err := net.SplitHostPort(s.listener.Addr().String())
	if err != nil {
		return scheme + "://" + s.listener.Addr().String() + "/"
	}
	asked, _, err := net.SplitHostPort(s.o.Address)
	if ip := net.ParseIP(asked); err == nil && asked != "" && (ip == nil || !ip.IsUnspecified()) {
		host = asked // the name that a certificate is for
	} else if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return scheme + "://" + net.JoinHostPort(host, port) + "/"
}

// Close gives the port back if Run was never called.
func (s *Server) Close() { _ = s.listener.Close() }

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		s.hub.close()
		s.tasks.close()
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
		defer cancel()
		if s.http.Shutdown(limit) != nil {
			_ = s.http.Close()
		}
	}()
	err := s.http.Serve(s.listener)
	if errors.Is(err, http.ErrServerClosed) {
		<-stopped
		return nil
	}
	return fmt.Errorf("console: %w", err)
}

// limitedListener closes connections beyond a number.
type limitedListener struct {
	net.Listener

	places chan struct{}
}

func limitConnections(l net.Listener, most int) net.Listener {
	return &limitedListener{Listener: l, places: make(chan struct{}, most)}
}

// Accept waits for the next connection that has a place.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // the server compares it
		}
		select {
		case l.places <- struct{}{}:
			return &placedConn{Conn: c, leave: sync.OnceFunc(func() { <-l.places })}, nil
		default:
			_ = c.Close() // there is no place for it
		}
	}
}

// placedConn gives its place back when it is closed.
type placedConn struct {
	net.Conn

	leave func()
}

// Close ends the connection.
func (c *placedConn) Close() error {
	c.leave()
	return c.Conn.Close() //nolint:wrapcheck // it is the connection's
}
