// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"html/template"
	"net"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/inprocgrpc"
	"github.com/lockstep-mq/lockstep/server/httpport"
)

const (
	// Limits of HTTP requests. Event streams have separate time limits.
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 15 * time.Second
	writeTimeout      = 2 * time.Minute
	idleTimeout       = time.Minute
	maxHeaderBytes    = 16 << 10
	maxConnections    = 256
)

// ErrNotForwarded is returned if the calls of a session cannot be forwarded to the other node or to another pair.
var ErrNotForwarded = errors.New("the session uses a client certificate, which this node cannot forward " +
	"to the other node")

// Options configures Listen.
type Options struct {
	// Address is the address to listen on, host:port. Port 0 selects a free port.
	Address string
	// Listen binds the address. If nil, a TCP listener of this host is used.
	Listen func(ctx context.Context, address string) (net.Listener, error)
	TLS    *tls.Config // nil for plain HTTP
	Node   string      // name of this node
	// Link connects to the services of this node.
	Link *inprocgrpc.Link
	// Other connects to the services of the node at an address. A call over this connection has only the rights of its
	// token, or of the principal passed to Forward. A call with neither is anonymous.
	Other func(address string) (grpc.ClientConnInterface, error)
	// Forward returns the context for a call over Other on behalf of a principal that has authenticated with a
	// certificate. It is nil if the other node does not accept forwarded calls.
	Forward func(ctx context.Context, principal string, groups []string) (context.Context, error)
	// Pairs connects a session to all pairs of the fleet. home is the connection of the session to the active node of this
	// pair. Pairs is nil without a fleet.
	Pairs func(home grpc.ClientConnInterface, caller func(context.Context) (Caller, error)) Fleet
	// OtherStatus queries the status of the node at an address with the credentials of this node.
	OtherStatus func(ctx context.Context, address string) (*pb.GetStatusResponse, error)
	// Anonymous permits access without sign-in while there are no access rules. It must be false if anonymous
	// clients of the node do not have this access.
	Anonymous bool
	// SignInWait returns the number of seconds that an address must wait before it may try to sign in again, or 0.
	SignInWait func(from net.Addr) (seconds float64)
	Logger     *zap.Logger
	Now        func() time.Time // default is time.Now
}

// Server serves HTTP requests until the context of Run ends.
type Server struct {
	o         Options
	port      string
	http      *httpport.Port
	pages     []Page
	templates map[string]*template.Template
	assets    map[string]asset
	sessions  *sessions
	hub       *hub
	samples   *samples
	badge     badge
	tasks     *tasks
}

// Listen binds the address. The caller must call Run or Close.
func Listen(ctx context.Context, o Options) (*Server, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Server{o: o, pages: pages(), sessions: newSessions(o.Now)}
	s.hub, s.samples, s.tasks = newHub(s), &samples{all: make(map[string]*sample)}, newTasks(s)
	var err error
	if s.assets, err = loadAssets(); err != nil {
		return nil, err
	}
	if s.templates, err = loadTemplates(s.pages, s.assets); err != nil {
		return nil, err
	}
	s.http, err = httpport.Listen(ctx, httpport.Options{
		Address: o.Address, Listen: o.Listen, TLS: o.TLS, Handler: s.handler(), Connections: maxConnections,
		ReadHeaderTimeout: readHeaderTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: zap.NewStdLog(o.Logger.WithOptions(zap.IncreaseLevel(zap.ErrorLevel))),
	})
	if err != nil {
		return nil, fmt.Errorf("console.listen: %w", err)
	}
	if _, s.port, err = net.SplitHostPort(s.http.Address()); err != nil {
		s.http.Close()
		return nil, fmt.Errorf("console.listen: %w", err)
	}
	return s, nil
}

// URLAt returns the URL of the console for clients that reach the node at the advertised address. If the console
// listens on a specific address, the result is the same as that of URL.
func (s *Server) URLAt(advertised string) string {
	listenHost, _, err := net.SplitHostPort(s.o.Address)
	ip := net.ParseIP(listenHost)
	host, _, herr := net.SplitHostPort(advertised)
	if err != nil || herr != nil || listenHost != "" && (ip == nil || !ip.IsUnspecified()) {
		return s.URL()
	}
	return s.scheme() + "://" + net.JoinHostPort(host, s.port) + "/"
}

// URL returns the URL of the console for a browser on this host.
func (s *Server) URL() string {
	scheme := s.scheme()
	host, port, err := net.SplitHostPort(s.http.Address())
	if err != nil {
		return scheme + "://" + s.http.Address() + "/"
	}
	listenHost, _, err := net.SplitHostPort(s.o.Address)
	if ip := net.ParseIP(listenHost); err == nil && listenHost != "" && (ip == nil || !ip.IsUnspecified()) {
		host = listenHost // the certificate contains this name
	} else if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return scheme + "://" + net.JoinHostPort(host, port) + "/"
}

// Close releases the port if Run was not called.
func (s *Server) Close() { s.http.Close() }

// Run serves HTTP requests until ctx ends, and then returns nil. If the listener fails, it returns an error.
func (s *Server) Run(ctx context.Context) error {
	err := s.http.Run(ctx, func() {
		s.hub.close()
		s.tasks.close()
	})
	if err != nil {
		return fmt.Errorf("console: %w", err)
	}
	return nil
}
