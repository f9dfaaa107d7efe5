// SPDX-License-Identifier: Apache-2.0

package session

import "github.com/lockstep-mq/lockstep/amqp/wire"

// Link is a link that the peer has attached. Its methods do nothing when the link is gone.
type Link struct {
	// Data is the caller's own.
	Data any

	session *Session
	peer    *wire.Attach
	handle  uint32 // the own one
	role    wire.Role

	senderMode   wire.SenderSettleMode
	receiverMode wire.ReceiverSettleMode

	answered, accepted     bool // an Attach was sent; it was one that accepts
	detached, peerDetached bool // a Detach was sent; one was received
	peerClosed             bool // the received one closes the link
	left                   bool // the received one has no error
	gone                   bool // no event of it follows

	credit        uint32
	deliveryCount uint32
	flowDue       bool // in session.byFlow
	receiver      receiver
	sender        sender
}

// Reply is what a link is accepted with. Zero values say what the peer has asked for.
type Reply struct {
	Source              *wire.Source
	Target              wire.Target
	SenderSettleMode    wire.Optional[wire.SenderSettleMode]
	ReceiverSettleMode  wire.Optional[wire.ReceiverSettleMode]
	MaxMessageSize      uint64   // in bytes; 0: that of Options
	Unsettled           wire.Map // delivery tags to states, when an earlier attachment is resumed (2.6.13)
	IncompleteUnsettled bool
	OfferedCapabilities []wire.Symbol
	DesiredCapabilities []wire.Symbol
	Properties          wire.Fields
}

// Name is the link's name, which is unique for one role between two containers.
func (l *Link) Name() string { return l.peer.Name }

// Sender tells whether messages are sent to the peer on this link. Else they are received.
func (l *Link) Sender() bool { return l.role == wire.RoleSender }

// Session returns the link's session.
func (l *Link) Session() *Session { return l.session }

// Peer returns what the peer has attached with.
func (l *Link) Peer() *wire.Attach { return l.peer }

// Gone tells that the link takes no messages any more: a Detached event has come, or the caller has ended it.
func (l *Link) Gone() bool { return l.gone }

// Left reports whether the peer has detached the link, or ended its session or connection, without an error.
func (l *Link) Left() bool { return l.left || l.session.left || l.session.conn.left }

// Credit is how many messages more the peer may send, or takes. Those that wait (Unsent) are within it.
func (l *Link) Credit() uint32 { return l.credit }

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
		session: s, peer: a, handle: handle, role: !a.Role,
		senderMode: a.SenderSettleMode, receiverMode: a.ReceiverSettleMode,
		deliveryCount: c.o.firstID,
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
	if other := c.names[name]; other != nil { // 2.6.1: the new attachment takes the link
		other.fail(LinkStolen, "link was attached again")
	}
	c.names[name] = l
	c.events.push(&Attached{Link: l})
}

// refusedLinks is how many links more than allowed may wait for the peer to see that they were refused.
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

