// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

type receiver struct {
	windowed bool
	window   uint32 // argument of Link.Window
	open     uint32 // deliveries that occupy the window
	limit    uint32 // highest delivery count allowed by any credit that was granted

	partial bool     // a delivery is incomplete
	begun   Delivery // the incomplete delivery
	chunks  [][]byte // payload of begun, except the end
	buf     []byte   // end of the payload of begun; reused
	size    int      // total bytes in chunks and buf
	tag     []byte   // delivery tag of begun
}

// keptBuffer is the size of the buffer that is retained for the next message of several frames. A larger message is
// stored in chunks of this size, because a growing buffer would be copied many times.
const keptBuffer = 256 << 10

func (r *receiver) add(payload []byte) {
	r.size += len(payload)
	for len(payload) > 0 {
		if len(r.buf) == keptBuffer {
			r.chunks, r.buf = append(r.chunks, r.buf), make([]byte, 0, keptBuffer)
		}
		n := min(len(payload), keptBuffer-len(r.buf))
		r.buf, payload = append(r.buf, payload[:n]...), payload[n:]
	}
}

// payload returns the payload, and reports whether the caller owns the memory.
func (r *receiver) payload() (payload []byte, owned bool) {
	if len(r.chunks) == 0 {
		return r.buf, false
	}
	payload = make([]byte, 0, r.size)
	for i, chunk := range r.chunks {
		payload, r.chunks[i] = append(payload, chunk...), nil
	}
	return append(payload, r.buf...), true
}

// Grant replaces the peer's credit; 0 stops the peer. It is for callers that do not use Window.
func (l *Link) Grant(credit uint32) {
	if l.gone || l.Sender() {
		return
	}
	l.receiver.windowed, l.receiver.window = false, 0
	l.grant(credit)
}

// Window limits the unsettled deliveries to n. Credit is sent when half of the window is free. A smaller window takes
// effect as deliveries are settled.
func (l *Link) Window(n uint32) {
	if l.gone || l.Sender() {
		return
	}
	l.receiver.windowed, l.receiver.window = true, n
	l.grant(n - min(n, l.receiver.open))
}

// grant changes the peer's credit. Messages that the peer sends before it receives a smaller credit are accepted.
func (l *Link) grant(credit uint32) {
	r := &l.receiver
	if limit := l.deliveryCount + credit; distance(r.limit, limit) > 0 {
		r.limit = limit
	}
	l.credit = credit
	l.scheduleFlow()
}

// refill grants credit for free slots of the window.
func (l *Link) refill() {
	r := &l.receiver
	if l.gone {
		return
	}
	if used := r.open + l.credit; used < r.window && r.window-used >= (r.window+1)/2 {
		l.grant(r.window - r.open)
	}
}

func (s *Session) receiveTransfer(t *wire.Transfer, payload []byte) {
	if s.incomingWindow == 0 {
		s.fail(SessionWindowViolation, "transfer exceeds the incoming-window of %d", s.conn.o.IncomingWindow)
		return
	}
	s.nextIncoming++
	s.incomingWindow--
	if s.incomingWindow <= s.conn.o.IncomingWindow/2 {
		s.scheduleFlow()
	}
	l := s.handles[t.Handle]
	if l == nil {
		s.fail(SessionUnattachedHandle, "transfer for handle %d, which has no link", t.Handle)
		return
	}
	if l.detached { // the transfer crossed the Detach; its delivery number is used
		if t.DeliveryID.Set && t.DeliveryID.Value == s.nextIn {
			s.nextIn++
		}
		return
	}
	if l.Sender() {
		l.fail(NotAllowed, "transfer on a link with this node as sender")
		return
	}
	if l.receiver.partial {
		l.receiveMore(t, payload)
	} else {
		l.receiveFirst(t, payload)
	}
}

