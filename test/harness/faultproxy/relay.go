// SPDX-License-Identifier: Apache-2.0

// Package faultproxy forwards TCP connections, and can simulate a network partition and a slow link.
package faultproxy

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Relay forwards TCP connections to one target. While the link is cut, it holds data, and neither side receives an
// error.
type Relay struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex // guards all fields below
	target string
	flow   [2]chan struct{} // by Direction: closed while data may flow, open while that direction is cut
	conns  map[net.Conn]struct{}
	held   uint64 // how often a cut has held data
	bytes  int64  // forwarded in both directions
	limit  int64  // the value of bytes at which to call atLimit
	closed bool
	shape  *Shape       // nil if the link is not slow
	free   [2]time.Time // by Direction: when all data is sent at the bandwidth of shape

	shapedFlow chan struct{} // closed while data of shaped connections may flow

	atLimit func() // nil if After has not been called, or its function has been called
}

// Direction is a direction of a link.
type Direction int

// Directions of a link.
const (
	// ToTarget is the data sent by the connecting side.
	ToTarget Direction = iota
	// FromTarget is the data sent by the target.
	FromTarget
)

// Listen starts a relay that listens on a free port of 127.0.0.1, and forwards connections to target, a host:port.
// Close stops the relay.
func Listen(target string) (*Relay, error) { return ListenOn("127.0.0.1", target) }

// ListenOn is like Listen, but listens on another address of this machine.
func ListenOn(host, target string) (*Relay, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0")) //nolint:noctx // does not block
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	flowing := make(chan struct{})
	close(flowing)
	p := &Relay{
		listener: listener, target: target, flow: [2]chan struct{}{flowing, flowing},
		conns: map[net.Conn]struct{}{}, shapedFlow: flowing,
	}
	p.wg.Go(p.accept)
	return p, nil
}

// Address returns the listen address, a host:port.
func (p *Relay) Address() string { return p.listener.Addr().String() }

// SetTarget changes the target of new connections.
func (p *Relay) SetTarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Cut stops all data in both directions without closing connections. New connections are accepted, but transfer no
// data.
func (p *Relay) Cut() {
	p.CutOneWay(ToTarget)
	p.CutOneWay(FromTarget)
}

// CutOneWay stops all data in one direction without closing connections.
func (p *Relay) CutOneWay(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if isClosed(p.flow[d]) && !p.closed {
		p.flow[d] = make(chan struct{})
	}
}

// Heal ends all cuts, and delivers the held data.
func (p *Relay) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.healAll()
}

func (p *Relay) healAll() {
	for _, f := range p.flow {
		if !isClosed(f) {
			close(f)
		}
	}
}

// Held returns how often a cut has held data or a new connection. It is 0 if no cut had an effect.
func (p *Relay) Held() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// Bytes returns the number of bytes forwarded since Listen, in both directions. It includes bytes that are about to
// be forwarded, but not bytes held by a cut.
func (p *Relay) Bytes() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes
}

// After calls f once, immediately before the relay forwards the n-th byte from now on. A second call replaces a
// function that has not been called. If f is nil, no function is called.
func (p *Relay) After(n int64, f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit, p.atLimit = p.bytes+n, f
}

// count counts n bytes that are about to be forwarded, and calls the function of After at its limit.
func (p *Relay) count(n int) {
	p.mu.Lock()
	p.bytes += int64(n)
	f := p.atLimit
	if p.bytes < p.limit {
		f = nil
	}
	if f != nil {
		p.atLimit = nil
	}
	p.mu.Unlock()
	if f != nil {
		f()
	}
}

// Reset closes all current connections. New connections are forwarded.
func (p *Relay) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// Close stops the relay, and closes all connections.
func (p *Relay) Close() error {
	p.mu.Lock()
	p.closed = true
	p.healAll()
	p.healShaped()
	p.mu.Unlock()
	err := p.listener.Close()
	p.Reset()
	p.wg.Wait()
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	return nil
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (p *Relay) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.relay(in) })
	}
}

func (p *Relay) relay(in net.Conn) {
	if !p.track(in) {
		return
	}
	defer p.untrack(in)
	p.waitFlowing(ToTarget)
	p.mu.Lock()
	target, shape := p.target, p.shape
	p.mu.Unlock()
	out, err := net.Dial("tcp", target) //nolint:noctx // loopback: does not block
	if err != nil || !p.track(out) {
		return
	}
	defer p.untrack(out)
	pump := p.pump
	if shape != nil {
		pump = newShaped(p, shape.Only).pump
	}
	var both sync.WaitGroup
	both.Go(func() { pump(out, in, ToTarget) })
	both.Go(func() { pump(in, out, FromTarget) })
	both.Wait()
}

// pump copies from one side to the other until either ends, and then closes both. It does not support half-closed
// connections.
func (p *Relay) pump(to, from net.Conn, d Direction) {
	defer func() { _ = errors.Join(to.Close(), from.Close()) }()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.waitFlowing(d)
		p.count(n)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *Relay) waitFlowing(d Direction) {
	p.mu.Lock()
	flowing := p.flow[d]
	if !isClosed(flowing) {
		p.held++
	}
	p.mu.Unlock()
	<-flowing
}

func (p *Relay) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.Close()
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Relay) untrack(c net.Conn) {
	_ = c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}
