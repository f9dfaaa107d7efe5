// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"cmp"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"time"
)

// This file tells who is connected, and what goes over the connections.

// Errors of CloseConnection.
var (
	// ErrNoConnection is returned for a number that no connection has.
	ErrNoConnection = errors.New("there is no connection of that number; it may have ended by itself")
	// ErrPeerConnection is returned for the connection of the other node.
	ErrPeerConnection = errors.New("it is the connection of the other node of the pair; stop that node instead")
)

// Caller is who makes the calls of a connection.
type Caller struct {
	// Principal of the last call that was let in, and how it was shown.
	Principal, Authentication string
	// Client is what the client calls itself, TLS the version of TLS; empty without.
	Client, TLS string
	// Peer: it is the other node of the pair.
	Peer bool
}

// Called notes who made a call that was let in. about gives the client's name and the version of TLS; it is called for
// the first one.
func (c *Conn) Called(principal, authentication string, isPeer bool, about func() (client, tls string)) {
	if c == nil {
		return
	}
	last := c.caller.Load()
	if last != nil && last.Principal == principal && last.Authentication == authentication && (last.Peer || !isPeer) {
		return
	}
	now := Caller{Principal: principal, Authentication: authentication, Peer: isPeer}
	if last != nil {
		now.Client, now.TLS, now.Peer = last.Client, last.TLS, isPeer || last.Peer
	} else {
		now.Client, now.TLS = about()
	}
	c.caller.Store(&now)
}

// Name notes what the client at the other end of an accepted connection calls itself, in place of the user agent of its
// calls. The address is that of the connection.
func Name(of net.Addr, client string) {
	if r, ok := of.(*Remote); ok {
		r.conn.named.Store(&client)
	}
}

// Use is what a stream does.
type Use struct {
	// Consumes: it gets messages, and otherwise it publishes.
	Consumes bool
	// Queues that it uses, and the subscription that it consumes from.
	Queues       []string
	Subscription string
	// Credit is how many more messages a consumer may be given; Unacknowledged, what it has and has not answered for.
	Credit, Unacknowledged uint64
}

// Stream is a call that publishes or consumes for as long as it is open. It is made by Conn.Open.
type Stream struct {
	conn     *Conn
	consumes bool
	describe func() Use
	since    time.Time
	messages atomic.Uint64
}

// Open notes a stream of the connection. describe may be called by any goroutine until Close has returned. Close must
// be called.
func (c *Conn) Open(consumes bool, describe func() Use) *Stream {
	s := &Stream{conn: c, consumes: consumes, describe: describe}
	if c == nil {
		return s
	}
	s.since = time.Now()
	c.streamsMu.Lock()
	defer c.streamsMu.Unlock()
	if c.streams == nil {
		c.streams = make(map[*Stream]struct{})
	}
	c.streams[s] = struct{}{}
	return s
}

// Passed counts messages that went over the stream.
func (s *Stream) Passed(messages int) { s.messages.Add(uint64(messages)) }

// Close ends it; its messages stay counted for the connection.
func (s *Stream) Close() {
	c := s.conn
	if c == nil {
		return
	}
	c.streamsMu.Lock()
	defer c.streamsMu.Unlock()
	delete(c.streams, s)
	if s.consumes {
		c.messagesOut.Add(s.messages.Load())
	} else {
		c.messagesIn.Add(s.messages.Load())
	}
}

// Published counts messages that were published by a call that is no stream.
func (c *Conn) Published(messages int) {
	if c != nil {
		c.messagesIn.Add(uint64(messages))
	}
}

// Traffic is what went over a connection one way.
type Traffic struct{ Bytes, Messages uint64 }

// StreamInfo describes a stream.
type StreamInfo struct {
	Use

	// Since when it is open, and how many messages went over it.
	Since    time.Time
	Messages uint64
}

// Info describes a connection.
type Info struct {
	Caller

	// ID is its number, Address where it comes from, Since when it was made.
	ID      uint64
	Address string
	Since   time.Time
	// Protocol that is spoken: "gRPC", or the name that its port has.
	Protocol string
	// Received from the client, and Sent to it.
	Received, Sent Traffic
	// Streams that are open, the oldest first.
	Streams []StreamInfo
}

// List describes all connections, the oldest first.
func (l *Listener) List() []Info {
	l.mu.Lock()
	all := make([]*Conn, 0, len(l.conns))
	for _, c := range l.conns {
		all = append(all, c)
	}
	l.mu.Unlock()
	slices.SortFunc(all, func(a, b *Conn) int { return cmp.Compare(a.id, b.id) })
	out := make([]Info, len(all))
	for i, c := range all {
		out[i] = c.info()
	}
	return out
}

// CloseConnection closes a connection, unless it is the other node's, and returns what it was.
func (l *Listener) CloseConnection(id uint64) (Info, error) {
	l.mu.Lock()
	c := l.conns[id]
	l.mu.Unlock()
	if c == nil {
		return Info{}, ErrNoConnection
	}
	info := c.info()
	if info.Peer {
		return info, ErrPeerConnection
	}
	_ = c.end() // its client finds out
	return info, nil
}

func (c *Conn) info() Info {
	out := Info{ID: c.id, Address: c.remote.String(), Since: c.since}
	if caller := c.caller.Load(); caller != nil {
		out.Caller = *caller
	}
	if out.Protocol = c.protocol; c.protocol == "" {
		out.Protocol = "gRPC"
	}
	if name := c.named.Load(); name != nil {
		out.Client = *name
	}
	c.streamsMu.Lock()
	defer c.streamsMu.Unlock()
	out.Received = Traffic{Bytes: c.bytesIn.Load(), Messages: c.messagesIn.Load()}
	out.Sent = Traffic{Bytes: c.bytesOut.Load(), Messages: c.messagesOut.Load()}
	for s := range c.streams {
		info := StreamInfo{Use: s.describe(), Since: s.since, Messages: s.messages.Load()}
		info.Consumes = s.consumes
		if s.consumes {
			out.Sent.Messages += info.Messages
		} else {
			out.Received.Messages += info.Messages
		}
		out.Streams = append(out.Streams, info)
	}
	slices.SortFunc(out.Streams, func(a, b StreamInfo) int { return a.Since.Compare(b.Since) })
	return out
}
