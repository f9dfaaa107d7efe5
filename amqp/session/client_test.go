// SPDX-License-Identifier: Apache-2.0

package session

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// client strictly follows the specification, for the model test. It tracks its windows and credit, and fails the test
// if the node exceeds them.
type client struct {
	m        *model
	rng      *rand.Rand
	sessions map[uint16]*clientSession // by the own channel
	byNode   map[uint16]*clientSession // by the node's channel
	toNode   []*wire.Frame
	toClient []sent
	names    int
}

type clientSession struct {
	channel      uint16
	nodeChannel  uint16
	begun, ended bool   // the response has arrived; an end was sent
	nextOut      uint32 // transfers
	limitOut     uint32 // the first transfer that may not be sent
	nextIn       uint32
	limitIn      uint32
	window       uint32
	nextDelivery uint32
	links        map[uint32]*clientLink // by the own handle
	byNode       map[uint32]*clientLink // by the node's handle
	out          map[uint32]*clientDelivery
	in           map[uint32]*clientDelivery
}

type clientLink struct {
	s                  *clientSession
	name               string
	handle             uint32
	sender, second     bool
	attached, detached bool   // the response has arrived; a detach was sent
	count, limit       uint32 // deliveries; the count at which credit ends
	draining           bool

	writing *clientDelivery // partly sent delivery
	rest    []byte
	reading *clientDelivery
	all     []string // complete messages sent or received
	seq     int
}

type clientDelivery struct {
	l        *clientLink
	id       uint32
	text     string
	settled  bool
	reported bool // mode second: the outcome was sent
}

func (c *client) send(s *clientSession, body wire.Performative, payload []byte) {
	if _, ok := body.(*wire.End); s.ended && !ok {
		return
	}
	c.toNode = append(c.toNode, &wire.Frame{Channel: s.channel, Body: body, Payload: payload})
}

func (c *client) begin() {
	channel := uint16(c.rng.IntN(4))
	if c.sessions[channel] != nil {
		return
	}
	s := &clientSession{
		channel: channel, nextOut: c.rng.Uint32(), window: 1 + c.rng.Uint32N(20), nextDelivery: c.rng.Uint32(),
		links: map[uint32]*clientLink{}, byNode: map[uint32]*clientLink{},
		out: map[uint32]*clientDelivery{}, in: map[uint32]*clientDelivery{},
	}
	s.limitOut = s.nextOut
	c.sessions[channel] = s
	c.send(s, &wire.Begin{
		NextOutgoingID: s.nextOut, IncomingWindow: s.window, OutgoingWindow: 1000, HandleMax: 100,
	}, nil)
}

func (c *client) attach(s *clientSession) {
	handle := c.rng.Uint32N(5)
	if s.links[handle] != nil || s.ended {
		return
	}
	c.names++
	l := &clientLink{
		s: s, name: fmt.Sprintf("l%d", c.names), handle: handle, sender: c.rng.IntN(2) == 0,
		second: c.rng.IntN(4) == 0, count: c.rng.Uint32(),
	}
	if c.rng.IntN(3) == 0 {
		l.count = -c.rng.Uint32N(20)
	}
	l.limit = l.count
	s.links[handle] = l
	a := attach(l.name, handle, wire.Role(!l.sender))
	if l.sender {
		a.InitialDeliveryCount = wire.Some(l.count)
	}
	if l.second {
		a.ReceiverSettleMode = wire.ReceiverSecond
	}
	c.send(s, a, nil)
}

