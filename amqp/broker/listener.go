// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/amqp/session"
	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// closeLimit limits each wait while this node closes a connection, such as the wait for the client's close.
const closeLimit = 300 * time.Millisecond

// rolePollInterval is the interval at which watchRole polls the role, in addition to notifications.
const rolePollInterval = 250 * time.Millisecond

// acceptPause is the pause after a temporary error of the listener, such as too many open files.
const acceptPause = 200 * time.Millisecond

type temporary interface {
	error
	Temporary() bool
}

// Server serves AMQP clients until the context of Run ends.
type Server struct {
	o    Options
	held held

	mu         sync.Mutex // guards the fields below
	conns      map[*conn]struct{}
	consumers  map[string]map[*consumer]struct{} // with a stream, by queue
	containers map[string]*conn                  // sole connections by container
	sharing    map[[2]string]int                 // links of volatile subscriptions by queue and name
	idle       map[[2]string]time.Time           // volatile subscriptions without links, in a fleet
	closed     bool

	defects atomic.Uint64                   // connections closed because of a bug
	marked  atomic.Pointer[map[string]bool] // queues with no-local subscribers
}

// New creates a server. The caller must call Run or Close.
func New(o Options) *Server {
	return &Server{
		o: o, held: newHeld(), conns: make(map[*conn]struct{}), containers: make(map[string]*conn),
		sharing: make(map[[2]string]int), idle: make(map[[2]string]time.Time),
		consumers: make(map[string]map[*consumer]struct{}),
	}
}

// Address returns the listen address.
func (s *Server) Address() net.Addr { return s.o.Listener.Addr() }

// Defects returns the number of connections closed because of a bug; the log contains each of them.
func (s *Server) Defects() uint64 { return s.defects.Load() }

// Close closes the listener. It is for callers that do not call Run.
func (s *Server) Close() { _ = s.o.Listener.Close() }

// Run serves until ctx ends, and then closes all connections, with a redirect if the address of the active node is
// known. If the listener fails permanently, Run closes all connections and returns the error.
func (s *Server) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // also closes the connections after an error of the listener
	running.Go(func() {
		<-ctx.Done()
		_ = s.o.Listener.Close() // closing it twice is harmless
		s.leave()
	})
	running.Go(func() { s.watchRole(ctx) })
	for {
		raw, err := s.o.Listener.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			if t, ok := errors.AsType[temporary](err); !ok || !t.Temporary() {
				return fmt.Errorf("amqp.listen: %w", err)
			}
			s.o.Logger.Warn("AMQP connection not accepted", zap.Error(err))
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		c := newConn(s, raw)
		if !s.enter(c) {
			_ = raw.Close()
			continue
		}
		running.Go(func() {
			defer s.remove(c)
			c.contain(c.serve)
		})
	}
}

func (s *Server) enter(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.releaseLocked(c)
}

func (s *Server) release(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseLocked(c)
}

func (s *Server) releaseLocked(c *conn) {
	if s.containers[c.container] == c {
		delete(s.containers, c.container)
	}
}

// claim registers a connection as the only one of its container. It returns false if the container already has a
// connection.
func (s *Server) claim(c *conn, container string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.containers[container] != nil {
		return false
	}
	c.container = container
	s.containers[container] = c
	return true
}

// all returns all connections. If last is set, the server accepts no further connections.
func (s *Server) all(last bool) []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = s.closed || last
	return slices.Collect(maps.Keys(s.conns))
}

func (s *Server) leave() {
	role, _ := s.o.Role()
	for _, c := range s.all(true) {
		c.shut(redirectError(role, "node is stopping"))
	}
}

// watchRole closes all connections when this node is no longer active. The clients reconnect to the other node.
func (s *Server) watchRole(ctx context.Context) {
	was := false
	ticker := time.NewTicker(rolePollInterval)
	defer ticker.Stop()
	for {
		role, changed := s.o.Role()
		if was && !role.Active {
			role = s.successor()
			list := s.all(false)
			for _, c := range list {
				c.shut(redirectError(role, "this node is no longer active"))
			}
			s.o.Logger.Info("AMQP clients redirected to the other node", zap.Int("connections", len(list)),
				zap.String("active", role.ActiveAddress))
		}
		was = role.Active
		select {
		case <-changed:
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// isRedirect reports whether a close redirects the client to the other node.
func isRedirect(reason *wire.Error) bool {
	return reason.Condition == session.ConnectionRedirect || reason.Condition == session.ConnectionForced
}

// understandsRedirect reports whether a client follows the redirection in a close, like Qpid JMS. Other connections
// end without a close, and without an open if this node does not serve, so that the client tries its next address.
func understandsRedirect(peer *wire.Open) bool {
	product, _ := peer.Properties.Get(wire.Symbol("product"))
	return product == "QpidJMS"
}

// successor waits for the address of the new active node, for at most closeLimit. On a replica it returns
// immediately, because no node of a replica serves clients.
func (s *Server) successor() Role {
	limit := time.NewTimer(closeLimit)
	defer limit.Stop()
	for {
		role, changed := s.o.Role()
		if role.Active || role.ActiveAddress != "" || role.Replica {
			return role
		}
		select {
		case <-changed:
		case <-limit.C:
			return role
		}
	}
}

func redirectError(role Role, reason string) *wire.Error {
	if role.Replica {
		return session.Errorf(session.ConnectionForced, "%s; reconnect to the other site, which is the primary", reason)
	}
	host, port, err := net.SplitHostPort(role.ActiveAddress)
	number, ok := portNumber(port)
	if err != nil || !ok {
		return session.Errorf(session.ConnectionForced,
			"%s; reconnect: the other node of the pair is or becomes active", reason)
	}
	e := session.Errorf(session.ConnectionRedirect, "%s; the active node is %s", reason, role.ActiveAddress)
	e.Info = wire.Fields{
		{Key: wire.Symbol("hostname"), Value: host},
		{Key: wire.Symbol("network-host"), Value: host},
		{Key: wire.Symbol("port"), Value: number},
	}
	return e
}
