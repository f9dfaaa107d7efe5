// SPDX-License-Identifier: Apache-2.0

package faultproxy

import (
	"bytes"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Shape is a slow link for connections of a Relay.
type Shape struct {
	// Delay is the one-way latency, which applies in each direction.
	Delay time.Duration
	// BytesPerSecond is the bandwidth in each direction, shared by all shaped connections of the relay; 0 means no limit.
	BytesPerSecond int64
	// Only, if not nil, restricts the shape to HTTP/2 connections with a first request for which Only returns true. path
	// is the path of that request, such as "/package.Service/Method". Data before the first request is not delayed.
	Only func(path string) bool
}

const (
	chunkBytes = 32 << 10
	// chunksInTransit limits the data that is delayed on a connection in one direction.
	chunksInTransit = 4096
	// lateTimers is the maximum time that a shaped direction catches up after a late timer.
	lateTimers = 5 * time.Millisecond
	// maxHeadBytes limits the data in which the first request is searched.
	maxHeadBytes = 64 << 10
)

// SetShape makes connections slow. The first call must precede the first connection; another call changes Delay and
// BytesPerSecond of all shaped connections.
func (p *Relay) SetShape(s Shape) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shape = &s
}

// CutShaped holds the data of all shaped connections in both directions, until HealShaped. Other connections are not
// affected.
func (p *Relay) CutShaped() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if isClosed(p.shapedFlow) && !p.closed {
		p.shapedFlow = make(chan struct{})
	}
}

// HealShaped ends CutShaped, and delivers the held data.
func (p *Relay) HealShaped() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.healShaped()
}

func (p *Relay) healShaped() {
	if !isClosed(p.shapedFlow) {
		close(p.shapedFlow)
	}
}

// shaped is a connection of a relay with a shape.
type shaped struct {
	relay *Relay
	only  func(path string) bool
	slow  atomic.Bool
	head  []byte // data to the target until the first request is known; nil afterwards; used by one goroutine
}

func newShaped(p *Relay, only func(path string) bool) *shaped {
	c := &shaped{relay: p, only: only}
	if only == nil {
		c.slow.Store(true)
	} else {
		c.head = []byte{}
	}
	return c
}

// inspect searches for the first request in the data to the target. When the request is known, inspect sets slow to
// the result of only.
func (c *shaped) inspect(data []byte) {
	if c.head == nil {
		return
	}
	c.head = append(c.head, data...)
	path, known := firstRequest(c.head)
	if known || len(c.head) > maxHeadBytes {
		c.slow.Store(path != "" && c.only(path))
		c.head = nil
	}
}

// firstRequest returns the path of the first request of an HTTP/2 connection. known is false while data is incomplete.
// The path is empty for other protocols.
func firstRequest(data []byte) (path string, known bool) {
	preface := []byte(http2.ClientPreface)
	if n := min(len(data), len(preface)); !bytes.Equal(data[:n], preface[:n]) {
		return "", true
	} else if n < len(preface) {
		return "", false
	}
	f := http2.NewFramer(nil, bytes.NewReader(data[len(preface):]))
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return "", false
		}
		if h, ok := frame.(*http2.MetaHeadersFrame); ok {
			return h.PseudoValue("path"), true
		}
	}
}

type chunk struct {
	data []byte
	due  time.Time // zero: immediately
}

// pump is like Relay.pump, but delays the data.
func (c *shaped) pump(to, from net.Conn, d Direction) {
	chunks := make(chan chunk, chunksInTransit)
	var both sync.WaitGroup
	both.Go(func() {
		defer close(chunks)
		c.read(chunks, from, d)
	})
	both.Go(func() {
		defer func() { _ = errors.Join(to.Close(), from.Close()) }()
		c.write(to, chunks, d)
	})
	both.Wait()
}

func (c *shaped) read(chunks chan<- chunk, from net.Conn, d Direction) {
	buf := make([]byte, chunkBytes)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if d == ToTarget {
				c.inspect(buf[:n])
			}
			next := chunk{data: bytes.Clone(buf[:n])}
			if c.slow.Load() {
				var sent time.Time
				sent, next.due = c.relay.transit(d, n, time.Now())
				waitUntil(sent)
			}
			chunks <- next
		}
		if err != nil {
			return
		}
	}
}

// write writes the chunks until the channel is closed. After an error, it discards the remaining chunks.
func (c *shaped) write(to net.Conn, chunks <-chan chunk, d Direction) {
	failed := false
	for next := range chunks {
		if failed {
			continue
		}
		waitUntil(next.due)
		if !next.due.IsZero() {
			c.relay.waitShaped()
		}
		c.relay.waitFlowing(d)
		c.relay.count(len(next.data))
		if _, err := to.Write(next.data); err != nil {
			failed = true
			_ = to.Close() // so that the other direction ends
		}
	}
}

// transit reserves bandwidth for n bytes. It returns the times at which the last byte is sent and arrives.
func (p *Relay) transit(d Direction, n int, now time.Time) (sent, arrives time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sent = now
	if rate := p.shape.BytesPerSecond; rate > 0 {
		start := now.Add(-lateTimers)
		if p.free[d].After(start) {
			start = p.free[d]
		}
		p.free[d] = start.Add(time.Duration(int64(n) * int64(time.Second) / rate))
		if p.free[d].After(now) {
			sent = p.free[d]
		}
	}
	return sent, sent.Add(p.shape.Delay)
}

func (p *Relay) waitShaped() {
	p.mu.Lock()
	flowing := p.shapedFlow
	if !isClosed(flowing) {
		p.held++
	}
	p.mu.Unlock()
	<-flowing
}

func waitUntil(t time.Time) {
	wait := time.Until(t)
	if t.IsZero() || wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	<-timer.C
}
