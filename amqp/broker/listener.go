// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/amqp/session"
	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// closeLimit is how long clients may take to answer a close when the node stops or loses its role.
const closeLimit = 300 * time.Millisecond

// roleLook is how often the role is looked at besides when it is told to have changed: a node that takes it up serves a
// moment after that.
const roleLook = 250 * time.Millisecond

// Server serves AMQP clients until Run's context ends.
type Server struct {
	o    Options
	held held

	mu         sync.Mutex // guards all below
	conns      map[*conn]struct{}
	consumers  map[string]map[*consumer]struct{} // that have a stream, by queue
	containers map[string]*conn                  // those that want to be the only connection of their container
	// links of shared subscriptions that go with the last one, by queue and name
	sharing map[[2]string]int
	closed  bool

	defects atomic.Uint64                   // connections that were closed because of one
	marked  atomic.Pointer[map[string]bool] // queues with no-local subscribers: their messages say where they are from
}

// New makes a server. Run must be called, or Close.
func New(o Options) *Server {
	return &Server{
		o: o, held: newHeld(), conns: make(map[*conn]struct{}), containers: make(map[string]*conn),
		sharing: make(map[[2]string]int), consumers: make(map[string]map[*consumer]struct{}),
	}
}

// Address is where it listens.
func (s *Server) Address() net.Addr { return s.o.Listener.Addr() }

// Defects is how many connections were closed because of a defect of this program. The log has each of them.
func (s *Server) Defects() uint64 { return s.defects.Load() }

// Close gives the port back if Run was never called.
func (s *Server) Close() { _ = s.o.Listener.Close() }

// Run serves until ctx ends. Then clients are told to go to the other node.
func (s *Server) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() {
		<-ctx.Done()
		_ = s.o.Listener.Close() // once more is no harm
		s.leave()
	})
	running.Go(func() { s.watchRole(ctx) })
	for {
		raw, err := s.o.Listener.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return fmt.Errorf("amqp.listen: %w", err)
		}
		c := newConn(s, raw)
		if !s.enter(c) {
			_ = raw.Close()
			continue
		}
		running.Go(func() {
			defer s.forget(c)
			c.contain(c.serve)
		})
	}
}

// enter notes a connection; false if there may be none any more.
func (s *Server) enter(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.unclaimLocked(c)
}

// unclaim lets another connection be the only one of the container of one that ends.
func (s *Server) unclaim(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unclaimLocked(c)
}

func (s *Server) unclaimLocked(c *conn) {
	if s.containers[c.container] == c {
		delete(s.containers, c.container)
	}
}

// claim makes a connection the only one of its container; false if there is one already.
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

// all lists the connections, and lets no other one in if it is for the last time.
func (s *Server) all(last bool) []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = s.closed || last
	list := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		list = append(list, c)
	}
	return list
}

// leave closes all connections because this node stops.
func (s *Server) leave() {
	role, _ := s.o.Role()
	for _, c := range s.all(true) {
		c.shut(sendAway(role, "node is stopping"))
	}
}

// watchRole closes all connections whenever this node stops being the active one, so that their clients go to the
// other node.
func (s *Server) watchRole(ctx context.Context) {
	was := false
	ticker := time.NewTicker(roleLook)
	defer ticker.Stop()
	for {
		role, changed := s.o.Role()
		if was && !role.Active {
			role = s.successor()
			list := s.all(false)
			for _, c := range list {
				c.shut(sendAway(role, "this node is no longer active"))
			}
			s.o.Logger.Info("AMQP clients redirected to the other node", zap.Int("connections", len(list)),
				zap.String("active", role.Elsewhere))
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

// isAway tells whether a connection is closed for its client to go to the other node.
func isAway(why *wire.Error) bool {
	return why.Condition == session.ConnectionRedirect || why.Condition == session.ConnectionForced
}

// understandsAway tells whether a client goes where a close sends it. Qpid JMS does. Others are cut off without a
// close, and without an open if this node does not serve, so that they connect again to the next of their addresses:
// Proton begins with the first one again after each open, and takes 10 s to find that a connection has ended which was
// closed by amqp:connection:forced.
func understandsAway(peer *wire.Open) bool {
	product, _ := peer.Properties.Get(wire.Symbol("product"))
	return product == "QpidJMS"
}

// successor waits a moment for the node to be known that serves in place of this one.
func (s *Server) successor() Role {
	limit := time.NewTimer(closeLimit)
	defer limit.Stop()
	for {
		role, changed := s.o.Role()
		if role.Active || role.Elsewhere != "" {
			return role
		}
		select {
		case <-changed:
		case <-limit.C:
			return role
		}
	}
}

// sendAway is why a connection is closed by a node that does not serve.
func sendAway(role Role, why string) *wire.Error {
	host, port, err := net.SplitHostPort(role.Elsewhere)
	number, ok := portNumber(port)
	if err != nil || !ok {
		return session.Errorf(session.ConnectionForced,
			"%s; reconnect: the other node of the pair is or becomes active", why)
	}
	e := session.Errorf(session.ConnectionRedirect, "%s; the active node is %s", why, role.Elsewhere)
	e.Info = wire.Fields{
		{Key: wire.Symbol("hostname"), Value: host},
		{Key: wire.Symbol("network-host"), Value: host},
		{Key: wire.Symbol("port"), Value: number},
	}
	return e
}
