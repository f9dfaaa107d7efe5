// SPDX-License-Identifier: Apache-2.0

// Package faultproxy passes TCP connections on, and can cut the link as a network does. The tests and `lockstep bench
// failover --fault cut` put it between two nodes, and between a node and its coordinator.
package faultproxy

import (
	"errors"
	"fmt"
	"net"
	"sync"
)

// Relay passes TCP connections on to one target, and can cut the link as a network does: nothing arrives any more and
// neither side is told.
type Relay struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex // guards all below
	target string
	flow   [2]chan struct{} // by Direction: closed while data may flow, a new one while that way is cut
	conns  map[net.Conn]struct{}
	held   uint64 // how often a cut has held something back
	closed bool
}

// Direction is a way through a link.
type Direction int

// The two ways.
const (
	// ToTarget is what the one who connects sends.
	ToTarget Direction = iota
	// FromTarget is what the target sends.
	FromTarget
)

// Listen listens on a free port of 127.0.0.1 and relays to target, host:port. Close stops it.
func Listen(target string) (*Relay, error) { return ListenOn("127.0.0.1", target) }

// ListenOn is Listen on another address of this machine.
func ListenOn(host, target string) (*Relay, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0")) //nolint:noctx // listening on an own address does not block
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	flowing := make(chan struct{})
	close(flowing)
	p := &Relay{
		listener: listener, target: target, flow: [2]chan struct{}{flowing, flowing},
		conns: map[net.Conn]struct{}{},
	}
	p.wg.Go(p.accept)
	return p, nil
}

// Address is where the proxy listens, host:port.
func (p *Relay) Address() string { return p.listener.Addr().String() }

// SetTarget relays new connections to another target.
func (p *Relay) SetTarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Cut stops all data in both directions without closing anything. New connections are accepted and stay silent.
func (p *Relay) Cut() {
	p.CutOneWay(ToTarget)
	p.CutOneWay(FromTarget)
}

// CutOneWay stops all data in one direction without closing anything.
func (p *Relay) CutOneWay(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if isClosed(p.flow[d]) && !p.closed {
		p.flow[d] = make(chan struct{})
	}
}

// Heal lets data flow again, both ways; what was held back arrives.
func (p *Relay) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.healAll()
}

// healAll is Heal with mu held.
func (p *Relay) healAll() {
	for _, f := range p.flow {
		if !isClosed(f) {
			close(f)
		}
	}
}

// Held is how often a cut has held back data or a new connection: whether a cut has struck shows here.
func (p *Relay) Held() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// Reset closes all present connections. New ones are relayed.
func (p *Relay) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// Close ends the proxy with all of its connections.
func (p *Relay) Close() error {
	p.mu.Lock()
	p.closed = true
	p.healAll()
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
	target := p.target
	p.mu.Unlock()
	out, err := net.Dial("tcp", target) //nolint:noctx // loopback: refused or done at once
	if err != nil || !p.track(out) {
		return
	}
	defer p.untrack(out)
	var both sync.WaitGroup
	both.Go(func() { p.pump(out, in, ToTarget) })
	both.Go(func() { p.pump(in, out, FromTarget) })
	both.Wait()
}

// pump copies from one side to the other until either ends, then closes both: a half-closed link is not something that
// we test.
func (p *Relay) pump(to, from net.Conn, d Direction) {
	defer func() { _ = errors.Join(to.Close(), from.Close()) }()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.waitFlowing(d)
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
