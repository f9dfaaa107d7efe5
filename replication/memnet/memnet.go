// SPDX-License-Identifier: Apache-2.0

// Package memnet is a network in memory for replication, for tests and simulation: it carries the same messages as
// gRPC, without sockets, and its links can be cut, so that silence, resets and refusals can be told apart on purpose.
package memnet

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/lockstep-mq/lockstep/replication"
)

// errReset is what one end sees when the other one is gone.
var errReset = errors.New("memnet: connection reset")

// Network connects nodes by address. The zero Network is ready for use.
type Network struct {
	mu        sync.Mutex // guards all below
	listeners map[string]*Listener
	conns     map[*conn]struct{}
	// cut has, for each address that nothing reaches, a channel that is closed when it heals.
	cut map[string]chan struct{}
}

// Listener answers at an address until Close.
type Listener struct {
	n       *Network
	address string
	active  func() (replication.Service, error)
}

// Listen makes a node reachable, as replication.NewServer does with gRPC: active is asked for each call.
func (n *Network) Listen(address string, active func() (replication.Service, error)) *Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners == nil {
		n.listeners = make(map[string]*Listener)
	}
	l := &Listener{n: n, address: address, active: active}
	n.listeners[address] = l
	return l
}

// Close resets all connections to the address and refuses new ones: what a killed process looks like.
func (l *Listener) Close() {
	l.n.mu.Lock()
	if l.n.listeners[l.address] == l {
		delete(l.n.listeners, l.address)
	}
	l.n.mu.Unlock()
	l.n.Reset(l.address)
}

// Reset ends all connections to the address, as seen from there; a dialer learns it when the link is not cut.
func (n *Network) Reset(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if c.address == address {
			c.kill()
		}
	}
}

// Cut stops all traffic with the address, in both directions, without ending a connection: silence.
func (n *Network) Cut(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut == nil {
		n.cut = make(map[string]chan struct{})
	}
	if n.cut[address] == nil {
		n.cut[address] = make(chan struct{})
	}
}

// Heal undoes Cut; what was under way arrives.
func (n *Network) Heal(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if ch := n.cut[address]; ch != nil {
		close(ch)
		delete(n.cut, address)
	}
}

// open waits until traffic with the address flows.
func (n *Network) open(address string, giveUp <-chan struct{}) bool {
	for {
		n.mu.Lock()
		healed := n.cut[address]
		n.mu.Unlock()
		if healed == nil {
			return true
		}
		select {
		case <-healed:
		case <-giveUp:
			return false
		}
	}
}

// Dialer returns the way into the network.
func (n *Network) Dialer() replication.Dialer { return dialer{n} }

type dialer struct{ n *Network }

// Dial connects to a listener.
func (d dialer) Dial(ctx context.Context, address string) (replication.Conn, error) {
	if !d.n.open(address, ctx.Done()) {
		return nil, fmt.Errorf("memnet: dial: %w", context.Cause(ctx))
	}
	d.n.mu.Lock()
	defer d.n.mu.Unlock()
	l := d.n.listeners[address]
	if l == nil {
		return nil, fmt.Errorf("%w: no process listens at %s", replication.ErrRefused, address)
	}
	c := &conn{n: d.n, l: l, address: address}
	c.local, c.closeLocal = context.WithCancel(context.WithoutCancel(ctx))
	c.remote, c.kill = context.WithCancel(context.WithoutCancel(ctx))
	if d.n.conns == nil {
		d.n.conns = make(map[*conn]struct{})
	}
	d.n.conns[c] = struct{}{}
	return c, nil
}

// conn is a connection. The dialer's end is local, the listener's end remote; each can go without the other one
// noticing before the link is open.
type conn struct {
	n          *Network
	l          *Listener
	address    string
	local      context.Context //nolint:containedctx // a connection's end is its context
	closeLocal context.CancelFunc
	remote     context.Context //nolint:containedctx // as above
	kill       context.CancelFunc
}

// Close ends the dialer's end. On a cut link, Reset still discards the messages that it has sent.
func (c *conn) Close() error {
	c.closeLocal()
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	if c.n.cut[c.address] == nil {
		delete(c.n.conns, c)
	}
	return nil
}

// serve runs one call of the service, in a goroutine that ends with it, and tells gone when it has returned. ctx is the
// calling end's, which the call itself does not see: it runs at the other end.
//
//nolint:contextcheck // therefore
func (c *conn) serve(ctx context.Context, call func(ctx context.Context) error) (gone *ending) {
	gone = &ending{done: make(chan struct{})}
	remote, cancel := context.WithCancel(c.remote)
	go func() {
		gone.err = call(remote)
		if gone.err == nil {
			gone.err = errEnd
		}
		cancel()
		close(gone.done)
	}()
	go func() { // the end of the calling end passes an open link only
		select {
		case <-ctx.Done():
		case <-c.local.Done():
		case <-gone.done:
			return
		}
		if c.n.open(c.address, gone.done) {
			cancel()
		}
	}()
	return gone
}