// write sends a frame of a message, if window and credit permit.
func (c *client) write(l *clientLink) {
	s := l.s
	if !l.attached || l.detached || s.ended || int32(s.limitOut-s.nextOut) <= 0 {
		return
	}
	t := &wire.Transfer{Handle: l.handle}
	if l.writing == nil {
		if int32(l.limit-l.count) <= 0 {
			return
		}
		l.seq++
		d := &clientDelivery{l: l, id: s.nextDelivery, settled: c.rng.IntN(4) == 0}
		d.text = fmt.Sprintf("%s.%d.%s", l.name, l.seq, strings.Repeat("x", c.rng.IntN(200)))
		l.writing, l.rest = d, []byte(d.text)
		s.nextDelivery++
		l.count++
		t.DeliveryID, t.DeliveryTag = wire.Some(d.id), fmt.Appendf(nil, "%d", l.seq)
		if !d.settled {
			s.out[d.id] = d
		}
	}
	t.Settled = wire.Some(l.writing.settled)
	n := len(l.rest)
	if c.rng.IntN(3) == 0 {
		n = c.rng.IntN(n + 1)
		t.More = true
	}
	part := l.rest[:n]
	l.rest = l.rest[n:]
	switch {
	case c.rng.IntN(20) == 0:
		t.Aborted, t.More = true, c.rng.IntN(2) == 0
		delete(s.out, l.writing.id)
		l.writing = nil
	case !t.More:
		l.all = append(l.all, l.writing.text)
		l.writing = nil
	}
	s.nextOut++
	c.send(s, t, part)
}

// flow sends the state of the session and, if l is not nil, of the link.
func (c *client) flow(s *clientSession, l *clientLink) {
	if !s.begun || s.ended {
		return
	}
	s.limitIn = s.nextIn + s.window
	f := &wire.Flow{
		NextIncomingID: wire.Some(s.nextIn), IncomingWindow: s.window,
		NextOutgoingID: s.nextOut, OutgoingWindow: 1000, Echo: c.rng.IntN(8) == 0,
	}
	if l != nil && l.attached && !l.detached {
		f.Handle, f.DeliveryCount = wire.Some(l.handle), wire.Some(l.count)
		if !l.sender {
			if !l.draining { // wait for the response before granting new credit
				if more := l.count + c.rng.Uint32N(12); int32(more-l.limit) > 0 {
					l.limit = more
				}
				l.draining = c.rng.IntN(5) == 0
			}
			f.LinkCredit, f.Drain = wire.Some(l.limit-l.count), l.draining
		}
	}
	c.send(s, f, nil)
}

// settle settles a received delivery, or sends an outcome that the node must settle.
func (c *client) settle(s *clientSession) {
	if s.ended {
		return
	}
	for id, d := range s.in {
		if d.l.reading == d || d.reported || d.l.detached {
			continue
		}
		state := []wire.DeliveryState{wire.Accepted{}, wire.Released{}}[c.rng.IntN(2)]
		c.m.outcomes[d.text] = state
		if d.l.second {
			d.reported = true
		} else {
			delete(s.in, id)
		}
		c.send(s, &wire.Disposition{
			Role: wire.RoleReceiver, First: id, Last: id, Settled: !d.l.second, State: state,
		}, nil)
		return
	}
}

func (c *client) detach(l *clientLink) {
	if l.attached && !l.detached && !l.s.ended {
		l.detached = true
		c.m.exclude(l.name)
		c.send(l.s, &wire.Detach{Handle: l.handle, Closed: c.rng.IntN(2) == 0}, nil)
	}
}

func (c *client) end(s *clientSession) {
	if s.begun && !s.ended {
		s.ended = true
		for _, l := range s.links {
			c.m.exclude(l.name)
		}
		c.send(s, &wire.End{}, nil)
	}
}