// Accept answers an Attached event: the link is there. Without a Source or Target in the reply the peer's is taken
// over. It returns false, and the link is refused, if the answer is larger than the peer's max-frame-size. If the peer
// has given credit already, which it may do before it has the answer, a Credit event follows.
func (l *Link) Accept(r Reply) bool {
	if l.gone || l.answered {
		return false
	}
	a := &wire.Attach{
		Name: l.peer.Name, Handle: l.handle, Role: l.role, Source: r.Source, Target: r.Target,
		SenderSettleMode:   r.SenderSettleMode.Or(l.senderMode),
		ReceiverSettleMode: r.ReceiverSettleMode.Or(l.receiverMode),
		Unsettled:          r.Unsettled, IncompleteUnsettled: r.IncompleteUnsettled,
		OfferedCapabilities: r.OfferedCapabilities, DesiredCapabilities: r.DesiredCapabilities,
		Properties: r.Properties, MaxMessageSize: r.MaxMessageSize,
	}
	if a.Source == nil {
		a.Source = l.peer.Source
	}
	if a.Target == nil {
		a.Target = l.peer.Target
	}
	if a.MaxMessageSize == 0 {
		a.MaxMessageSize = l.session.conn.o.MaxMessageSize
	}
	if l.Sender() {
		a.InitialDeliveryCount = wire.Some(l.deliveryCount)
	} else {
		l.receiver.maxMessage = a.MaxMessageSize
	}
	ok := l.writeFitting(a)
	if !ok && len(a.Unsettled) > 0 { // the peer learns of the others when it attaches again (2.7.3)
		a.Unsettled, a.IncompleteUnsettled = nil, true
		ok = l.writeFitting(a)
	}
	if !ok {
		l.Refuse(Errorf(FrameSizeTooSmall, "response to the attach exceeds the frame size of %d bytes",
			l.session.conn.maxFrame()))
		return false
	}
	l.senderMode, l.receiverMode = a.SenderSettleMode, a.ReceiverSettleMode
	l.answered, l.accepted = true, true
	if !l.Sender() && l.credit > 0 { // granted before
		l.oweFlow()
	}
	if l.Sender() {
		l.tellEarly()
	}
	return true
}

// writeFitting writes an Attach, unless it is larger than the peer's max-frame-size.
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

// Refuse answers an Attached event: there will be no such link. The peer learns why.
func (l *Link) Refuse(err *wire.Error) {
	if l.answered {
		return
	}
	l.Detach(true, err)
}

// Detach takes the link from its session, with an error or nil, or answers a Detached event; in that case closed is
// what the peer has said. Deliveries that were not settled are forgotten.
func (l *Link) Detach(closed bool, err *wire.Error) {
	s := l.session
	if l.detached || s.over() || s.told {
		return
	}
	if !l.answered { // one that refuses has no source or target of its own (2.6.3)
		a := &wire.Attach{
			Name: l.peer.Name, Handle: l.handle, Role: l.role,
			SenderSettleMode: l.senderMode, ReceiverSettleMode: l.receiverMode,
		}
		if l.Sender() {
			a.InitialDeliveryCount = wire.Some(l.deliveryCount)
		}
		l.answered = true
		s.conn.write(s.channel, a)
	}
	if l.peerDetached {
		closed = l.peerClosed
	}
	s.flush()
	s.conn.write(s.channel, &wire.Detach{Handle: l.handle, Closed: closed, Error: s.conn.fitting(err)})
	l.detached = true
	l.release()
	s.in.forget(l)
	s.links[l.handle] = nil
	if l.peerDetached {
		l.finish()
	}
}

// finish lets another link come in its place.
func (l *Link) finish() {
	l.session.count--
	l.session.conn.links--
}

// fail ends the link for something that the peer has done.
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
	if !answered { // the answer to the attach would be no use
		l.Detach(d.Closed, nil)
	}
	s.conn.events.push(&Detached{Link: l, Closed: d.Closed, Err: d.Error, Ended: !answered})
}

// giveBack tells the caller that the link is gone with its session.
func (l *Link) giveBack() {
	if l.gone {
		return
	}
	l.release()
	l.session.conn.events.push(&Detached{Link: l, Ended: true})
}

// release forgets all that the link holds.
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
	if !l.owesDetach() {
		l.session.in.forget(l)
	}
	l.session.out.forget(l)
	l.credit = 0
}

// owesDetach reports whether the peer has detached the link and waits for the answer. Until then the outcomes of
// deliveries that it has sent before are reported to it.
func (l *Link) owesDetach() bool {
	return l.peerDetached && l.accepted && !l.detached && !l.session.over() && !l.session.told
}

// oweFlow has the link's flow sent with the next output.
func (l *Link) oweFlow() {
	if !l.flowDue {
		l.flowDue = true
		l.session.byFlow = append(l.session.byFlow, l)
	}
	l.session.due()
}
