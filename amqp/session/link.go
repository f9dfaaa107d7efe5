// SPDX-License-Identifier: Apache-2.0

package session

import (
	"cmp"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// Link is a link attached by the peer. After the link has ended, only Detach has an effect, and Settle until Detach
// responds to the peer.
type Link struct {
	Data any // for use by the caller

	session *Session
	peer    *wire.Attach
	handle  uint32 // the own handle
	role    wire.Role

	answered, accepted     bool // an Attach was sent; it accepts the link
	detached, peerDetached bool // a Detach was sent; one was received
	peerClosed             bool // the received Detach closes the link
	left                   bool // the received Detach has no error
	gone                   bool // no events follow

	credit        uint32
	deliveryCount uint32
	flowDue       bool // in session.byFlow
	receiver      receiver
	sender        sender
}

// Reply contains fields of the Attach that accepts a link. If Source or Target is nil, the peer's value is used.
type Reply struct {
	Source              *wire.Source
	Target              wire.Target
	OfferedCapabilities []wire.Symbol
}

// Sender reports whether messages are sent to the peer on this link.
func (l *Link) Sender() bool { return l.role == wire.RoleSender }

// Session returns the link's session.
func (l *Link) Session() *Session { return l.session }

// Peer returns the peer's Attach.
func (l *Link) Peer() *wire.Attach { return l.peer }

// Gone reports whether the link has ended: by a Detached event or by the caller.
func (l *Link) Gone() bool { return l.gone }

// Left reports whether the peer detached the link, or ended its session or connection, without an error.
func (l *Link) Left() bool { return l.left || l.session.left || l.session.conn.left }

func (s *Session) receiveAttach(a *wire.Attach) {
	c := s.conn
	switch {
	case a.Handle > c.o.HandleMax:
		_ = c.fail(ConnectionFramingError, "link has handle %d, handle-max is %d", a.Handle, c.o.HandleMax)
		return
	case s.handles[a.Handle] != nil:
		s.fail(SessionHandleInUse, "handle %d already has a link", a.Handle)
		return
	case c.links >= c.o.MaxLinks+refusedLinks:
		s.fail(ResourceLimitExceeded, "connection has too many links, maximum is %d", c.o.MaxLinks)
		return
	}
	handle, ok := s.freeHandle()
	if !ok {
		s.fail(ResourceLimitExceeded, "handle-max of the begin leaves no handle for the response to an attach")
		return
	}
	l := &Link{
		session: s, peer: a, handle: handle, role: !a.Role, deliveryCount: c.o.firstID,
	}
	if !l.Sender() {
		l.deliveryCount = a.InitialDeliveryCount.Value
		l.receiver.limit = l.deliveryCount
	}
	s.handles[a.Handle], s.links[handle] = l, l
	s.count++
	c.links++
	if c.links > c.o.MaxLinks {
		l.Refuse(Errorf(ResourceLimitExceeded, "connection has the maximum of %d links", c.o.MaxLinks))
		return
	}
	name := linkName{name: a.Name, sender: l.Sender()}
	if other := c.names[name]; other != nil { // 2.6.1: the new attachment takes over the link
		other.fail(LinkStolen, "link was attached again")
	}
	c.names[name] = l
	c.events.push(&Attached{Link: l})
}

// refusedLinks is the maximum number of refused links above the limit that the peer has not detached yet.
const refusedLinks = 64

func (s *Session) freeHandle() (uint32, bool) {
	for h, l := range s.links {
		if l == nil {
			return uint32(h), true
		}
	}
	if uint64(len(s.links)) > uint64(s.peer.HandleMax) {
		return 0, false
	}
	s.links = append(s.links, nil)
	return uint32(len(s.links) - 1), true
}

// Accept responds to an Attached event and accepts the link. It returns false if the link has ended or was answered
// already, or is refused because the response exceeds the peer's max-frame-size. A Credit event follows if the peer
// has granted credit already.
func (l *Link) Accept(r Reply) bool {
	if l.gone || l.answered {
		return false
	}
	a := l.reply()
	a.Source, a.Target = cmp.Or(r.Source, l.peer.Source), r.Target
	if a.Target == nil {
		a.Target = l.peer.Target
	}
	a.MaxMessageSize, a.OfferedCapabilities = l.session.conn.o.MaxMessageSize, r.OfferedCapabilities
	if !l.writeFitting(a) {
		l.Refuse(Errorf(FrameSizeTooSmall, "response to the attach exceeds the frame size of %d bytes",
			l.session.conn.maxFrame()))
		return false
	}
	l.answered, l.accepted = true, true
	if !l.Sender() && l.credit > 0 { // granted earlier
		l.scheduleFlow()
	}
	if l.Sender() {
		l.reportEarlyCredit()
	}
	return true
}

// reply returns an Attach without a source or target.
func (l *Link) reply() *wire.Attach {
	return &wire.Attach{
		Name: l.peer.Name, Handle: l.handle, Role: l.role,
		SenderSettleMode: l.peer.SenderSettleMode, ReceiverSettleMode: l.peer.ReceiverSettleMode,
		InitialDeliveryCount: wire.Optional[uint32]{Value: l.deliveryCount, Set: l.Sender()},
	}
}

// writeFitting writes an Attach. It returns false, and writes nothing, if the frame exceeds the peer's max-frame-size.
func (l *Link) writeFitting(a *wire.Attach) bool {
	c := l.session.conn
	before := len(c.out)
	c.write(l.session.channel, a)
	if len(c.out)-before > c.maxFrame() {
		c.out = c.out[:before]
		return false
	}
	return true
}

// Refuse responds to an Attached event and refuses the link.
func (l *Link) Refuse(err *wire.Error) {
	if l.answered {
		return
	}
	l.Detach(true, err)
}

// Detach detaches the link, with an error or nil, or responds to a Detached event with the peer's value of closed.
func (l *Link) Detach(closed bool, err *wire.Error) {
	s := l.session
	if l.detached || s.over() || s.reported {
		return
	}
	if !l.answered { // a refusal has no source or target (2.6.3)
		l.answered = true
		s.conn.write(s.channel, l.reply())
	}
	if l.peerDetached {
		closed = l.peerClosed
	}
	s.flush()
	s.conn.write(s.channel, &wire.Detach{Handle: l.handle, Closed: closed, Error: s.conn.fitting(err)})
	l.detached = true
	l.release()
	s.in.removeLink(l)
	s.links[l.handle] = nil
	if l.peerDetached {
		l.finish()
	}
}

func (l *Link) finish() {
	l.session.count--
	l.session.conn.links--
}

func (l *Link) fail(condition wire.Symbol, format string, args ...any) {
	if l.gone {
		return
	}
	e := Errorf(condition, format, args...)
	l.Detach(true, e)
	l.session.conn.events.push(&Detached{Link: l, Closed: true, Err: e, Ended: true})
}

func (s *Session) receiveDetach(d *wire.Detach) {
	l := s.handles[d.Handle]
	if l == nil {
		s.fail(SessionUnattachedHandle, "detach of handle %d, which has no link", d.Handle)
		return
	}
	delete(s.handles, d.Handle)
	l.peerDetached, l.peerClosed, l.left = true, d.Closed, d.Error == nil
	if l.detached {
		l.finish()
		return
	}
	answered := l.answered
	l.release()
	if !answered { // a response to the attach would be useless
		l.Detach(d.Closed, nil)
	}
	s.conn.events.push(&Detached{Link: l, Closed: d.Closed, Err: d.Error, Ended: !answered})
}

func (l *Link) end() {
	if l.gone {
		return
	}
	l.release()
	l.session.conn.events.push(&Detached{Link: l, Ended: true})
}

func (l *Link) release() {
	if l.gone {
		return
	}
	l.gone = true
	c := l.session.conn
	name := linkName{name: l.peer.Name, sender: l.Sender()}
	if c.names[name] == l {
		delete(c.names, name)
	}
	l.receiver.drop(c)
	l.releaseUnsent()
	if !l.awaitsDetach() {
		l.session.in.removeLink(l)
	}
	l.session.out.removeLink(l)
	l.credit = 0
}

// awaitsDetach reports whether the peer waits for a response to its detach. Until the response, outcomes are sent.
func (l *Link) awaitsDetach() bool {
	return l.peerDetached && l.accepted && !l.detached && !l.session.over() && !l.session.reported
}

func (l *Link) scheduleFlow() {
	if !l.flowDue {
		l.flowDue = true
		l.session.byFlow = append(l.session.byFlow, l)
	}
	l.session.due()
}