// receive handles a frame of the node.
func (c *client) receive(f sent) {
	t := c.m.t
	if b, ok := f.body.(*wire.Begin); ok {
		s := c.sessions[b.RemoteChannel.Value]
		require.NotNil(t, s)
		s.begun, s.nodeChannel = true, f.channel
		s.nextIn, s.limitIn = b.NextOutgoingID, b.NextOutgoingID+s.window
		s.limitOut = s.nextOut + b.IncomingWindow
		require.Nil(t, c.byNode[f.channel], "the node has a session on that channel")
		c.byNode[f.channel] = s
		return
	}
	if _, ok := f.body.(*wire.Open); ok {
		return
	}
	s := c.byNode[f.channel]
	require.NotNil(t, s, "%T on a channel without a session", f.body)
	switch b := f.body.(type) {
	case *wire.Attach:
		for _, l := range s.links {
			if l.name == b.Name {
				l.attached = true
				require.Nil(t, s.byNode[b.Handle])
				s.byNode[b.Handle] = l
				if !l.sender {
					l.count, l.limit = b.InitialDeliveryCount.Value, b.InitialDeliveryCount.Value
				}
			}
		}
	case *wire.Transfer:
		c.receiveTransfer(s, b, f.payload)
	case *wire.Flow:
		c.receiveFlow(s, b)
	case *wire.Disposition:
		c.receiveDisposition(s, b)
	case *wire.Detach:
		l := s.byNode[b.Handle]
		require.NotNil(t, l)
		require.Nil(t, b.Error)
		delete(s.byNode, b.Handle)
		if !l.detached {
			c.detach(l)
		}
		delete(s.links, l.handle)
	case *wire.End:
		require.Nil(t, b.Error)
		require.True(t, s.ended)
		delete(c.byNode, f.channel)
		delete(c.sessions, s.channel)
	default:
		require.Fail(t, "unexpected", "%T", b)
	}
}

func (c *client) receiveTransfer(s *clientSession, b *wire.Transfer, payload string) {
	t := c.m.t
	require.Positive(t, int32(s.limitIn-s.nextIn), "the window is exceeded")
	s.nextIn++
	l := s.byNode[b.Handle]
	require.NotNil(t, l)
	require.False(t, l.sender)
	d := l.reading
	if d == nil {
		if !l.detached {
			require.Positive(t, int32(l.limit-l.count), "credit is exceeded")
		}
		l.count++
		require.True(t, b.DeliveryID.Set)
		require.NotEmpty(t, b.DeliveryTag)
		d = &clientDelivery{l: l, id: b.DeliveryID.Value, settled: b.Settled.Value}
		l.reading = d
		require.NotContains(t, s.in, d.id)
		if !d.settled {
			s.in[d.id] = d
		}
	}
	d.text += payload
	if !b.More {
		l.reading = nil
		l.all = append(l.all, d.text)
	}
}

func (c *client) receiveFlow(s *clientSession, b *wire.Flow) {
	t := c.m.t
	s.limitOut = b.NextIncomingID.Value + b.IncomingWindow
	require.True(t, b.NextIncomingID.Set)
	if !b.Handle.Set {
		return
	}
	l := s.byNode[b.Handle.Value]
	require.NotNil(t, l)
	if l.sender {
		l.limit = b.DeliveryCount.Value + b.LinkCredit.Value
		return
	}
	if b.DeliveryCount.Value != l.count { // drained
		require.True(t, l.draining || l.detached)
		require.Equal(t, l.limit, b.DeliveryCount.Value)
		l.count = l.limit
		c.m.counts["drained"]++
	}
	if l.draining && l.count == l.limit && b.LinkCredit.Value == 0 {
		l.draining = false
	}
}

func (c *client) receiveDisposition(s *clientSession, b *wire.Disposition) {
	t := c.m.t
	require.LessOrEqual(t, b.Last-b.First, uint32(1000))
	for id := b.First; ; id++ {
		if b.Role == wire.RoleSender {
			if d := s.in[id]; d != nil && b.Settled {
				require.True(t, d.reported, "settled without an outcome")
				delete(s.in, id)
			}
		} else if d := s.out[id]; d != nil {
			if want, ok := c.m.states[d.text]; ok && !d.l.detached {
				require.Equal(t, want, b.State, d.text)
			}
			if c.m.states[d.text] != nil {
				c.m.reported[d.text]++
			}
			if d.l.second {
				require.False(t, b.Settled)
				c.send(s, &wire.Disposition{Role: wire.RoleSender, First: id, Last: id, Settled: true}, nil)
			} else {
				require.True(t, b.Settled)
			}
			delete(s.out, id)
		}
		if id == b.Last {
			return
		}
	}
}
