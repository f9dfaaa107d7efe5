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
	"github.com/lockstep-mq/lockstep/server/httpport"
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
)

// ErrNotForwarded is returned when the calls of a session cannot be made to the other node.
var ErrNotForwarded = errors.New("the session was signed in with a certificate, and this node cannot make " +
	"calls to the other node for it")

// Options of Listen.
type Options struct {
	// Address to listen on, host:port; port 0 takes a free one.
	Address string
	// Listen binds the address; nil means a TCP port of the machine.
	Listen func(ctx context.Context, address string) (net.Listener, error)
	// TLS of the port; nil: none.
	TLS *tls.Config
	// Node is the name of this node.
	Node string
	// Link reaches this node's services.
	Link *inprocess.Link
	// Other is a connection to the services of the node at an address, over which a call has the rights of the token
	// that it shows or of the caller of Forward, and no others: without either of them, a call is refused.
	Other func(address string) (grpc.ClientConnInterface, error)
	// Forward returns the context for a call over Other on behalf of a principal that has shown a certificate. nil: the
	// other node does not accept such calls.
	Forward func(ctx context.Context, principal string, groups []string) (context.Context, error)
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
	host, port, err := net.SplitHostPort(s.http.Address())
	if err != nil {
		return scheme + "://" + s.http.Address() + "/"
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
func (s *Server) Close() { s.http.Close() }

// Run serves until ctx ends.
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