// errEnd is what the calling end sees after a call that returned no error.
var errEnd = errors.New("memnet: the other end has ended the stream")

// ending is the end of a call.
type ending struct {
	done chan struct{}
	err  error // set before done is closed
}

// streamMessages is how many messages a stream holds in each direction before a sender has to wait.
const streamMessages = 64

// recv returns the next message, and the end only after everything that was sent before it. Nothing passes a cut link.
func recv[T any](c *conn, ctx context.Context, from <-chan T, gone *ending) (m T, err error) { //nolint:revive // the connection is the receiver
	select {
	case m = <-from:
	case <-ctx.Done():
		return m, fmt.Errorf("memnet: %w", context.Cause(ctx))
	case <-c.local.Done():
		return m, errReset
	case <-gone.done:
		select {
		case m = <-from:
		default:
			err = gone.err
		}
	}
	if !c.n.open(c.address, ctx.Done()) {
		return m, fmt.Errorf("memnet: %w", context.Cause(ctx))
	}
	return m, err
}

// Replicate calls the listener's service.
func (c *conn) Replicate(ctx context.Context) (replication.ActiveStream, error) {
	service, err := c.l.active()
	if err != nil {
		return nil, err
	}
	s := &stream{
		c: c, ctx: ctx,
		up:   make(chan *replication.StandbyMessage, streamMessages),
		down: make(chan *replication.ActiveMessage, streamMessages),
	}
	s.gone = c.serve(ctx, func(ctx context.Context) error { return service.Replicate(ctx, &serverStream{s, ctx}) })
	return s, nil
}

// stream is the calling end.
type stream struct {
	c    *conn
	ctx  context.Context //nolint:containedctx // a stream's end is its context
	up   chan *replication.StandbyMessage
	down chan *replication.ActiveMessage
	gone *ending
}

// Send copies the message.
func (s *stream) Send(m *replication.StandbyMessage) error {
	msg := *m
	select {
	case s.up <- &msg:
		return nil
	case <-s.ctx.Done():
		return fmt.Errorf("memnet: %w", context.Cause(s.ctx))
	case <-s.c.local.Done():
		return errReset
	case <-s.gone.done:
		return errReset
	}
}

// Recv returns the next message.
func (s *stream) Recv() (*replication.ActiveMessage, error) { return recv(s.c, s.ctx, s.down, s.gone) }

// serverStream is the service's end.
type serverStream struct {
	s   *stream
	ctx context.Context //nolint:containedctx // a stream's end is its context
}

// Send copies the message and its records.
func (s *serverStream) Send(m *replication.ActiveMessage) error {
	msg := *m
	msg.Records = append([]byte(nil), m.Records...)
	select {
	case s.s.down <- &msg:
		return nil
	case <-s.ctx.Done():
		return errReset
	}
}

// Recv returns the next message. It returns none after a reset, also if the link was cut when the message was sent.
func (s *serverStream) Recv() (*replication.StandbyMessage, error) {
	select {
	case m := <-s.s.up:
		if s.s.c.n.open(s.s.c.address, s.ctx.Done()) && s.ctx.Err() == nil {
			return m, nil
		}
	case <-s.ctx.Done():
	}
	return nil, errReset
}

// Meet is not offered: what memnet serves is roles, and not nodes.
func (c *conn) Meet(context.Context, replication.Introduction) (replication.Introduction, error) {
	return replication.Introduction{}, replication.ErrNotActive
}

// Received is 0: messages come whole.
func (*conn) Received() uint64 { return 0 }

// FetchSnapshot calls the listener's service.
func (c *conn) FetchSnapshot(ctx context.Context, req replication.SnapshotRequest) (replication.SnapshotStream, error) {
	service, err := c.l.active()
	if err != nil {
		return nil, err
	}
	s := &snapshotStream{c: c, ctx: ctx, chunks: make(chan *replication.SnapshotChunk, streamMessages)}
	s.gone = c.serve(ctx, func(ctx context.Context) error {
		return service.FetchSnapshot(ctx, req, func(m *replication.SnapshotChunk) error {
			msg := *m
			msg.Data = append([]byte(nil), m.Data...)
			select {
			case s.chunks <- &msg:
				return nil
			case <-ctx.Done():
				return errReset
			}
		})
	})
	return s, nil
}

// snapshotStream is the calling end.
type snapshotStream struct {
	c      *conn
	ctx    context.Context //nolint:containedctx // a stream's end is its context
	chunks chan *replication.SnapshotChunk
	gone   *ending
}

// Recv returns the next chunk.
func (s *snapshotStream) Recv() (*replication.SnapshotChunk, error) {
	return recv(s.c, s.ctx, s.chunks, s.gone)
}