func (l *Link) receiveFirst(t *wire.Transfer, payload []byte) {
	s := l.session
	switch id := t.DeliveryID; {
	case !id.Set:
		s.fail(InvalidField, "first transfer of a delivery has no delivery-id")
		return
	case s.anyIn && id.Value != s.nextIn:
		s.fail(InvalidField, "delivery-id %d, expected %d", id.Value, s.nextIn)
		return
	case s.in.live >= s.conn.o.MaxUnsettled && !l.receiver.windowed: // otherwise windows limit the deliveries
		s.fail(ResourceLimitExceeded, "session has the maximum of %d unsettled deliveries", s.in.live)
		return
	}
	s.nextIn, s.anyIn = t.DeliveryID.Value+1, true
	if distance(l.deliveryCount, l.receiver.limit) <= 0 {
		l.fail(LinkTransferLimitExceeded, "delivery without credit")
		return
	}
	l.credit -= min(l.credit, 1)
	l.deliveryCount++
	d := Delivery{Link: l, ID: t.DeliveryID.Value, Settled: t.Settled.Value, State: t.State, Payload: payload}
	if t.Aborted {
		l.refill()
		return
	}
	if !l.bounded(0, len(payload), t.More) {
		return
	}
	s.in.add(d.ID).link = l
	l.receiver.open++
	if !t.More {
		l.deliver(&d)
		return
	}
	r := &l.receiver
	r.partial, r.begun = true, d
	r.tag = append(r.tag[:0], t.DeliveryTag...)
	r.begun.Payload, r.begun.State = nil, cloned(t.State)
	r.add(payload)
	s.conn.partial += len(payload)
}

func (l *Link) receiveMore(t *wire.Transfer, payload []byte) {
	s, r := l.session, &l.receiver
	if t.DeliveryID.Set && t.DeliveryID.Value != r.begun.ID {
		s.fail(InvalidField, "delivery-id %d before the end of delivery %d", t.DeliveryID.Value, r.begun.ID)
		return
	}
	if t.DeliveryTag != nil && !bytes.Equal(t.DeliveryTag, r.tag) {
		s.fail(InvalidField, "different delivery-tag before the end of delivery %d", r.begun.ID)
		return
	}
	if t.Aborted { // as if it had never been sent (2.7.5)
		s.in.remove(r.begun.ID)
		r.open--
		r.drop(s.conn)
		l.refill()
		return
	}
	if !l.bounded(r.size, len(payload), true) {
		return
	}
	r.add(payload)
	s.conn.partial += len(payload)
	r.begun.Settled = r.begun.Settled || t.Settled.Value
	if t.State != nil {
		r.begun.State = cloned(t.State)
	}
	if t.More {
		return
	}
	d := r.begun
	d.Payload, d.Owned = r.payload()
	r.drop(s.conn) // the memory is unchanged until the next frame
	l.deliver(&d)
}

// bounded reports whether a message and the incomplete messages of the connection are within their limits. If not, it
// ends the link.
func (l *Link) bounded(have, more int, part bool) bool {
	c := l.session.conn
	if limit := c.o.MaxMessageSize; limit > 0 && uint64(have)+uint64(more) > limit {
		l.fail(LinkMessageSizeExceeded, "message has more than %d bytes (max-message-size)", limit)
		return false
	}
	if part && c.partial+more > max(c.o.MaxPartial, int(c.o.MaxFrameSize)) {
		l.fail(ResourceLimitExceeded, "partially received messages of the connection exceed %d bytes", c.o.MaxPartial)
		return false
	}
	return true
}

// cloned copies a state, because it is used after its frame.
func cloned(state wire.DeliveryState) wire.DeliveryState {
	switch state := state.(type) {
	case *wire.TransactionalState:
		return &wire.TransactionalState{TxnID: bytes.Clone(state.TxnID), Outcome: cloned(state.Outcome)}
	case *wire.Received:
		c := *state
		return &c
	default: // without references, or meaningless in a transfer
		return state
	}
}

func (r *receiver) drop(c *Conn) {
	if r.partial {
		c.partial -= r.size
	}
	r.partial, r.begun = false, Delivery{}
	r.chunks, r.buf, r.size = nil, r.buf[:0], 0
}

func (l *Link) deliver(d *Delivery) {
	if e := l.session.in.get(d.ID); e != nil {
		d.Settled = d.Settled || e.settled
		e.settled = d.Settled
	}
	q := &l.session.conn.events
	q.delivery = *d
	q.push(&q.delivery)
}

func (l *Link) settleReceived(id uint32, state wire.DeliveryState) {
	s := l.session
	e := s.in.get(id)
	if e == nil || e.link != l || e.answered {
		return
	}
	if !e.settled {
		final := l.peer.ReceiverSettleMode == wire.ReceiverFirst
		s.dispose(wire.RoleReceiver, id, final, state)
		if !final { // the sender settles first
			e.answered = true
			return
		}
	}
	l.done(id)
}

func (l *Link) done(id uint32) {
	l.session.in.remove(id)
	l.receiver.open--
	l.refill()
}
