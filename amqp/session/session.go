// SPDX-License-Identifier: Apache-2.0

package session

import "github.com/lockstep-mq/lockstep/amqp/wire"

// Session is a session begun by the peer.
type Session struct {
	Data any // for use by the caller

	conn    *Conn
	peer    *wire.Begin
	channel uint16 // the own channel
	remote  uint16 // the peer's channel

	ended, peerEnded bool // End was sent; End was received
	left             bool // the peer ended the session without an error
	reported         bool // the caller was notified of the end of the session
	count            int  // links without a detach from both sides

	nextIncoming   uint32 // number of the next incoming transfer
	incomingWindow uint32 // number of transfers still accepted
	nextOutgoing   uint32
	remoteWindow   uint32 // number of transfers that the peer still accepts

	handles map[uint32]*Link // by the peer's handle
	links   []*Link          // by the own handle
	byFlow  []*Link          // links with a flow to send
	ready   []*Link          // sender links with a waiting message and credit, round-robin
	current *Link            // sender link with a partly sent message

	in, out        deliveries
	nextIn         uint32 // number of the peer's next delivery
	anyIn          bool   // nextIn is known
	nextOut        uint32
	settle         settling
	flowDue, isDue bool // the windows must be sent; the session is in conn.due
}

// outgoingWindow is the announced window; only the peer's window, credit, and Options.MaxUnsettled limit sending.
const outgoingWindow = 1<<31 - 1

func (c *Conn) receiveBegin(channel uint16, b *wire.Begin) error {
	switch {
	case c.peer == nil:
		return c.fail(IllegalState, "begin before open")
	case channel > c.o.ChannelMax:
		return c.fail(ConnectionFramingError, "session begins on channel %d, channel-max is %d", channel, c.o.ChannelMax)
	case b.RemoteChannel.Set:
		return c.fail(NotAllowed, "begin responds to channel %d, but no begin was sent on it", b.RemoteChannel.Value)
	case c.remote[channel] != nil:
		return c.fail(ConnectionFramingError, "channel %d already has a session", channel)
	}
	own, ok := c.freeChannel(channel)
	if !ok {
		return c.fail(ResourceLimitExceeded, "no free channel for another session")
	}
	s := &Session{
		conn: c, peer: b, channel: own, remote: channel,
		nextIncoming: b.NextOutgoingID, incomingWindow: c.o.IncomingWindow,
		nextOutgoing: c.o.firstID, remoteWindow: b.IncomingWindow,
		handles: make(map[uint32]*Link), nextOut: c.o.firstID,
	}
	c.remote[channel], c.channels[own] = s, s
	c.write(own, &wire.Begin{
		RemoteChannel: wire.Some(channel), NextOutgoingID: s.nextOutgoing,
		IncomingWindow: s.incomingWindow, OutgoingWindow: outgoingWindow, HandleMax: c.o.HandleMax,
	})
	c.events.push(&Began{Session: s})
	return nil
}

// freeChannel returns a free channel, preferably the one requested, or false if all are in use.
func (c *Conn) freeChannel(requested uint16) (uint16, bool) {
	limit := int(min(c.peer.ChannelMax, c.o.ChannelMax)) + 1
	take := func(n int) (uint16, bool) {
		for len(c.channels) <= n {
			c.channels = append(c.channels, nil)
		}
		return uint16(n), true
	}
	if n := int(requested); n < limit && (n >= len(c.channels) || c.channels[n] == nil) {
		return take(n)
	}
	for n := range limit {
		if n >= len(c.channels) || c.channels[n] == nil {
			return take(n)
		}
	}
	return 0, false
}

// over reports whether no further frames of the session may be sent.
func (s *Session) over() bool { return s.ended || s.conn.closed || s.conn.peerClosed }

func (s *Session) receive(f *wire.Frame) {
	if s.ended { // all frames except the response are discarded (2.5.4)
		if _, ok := f.Body.(*wire.End); ok {
			delete(s.conn.remote, s.remote)
			s.peerEnded = true
			s.free()
		}
		return
	}
	switch body := f.Body.(type) {
	case *wire.Transfer:
		s.receiveTransfer(body, f.Payload)
	case *wire.Disposition:
		s.receiveDisposition(body)
	case *wire.Flow:
		s.receiveFlow(body)
	case *wire.Attach:
		s.receiveAttach(body)
	case *wire.Detach:
		s.receiveDetach(body)
	case *wire.End:
		s.peerEnded, s.left = true, body.Error == nil
		delete(s.conn.remote, s.remote)
		s.close(body.Error)
	default:
		_ = s.conn.fail(ConnectionFramingError, "frame is not allowed in a session")
	}
}

// End ends the session, with an error or nil, or responds to an Ended event. Its links end without events.
func (s *Session) End(err *wire.Error) {
	if s.over() {
		return
	}
	c := s.conn
	s.flush()
	c.write(s.channel, &wire.End{Error: c.fitting(err)})
	s.ended, s.reported = true, true
	muted := c.events.muted
	c.events.muted = true
	s.endLinks()
	c.events.muted = muted
	if s.peerEnded {
		s.free()
	}
}

func (s *Session) fail(condition wire.Symbol, format string, args ...any) {
	if s.over() || s.peerEnded {
		return
	}
	e := Errorf(condition, format, args...)
	s.endLinks()
	s.End(e)
	s.conn.events.push(&Ended{Session: s, Err: e, Ended: true})
}

// close ends the session and its links with events, because the peer ended the session or the connection closes.
func (s *Session) close(err *wire.Error) {
	if s.reported {
		return
	}
	s.reported = true
	s.endLinks()
	s.conn.events.push(&Ended{Session: s, Err: err, Ended: !s.peerEnded})
}

func (s *Session) endLinks() {
	for _, l := range s.links {
		if l != nil {
			l.end()
		}
	}
	s.conn.links -= s.count
	s.count = 0
	s.links, s.handles, s.byFlow, s.ready, s.current = nil, nil, nil, nil, nil
	s.in, s.out = deliveries{}, deliveries{}
}

func (s *Session) free() {
	if int(s.channel) < len(s.conn.channels) && s.conn.channels[s.channel] == s {
		s.conn.channels[s.channel] = nil
	}
}
