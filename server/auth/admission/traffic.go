// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"cmp"
	"errors"
	"maps"
	"net"
	"slices"
	"sync/atomic"
	"time"
)

var (
	// ErrNoConnection is returned if no open connection has the given ID.
	ErrNoConnection = errors.New("connection not found")
	// ErrPeerConnection is returned for the connection of the other node.
	ErrPeerConnection = errors.New("connection belongs to the other node of the pair; stop that node instead")
)

// Caller describes the client of a connection.
type Caller struct {
	Principal, Authentication string // values of the last admitted call
	Client, TLS               string // name sent by the client, and TLS version; empty if unknown or without TLS
	Peer                      bool   // the client is the other node of the pair
}

// SetCaller records the caller of an admitted call. about returns the client's name and the TLS version. It is
// called only for the first admitted call of the connection.
func (c *Conn) SetCaller(principal, authentication string, isPeer bool, about func() (client, tls string)) {
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

// Name sets the client name of the connection with the given remote address. It takes precedence over the user
// agent of the calls.
func Name(of net.Addr, client string) {
	if r, ok := of.(*Remote); ok {
		r.conn.named.Store(&client)
	}
}

// Use describes the activity of a stream.
type Use struct {
	Consumes               bool // the stream receives messages; otherwise it publishes
	Queues                 []string
	Subscription           string
	Credit, Unacknowledged uint64 // numbers of messages that may still be delivered, and of messages in flight
}

// Stream is an open publish or consume call, created by Conn.Open.
type Stream struct {
	conn     *Conn
	consumes bool
	describe func() Use
	since    time.Time
	messages atomic.Uint64
}

// Open registers a stream. describe may be called from any goroutine until Close has returned. The caller must
// call Close.
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

// Passed adds messages to the message count of the stream.
func (s *Stream) Passed(messages int) { s.messages.Add(uint64(messages)) }

// Close removes the stream. Its messages are added to the counters of the connection.
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

// Published counts the messages that a unary call has published.
func (c *Conn) Published(messages int) {
	if c != nil {
		c.messagesIn.Add(uint64(messages))
	}
}

// Traffic is the traffic of a connection in one direction.
type Traffic struct{ Bytes, Messages uint64 }

// StreamInfo describes a stream.
type StreamInfo struct {
	Use

	Since    time.Time
	Messages uint64
}

// Info describes a connection.
type Info struct {
	Caller

	ID             uint64
	Address        string
	Since          time.Time
	Protocol       string // "gRPC", or the name of the port's protocol
	Received, Sent Traffic
	Streams        []StreamInfo // oldest first
}

// List returns the descriptions of all connections, oldest first.
func (l *Listener) List() []Info {
	l.mu.Lock()
	all := slices.Collect(maps.Values(l.conns))
	l.mu.Unlock()
	slices.SortFunc(all, func(a, b *Conn) int { return cmp.Compare(a.id, b.id) })
	out := make([]Info, len(all))
	for i, c := range all {
		out[i] = c.info()
	}
	return out
}

// CloseConnection closes a connection and returns its description. It returns ErrPeerConnection for a connection of the
// other node, and ErrNoConnection if no open connection has the ID.
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
	_ = c.end() // the client detects the closed connection
	return info, nil
}

func (c *Conn) info() Info {
	out := Info{ID: c.id, Address: c.remote.String(), Since: c.since, Protocol: cmp.Or(c.protocol, "gRPC")}
	if caller := c.caller.Load(); caller != nil {
		out.Caller = *caller
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
