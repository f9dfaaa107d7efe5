// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// sent is a frame sent by a Conn.
type sent struct {
	channel uint16
	body    wire.Performative
	payload string
}

// peer is the other side of a Conn in a test: it sends given frames, valid or invalid, and collects the output. Events
// are answered in the simplest way, unless on handles them.
type peer struct {
	t      testing.TB
	c      *Conn
	now    time.Time
	events []Event // copies
	on     func(Event) bool
	links  map[string]*Link
	err    error
}

func newPeer(t testing.TB, o Options) *peer {
	p := &peer{t: t, now: time.Unix(1000, 0), links: map[string]*Link{}}
	o.ContainerID = "node"
	p.c = New(o, p.now)
	return p
}

// opened returns a peer with a connection and a session on channel 0.
func opened(t testing.TB, o Options) *peer {
	p := newPeer(t, o)
	p.send(0, &wire.Open{ContainerID: "c", MaxFrameSize: 1 << 20, ChannelMax: 65535})
	p.send(0, begin())
	p.take()
	return p
}

func begin() *wire.Begin {
	return &wire.Begin{IncomingWindow: 1 << 20, OutgoingWindow: 1 << 20, HandleMax: 1<<32 - 1}
}

func attach(name string, handle uint32, role wire.Role) *wire.Attach {
	return &wire.Attach{
		Name: name, Handle: handle, Role: role, SenderSettleMode: wire.SenderMixed,
		Source: &wire.Source{Address: "q"}, Target: &wire.Node{Address: "q"},
	}
}

func some(n int) wire.Optional[uint32] { return wire.Some(uint32(n)) }

// credit returns a flow that grants credit after count deliveries.
func credit(handle, count, n int) *wire.Flow {
	return &wire.Flow{
		IncomingWindow: 1 << 20, NextIncomingID: some(count), Handle: some(handle), DeliveryCount: some(count),
		LinkCredit: some(n),
	}
}

func transfer(handle, id int) *wire.Transfer {
	return &wire.Transfer{Handle: uint32(handle), DeliveryID: some(id), DeliveryTag: []byte{byte(id)}}
}

// send passes a frame to the Conn, and takes the resulting events.
func (p *peer) send(channel uint16, body wire.Performative, payload ...byte) {
	p.t.Helper()
	p.err = p.c.Receive(&wire.Frame{Channel: channel, Body: body, Payload: payload}, p.now)
	p.drain()
}

func (p *peer) drain() {
	for {
		e, ok := p.c.Next()
		if !ok {
			return
		}
		p.events = append(p.events, copied(e))
		if p.on != nil && p.on(e) {
			continue
		}
		switch e := e.(type) {
		case *Opened:
			p.c.Open(OpenReply{})
		case *Attached:
			p.links[e.Link.Peer().Name] = e.Link
			e.Link.Accept(Reply{})
			if !e.Link.Sender() {
				e.Link.Window(100)
			}
		case *Delivery:
			e.Link.Settle(e.ID, wire.Accepted{})
		case *Disposed:
			for i := range e.Refs {
				if !e.Settled {
					e.Link.Settle(e.First+uint32(i), e.State)
				}
			}
		case *Detached:
			e.Link.Detach(false, nil)
		case *Ended:
			e.Session.End(nil)
		case *Closed:
			p.c.Close(nil)
		}
	}
}

func copied(e Event) Event {
	switch e := e.(type) {
	case *Delivery:
		c := *e
		c.Payload = bytes.Clone(e.Payload)
		return &c
	case *Credit:
		c := *e
		return &c
	case *Disposed:
		c := *e
		c.Refs = append([]uint64(nil), e.Refs...)
		return &c
	default:
		return e
	}
}

// take returns the frames sent since the last call.
func (p *peer) take() []sent {
	p.t.Helper()
	r := wire.NewReader(bytes.NewReader(p.c.Output(nil)), 1<<30)
	var got []sent
	for {
		var f wire.Frame
		err := r.Next(&f)
		if errors.Is(err, io.EOF) {
			return got
		}
		require.NoError(p.t, err, "sent frames can be decoded")
		switch b := f.Body.(type) {
		case nil:
			continue
		case *wire.Transfer:
			c := *b
			c.DeliveryTag = bytes.Clone(b.DeliveryTag)
			f.Body = &c
		case *wire.Flow:
			c := *b
			f.Body = &c
		case *wire.Disposition:
			c := *b
			f.Body = &c
		}
		got = append(got, sent{f.Channel, f.Body, string(f.Payload)})
	}
}

// one takes the frames, and returns the only one of a type.
func one[T wire.Performative](p *peer) T {
	p.t.Helper()
	all := of[T](p.take())
	require.Len(p.t, all, 1)
	return all[0]
}

func of[T wire.Performative](frames []sent) []T {
	var all []T
	for _, f := range frames {
		if b, ok := f.body.(T); ok {
			all = append(all, b)
		}
	}
	return all
}

// eventsOf returns the events of a type.
func eventsOf[T Event](p *peer) []T {
	var all []T
	for _, e := range p.events {
		if e, ok := e.(T); ok {
			all = append(all, e)
		}
	}
	return all
}

// receiver attaches a link on which the Conn sends.
func (p *peer) receiver(name string, handle uint32) *Link {
	p.t.Helper()
	p.send(0, attach(name, handle, wire.RoleReceiver))
	p.take()
	return p.links[name]
}

// sender attaches a link on which the Conn receives.
func (p *peer) sender(name string, handle uint32) *Link {
	p.t.Helper()
	p.send(0, attach(name, handle, wire.RoleSender))
	p.take()
	return p.links[name]
}

func (p *peer) requireOpen() {
	p.t.Helper()
	require.NoError(p.t, p.err)
	require.Empty(p.t, eventsOf[*Closed](p))
	require.Empty(p.t, eventsOf[*Ended](p))
}

// requireClosed requires that the last frame has closed the connection with an error.
func (p *peer) requireClosed(condition wire.Symbol) {
	p.t.Helper()
	var e *wire.Error
	require.ErrorAs(p.t, p.err, &e)
	require.Equal(p.t, condition, e.Condition)
	require.Len(p.t, eventsOf[*Closed](p), 1)
	require.Equal(p.t, condition, one[*wire.Close](p).Error.Condition)
}

func (p *peer) requireEnded(condition wire.Symbol) {
	p.t.Helper()
	require.NoError(p.t, p.err)
	ended := eventsOf[*Ended](p)
	require.Len(p.t, ended, 1)
	require.True(p.t, ended[0].Ended)
	require.Equal(p.t, condition, ended[0].Err.Condition)
	require.Equal(p.t, condition, one[*wire.End](p).Error.Condition)
}

func (p *peer) requireDetached(condition wire.Symbol) {
	p.t.Helper()
	p.requireOpen()
	gone := eventsOf[*Detached](p)
	require.Len(p.t, gone, 1)
	require.True(p.t, gone[0].Ended)
	require.Equal(p.t, condition, gone[0].Err.Condition)
	require.Equal(p.t, condition, one[*wire.Detach](p).Error.Condition)
}

// done reports whether both sides have closed the connection.
func (p *peer) done() bool { return p.c.closed && p.c.peerClosed }
