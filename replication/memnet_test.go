// SPDX-License-Identifier: Apache-2.0

package replication_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/lockstep-mq/lockstep/replication"
)

// errReset is the error at one end after the other end is closed.
var errReset = errors.New("memnet: connection reset")

// memNetwork is an in-memory network for replication. It carries the same messages as gRPC, without sockets. Its links
// can be cut, so that tests can cause silence, resets and refusals separately. The zero memNetwork is ready for use.
type memNetwork struct {
	mu        sync.Mutex // guards all below
	listeners map[string]*memListener
	conns     map[*conn]struct{}
	// cut maps each unreachable address to a channel that is closed by Heal.
	cut map[string]chan struct{}
}

// memListener accepts connections at an address until Close.
type memListener struct {
	n       *memNetwork
	address string
	active  func() (replication.Service, error)
}

// Listen makes a node reachable, as replication.NewServer does with gRPC. active is called for each connection.
func (n *memNetwork) Listen(address string, active func() (replication.Service, error)) *memListener {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners == nil {
		n.listeners = make(map[string]*memListener)
	}
	l := &memListener{n: n, address: address, active: active}
	n.listeners[address] = l
	return l
}

// Close resets all connections to the address and refuses new ones, like a killed process.
func (l *memListener) Close() {
	l.n.mu.Lock()
	if l.n.listeners[l.address] == l {
		delete(l.n.listeners, l.address)
	}
	l.n.mu.Unlock()
	l.n.Reset(l.address)
}

// Reset ends all connections to the address at that end. A dialer detects it while the link is not cut.
func (n *memNetwork) Reset(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if c.address == address {
			c.kill()
		}
	}
}

// Cut blocks all traffic with the address in both directions, without ending a connection.
func (n *memNetwork) Cut(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut == nil {
		n.cut = make(map[string]chan struct{})
	}
	if n.cut[address] == nil {
		n.cut[address] = make(chan struct{})
	}
}

// Heal reverts Cut. Messages in flight arrive.
func (n *memNetwork) Heal(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if ch := n.cut[address]; ch != nil {
		close(ch)
		delete(n.cut, address)
	}
}

// open waits until the link to the address is not cut.
func (n *memNetwork) open(address string, done <-chan struct{}) bool {
	for {
		n.mu.Lock()
		healed := n.cut[address]
		n.mu.Unlock()
		if healed == nil {
			return true
		}
		select {
		case <-healed:
		case <-done:
			return false
		}
	}
}

// Dialer returns a dialer for the network.
func (n *memNetwork) Dialer() replication.Dialer { return dialer{n} }

type dialer struct{ n *memNetwork }

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

// conn is a connection. The dialer's end is local, the listener's end remote. One end can close without the other
// detecting it while the link is cut.
type conn struct {
	n          *memNetwork
	l          *memListener
	address    string
	local      context.Context
	closeLocal context.CancelFunc
	remote     context.Context
	kill       context.CancelFunc
}

// Close closes the dialer's end. On a cut link, Reset still discards the messages in flight.
func (c *conn) Close() error {
	c.closeLocal()
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	if c.n.cut[c.address] == nil {
		delete(c.n.conns, c)
	}
	return nil
}

// serve runs one call of the service in a goroutine and completes gone when it has returned. ctx belongs to the
// calling end. The call does not inherit it, because it runs at the other end.
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
	go func() { // a close of the calling end propagates only over an open link
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

// errEnd is the error at the calling end after a call that returned no error.
var errEnd = errors.New("memnet: remote end has closed the stream")

// ending is the end of a call.
type ending struct {
	done chan struct{}
	err  error // set before done is closed
}

// streamMessages is the capacity of a stream in each direction, in messages.
const streamMessages = 64

// recv returns the next message, and the end of the call only after all earlier messages. Nothing passes a cut link.
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

// stream is the calling end of a Replicate call.
type stream struct {
	c    *conn
	ctx  context.Context
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

// serverStream is the service's end of a Replicate call.
type serverStream struct {
	s   *stream
	ctx context.Context
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

// Recv returns the next message. It returns none after a reset, even if the link was cut when the message was sent.
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

// Handshake is not supported: memnet serves roles, not nodes.
func (c *conn) Handshake(context.Context, replication.ProcessIdentity) (replication.ProcessIdentity, error) {
	return replication.ProcessIdentity{}, replication.ErrNotActive
}

// Received returns 0: messages arrive whole.
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

// snapshotStream is the calling end of a FetchSnapshot call.
type snapshotStream struct {
	c      *conn
	ctx    context.Context
	chunks chan *replication.SnapshotChunk
	gone   *ending
}

// Recv returns the next chunk.
func (s *snapshotStream) Recv() (*replication.SnapshotChunk, error) {
	return recv(s.c, s.ctx, s.chunks, s.gone)
}
