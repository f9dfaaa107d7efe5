// SPDX-License-Identifier: Apache-2.0

package session

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// A violation of a session ends that session with the condition of the specification. Its channel can be reused after
// the response.
func TestSessionErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		bodies    []wire.Performative
		condition wire.Symbol
	}{
		"handle in use":        {[]wire.Performative{attach("a", 1, false), attach("b", 1, false)}, SessionHandleInUse},
		"flow of no link":      {[]wire.Performative{credit(1, 0, 1)}, SessionUnattachedHandle},
		"transfer for no link": {[]wire.Performative{transfer(1, 0)}, SessionUnattachedHandle},
		"detach of no link":    {[]wire.Performative{&wire.Detach{Handle: 1}}, SessionUnattachedHandle},
		"after its own detach": {
			[]wire.Performative{attach("a", 1, false), &wire.Detach{Handle: 1}, transfer(1, 0)}, SessionUnattachedHandle,
		},
		"no delivery-id": {[]wire.Performative{attach("a", 1, false), &wire.Transfer{Handle: 1}}, InvalidField},
		"a gap of delivery-ids": {
			[]wire.Performative{attach("a", 1, false), transfer(1, 7), transfer(1, 9)}, InvalidField,
		},
		"a repeated delivery-id": {
			[]wire.Performative{attach("a", 1, false), transfer(1, 7), transfer(1, 7)}, InvalidField,
		},
		"another delivery-id within a delivery": {
			[]wire.Performative{
				attach("a", 1, false), &wire.Transfer{Handle: 1, DeliveryID: some(7), More: true}, transfer(1, 8),
			},
			InvalidField,
		},
		"another tag within a delivery": {
			[]wire.Performative{
				attach("a", 1, false),
				&wire.Transfer{Handle: 1, DeliveryID: some(7), DeliveryTag: []byte("a"), More: true},
				&wire.Transfer{Handle: 1, DeliveryTag: []byte("b")},
			},
			InvalidField,
		},
		"too many links": {
			[]wire.Performative{
				attach("a", 1, false), attach("b", 2, false), attach("c", 3, false), attach("d", 4, false),
				attach("e", 5, true), &wire.Detach{Handle: 9},
			},
			SessionUnattachedHandle,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := opened(t, Options{MaxLinks: 2})
			for i, b := range tc.bodies {
				if i == len(tc.bodies)-1 {
					p.take()
					require.Empty(t, eventsOf[*Ended](p))
				}
				p.send(0, b)
			}
			p.requireEnded(tc.condition)

			// Frames before the end are discarded; then the channel can be reused.
			p.send(0, transfer(1, 99))
			p.send(0, attach("x", 1, false))
			require.Empty(t, p.take())
			p.send(0, &wire.End{})
			p.send(0, begin())
			require.NoError(t, p.err)
			one[*wire.Begin](p)
			require.Zero(t, p.c.links)
			require.Empty(t, p.c.names)
		})
	}
}

// A violation on a link detaches that link with the condition of the specification.
func TestLinkErrors(t *testing.T) {
	more := &wire.Transfer{Handle: 1, DeliveryID: some(0), DeliveryTag: []byte("t"), More: true}
	for name, tc := range map[string]struct {
		options   Options
		role      wire.Role
		window    uint32
		bodies    []wire.Performative
		condition wire.Symbol
	}{
		"no credit": {
			Options{}, wire.RoleSender, 0, []wire.Performative{transfer(1, 0)}, LinkTransferLimitExceeded,
		},
		"credit used up": {
			Options{},
			wire.RoleSender, 2,
			[]wire.Performative{transfer(1, 0), transfer(1, 1), transfer(1, 2)},
			LinkTransferLimitExceeded,
		},
		"a large message": {
			Options{MaxMessageSize: 9}, wire.RoleSender, 5, []wire.Performative{transfer(1, 0)}, LinkMessageSizeExceeded,
		},
		"a large one in parts": {
			Options{MaxMessageSize: 15},
			wire.RoleSender, 5,
			[]wire.Performative{more, &wire.Transfer{Handle: 1}},
			LinkMessageSizeExceeded,
		},
		"too much in parts": {
			Options{MaxPartial: 15, MaxFrameSize: 15},
			wire.RoleSender, 5,
			[]wire.Performative{more, &wire.Transfer{Handle: 1, More: true}},
			ResourceLimitExceeded,
		},
		"the wrong direction": {
			Options{}, wire.RoleReceiver, 0, []wire.Performative{transfer(1, 0)}, NotAllowed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := opened(t, tc.options)
			p.on = func(e Event) bool {
				if a, ok := e.(*Attached); ok {
					a.Link.Accept(Reply{})
					a.Link.Grant(tc.window)
					return true
				}
				return false
			}
			p.send(0, attach("a", 1, tc.role))
			p.take()
			for _, b := range tc.bodies {
				p.send(0, b, []byte("0123456789")...)
			}
			p.requireDetached(tc.condition)
			require.Zero(t, p.c.partial)

			// Frames that cross the detach are discarded, but their delivery numbers count.
			next := len(tc.bodies)
			if !of[*wire.Transfer]([]sent{{0, tc.bodies[next-1], ""}})[0].DeliveryID.Set {
				next--
			}
			p.send(0, transfer(1, next))
			p.send(0, credit(1, 0, 10))
			p.send(0, &wire.Detach{Handle: 1, Closed: true})
			p.events, p.on = nil, nil
			p.sender("a", 1)
			p.send(0, transfer(1, next+1), 'x')
			p.requireOpen()
			require.Len(t, eventsOf[*Delivery](p), 1)
			require.Equal(t, 1, p.c.links)
		})
	}
}

// The response to a detach has the closed flag of that detach.
func TestDetach(t *testing.T) {
	for _, closed := range []bool{false, true} {
		p := opened(t, Options{})
		l := p.receiver("a", 7)
		p.send(0, &wire.Detach{Handle: 7, Closed: closed, Error: &wire.Error{Condition: "x"}})
		e := eventsOf[*Detached](p)[0]
		require.Equal(t, closed, e.Closed)
		require.False(t, e.Ended)
		require.Equal(t, wire.Symbol("x"), e.Err.Condition)
		require.Equal(t, &wire.Detach{Handle: 0, Closed: closed}, one[*wire.Detach](p))
		require.True(t, l.Gone())
		l.Detach(true, nil)
		l.Refuse(nil)
		require.False(t, l.Accept(Reply{}))
		require.Empty(t, p.take())
		require.Zero(t, p.c.links)
		p.send(0, attach("b", 7, wire.RoleReceiver))
		require.Zero(t, one[*wire.Attach](p).Handle, "the handle is free again")
	}
}

// A link that the caller has detached causes no further events, and the peer's response frees the handle.
func TestDetachByCaller(t *testing.T) {
	p := opened(t, Options{})
	l := p.receiver("a", 7)
	p.events = nil
	l.Detach(true, Errorf(ResourceDeleted, "the queue was deleted"))
	require.Equal(t, ResourceDeleted, one[*wire.Detach](p).Error.Condition)
	p.send(0, credit(7, 0, 5)) // crosses the detach
	p.send(0, &wire.Disposition{Role: wire.RoleReceiver, Last: 100, Settled: true})
	require.Empty(t, p.take())
	require.Empty(t, p.events)
	p.send(0, &wire.Detach{Handle: 7, Closed: true})
	require.Empty(t, p.events)
	require.Empty(t, p.take())
	p.receiver("a", 7)
	p.requireOpen()
	require.Equal(t, 1, p.c.links)
}

// Proton reuses a handle as soon as it has sent the detach.
func TestHandleReuseBeforeDetach(t *testing.T) {
	p := opened(t, Options{})
	var detached []*Link
	p.receiver("a", 0)
	p.on = func(e Event) bool {
		if d, ok := e.(*Detached); ok {
			detached = append(detached, d.Link)
			return true
		}
		return false
	}
	p.send(0, &wire.Detach{Handle: 0, Closed: true})
	p.send(0, attach("b", 0, wire.RoleReceiver)) // the same handle
	p.send(0, credit(0, 0, 1))
	p.send(0, &wire.Detach{Handle: 0})
	p.send(0, attach("a", 0, wire.RoleReceiver)) // and the same name
	require.Len(t, detached, 2)
	own := map[uint32]bool{}
	for _, a := range of[*wire.Attach](p.take()) {
		require.NotZero(t, a.Handle, "handle 0 still belongs to the first link")
		own[a.Handle] = true
	}
	require.Len(t, own, 2)
	for _, l := range detached {
		l.Detach(false, nil)
	}
	got := of[*wire.Detach](p.take())
	require.True(t, got[0].Closed)
	require.False(t, got[1].Closed)
	p.requireOpen()
	require.Equal(t, 1, p.c.links)
	require.NoError(t, p.links["a"].Send(&Message{}))
}

// A client may reuse a channel as soon as it has sent the end.
func TestChannelReuseBeforeEnd(t *testing.T) {
	p := opened(t, Options{ChannelMax: 1})
	var ended []*Session
	p.on = func(e Event) bool {
		if e, ok := e.(*Ended); ok {
			ended = append(ended, e.Session)
			return true
		}
		return false
	}
	p.send(0, &wire.End{})
	p.send(0, begin())
	got := p.take()
	require.Equal(t, uint16(1), got[0].channel, "0 is still taken")
	require.Equal(t, wire.Some(uint16(0)), got[0].body.(*wire.Begin).RemoteChannel)
	p.send(0, &wire.End{})
	ended[0].End(nil)
	require.Equal(t, uint16(0), p.take()[0].channel)
	p.send(0, begin())
	require.Equal(t, uint16(0), p.take()[0].channel)
	p.send(0, &wire.End{})
	require.NoError(t, p.err)
	p.send(1, begin())
	p.requireClosed(ResourceLimitExceeded)
}

// A refused link has no source or target, and is detached without an event.
func TestRefusedLink(t *testing.T) {
	for _, role := range []wire.Role{wire.RoleReceiver, wire.RoleSender} {
		p := opened(t, Options{})
		p.on = func(e Event) bool {
			a, ok := e.(*Attached)
			if ok {
				a.Link.Refuse(Errorf(NotFound, "queue not found"))
				a.Link.Refuse(nil)
				require.False(t, a.Link.Accept(Reply{}))
			}
			return ok
		}
		p.send(0, attach("a", 3, role))
		got := p.take()
		require.Len(t, got, 2)
		a := got[0].body.(*wire.Attach)
		require.Nil(t, a.Source)
		require.Nil(t, a.Target)
		require.Equal(t, !role, a.Role)
		d := got[1].body.(*wire.Detach)
		require.Equal(t, NotFound, d.Error.Condition)
		require.True(t, d.Closed)
		require.Equal(t, a.Handle, d.Handle)
		p.send(0, credit(3, 0, 1)) // crosses the detach
		p.send(0, &wire.Detach{Handle: 3, Closed: true})
		require.Empty(t, eventsOf[*Detached](p))
		require.Zero(t, p.c.links)
		p.requireOpen()
	}
}

// If the peer detaches a link before the broker has responded, the session completes the attach and the detach. A
// later response from the broker has no effect.
func TestDetachBeforeAnswer(t *testing.T) {
	p := opened(t, Options{})
	var l *Link
	p.on = func(e Event) bool {
		a, ok := e.(*Attached)
		if ok {
			l = a.Link
		}
		return ok
	}
	p.send(0, attach("a", 3, wire.RoleReceiver))
	p.send(0, &wire.Detach{Handle: 3, Closed: true})
	got := p.take()
	require.Len(t, got, 2)
	require.IsType(t, &wire.Attach{}, got[0].body)
	require.IsType(t, &wire.Detach{}, got[1].body)
	require.True(t, eventsOf[*Detached](p)[0].Ended)
	require.False(t, l.Accept(Reply{}))
	l.Refuse(nil)
	l.Detach(true, nil)
	require.Empty(t, p.take())
	require.Zero(t, p.c.links)
}

// A link above the limit is refused without an effect on others. Detached links free their slots.
func TestTooManyLinks(t *testing.T) {
	p := opened(t, Options{MaxLinks: 2})
	p.sender("a", 0)
	p.sender("b", 1)
	p.send(0, attach("c", 2, wire.RoleSender))
	require.Equal(t, ResourceLimitExceeded, one[*wire.Detach](p).Error.Condition)
	p.send(0, transfer(0, 0))
	p.send(0, &wire.Detach{Handle: 2, Closed: true})
	p.send(0, &wire.Detach{Handle: 1, Closed: true})
	require.NotNil(t, p.sender("d", 1))
	p.requireOpen()
	for i := range 2 + refusedLinks { // refused links that are never detached
		p.send(0, attach("x", uint32(10+i), wire.RoleSender))
	}
	require.NoError(t, p.err)
	require.Equal(t, ResourceLimitExceeded, eventsOf[*Ended](p)[0].Err.Condition)
	require.Zero(t, p.c.links)
}

// The response to an attach needs a handle that the peer accepts.
func TestHandleMaxOfPeer(t *testing.T) {
	p := newPeer(t, Options{})
	p.send(0, &wire.Open{MaxFrameSize: 512})
	p.send(0, &wire.Begin{HandleMax: 1})
	p.sender("a", 0)
	p.sender("b", 1)
	p.requireOpen()
	p.send(0, attach("c", 2, wire.RoleSender))
	p.requireEnded(ResourceLimitExceeded)
}

// A link that is attached again under its name replaces the first one, even in another session. A sender and a
// receiver with the same name do not conflict (2.6.1).
func TestLinkStolen(t *testing.T) {
	p := opened(t, Options{})
	p.send(1, begin())
	first := p.receiver("a", 0)
	other := p.sender("a", 1)
	p.events = nil
	p.send(1, attach("a", 5, wire.RoleReceiver))
	require.Len(t, p.events, 2)
	gone := p.events[0].(*Detached)
	require.Same(t, first, gone.Link)
	require.True(t, gone.Ended)
	require.Equal(t, LinkStolen, gone.Err.Condition)
	require.Equal(t, LinkStolen, one[*wire.Detach](p).Error.Condition)
	require.False(t, other.Gone())
	p.send(0, &wire.Detach{Handle: 0, Closed: true})
	p.send(1, credit(5, 0, 1))
	require.NoError(t, p.links["a"].Send(&Message{}))
	p.requireOpen()
}

// The reply contains the values requested by the peer, unless the caller overrides them.
func TestModesAndNames(t *testing.T) {
	p := opened(t, Options{MaxMessageSize: 1000})
	p.on = func(e Event) bool {
		a, ok := e.(*Attached)
		if ok && a.Link.Peer().Name == "b" {
			a.Link.Accept(Reply{
				Source: &wire.Source{Address: "other"},
			})
		}
		return ok && a.Link.Peer().Name == "b"
	}
	a := attach("a", 0, wire.RoleReceiver)
	a.ReceiverSettleMode, a.SenderSettleMode = wire.ReceiverSecond, wire.SenderUnsettled
	p.send(0, a)
	got := one[*wire.Attach](p)
	require.Equal(t, wire.ReceiverSecond, got.ReceiverSettleMode)
	require.Equal(t, wire.SenderUnsettled, got.SenderSettleMode)
	require.Equal(t, "q", got.Source.Address)
	require.Equal(t, uint64(1000), got.MaxMessageSize)
	require.True(t, got.InitialDeliveryCount.Set)
	b := attach("b", 1, wire.RoleReceiver)
	p.send(0, b)
	got = one[*wire.Attach](p)
	require.Equal(t, "other", got.Source.Address)
}

// A link is refused if the reply exceeds the peer's maximum frame size.
func TestReplyFitsFrame(t *testing.T) {
	p := newPeer(t, Options{})
	p.send(0, &wire.Open{MaxFrameSize: 512, ChannelMax: 1})
	p.send(0, begin())
	p.take()
	p.on = func(e Event) bool {
		a, is := e.(*Attached)
		if is {
			require.False(t, a.Link.Accept(Reply{OfferedCapabilities: slices.Repeat([]wire.Symbol{"capability"}, 50)}))
		}
		return is
	}
	p.send(0, attach("a", 0, wire.RoleReceiver))
	require.Equal(t, FrameSizeTooSmall, one[*wire.Detach](p).Error.Condition)
}

// If the caller ends a session, its links end without events, and its channel is free after the peer has responded.
func TestEndByCaller(t *testing.T) {
	p := opened(t, Options{})
	l := p.receiver("a", 0)
	p.events = nil
	l.Session().End(Errorf(NotAllowed, "no"))
	l.Session().End(nil)
	require.Equal(t, NotAllowed, one[*wire.End](p).Error.Condition)
	require.True(t, l.Gone())
	require.Zero(t, p.c.links)
	p.send(0, credit(0, 0, 9))
	p.send(0, &wire.End{})
	require.Empty(t, p.events)
	p.send(0, begin())
	require.Equal(t, uint16(0), p.take()[0].channel)
	p.requireOpen()
}

// If the peer ends a session, its links end first, and nothing is sent on them afterwards.
func TestEndByPeer(t *testing.T) {
	p := opened(t, Options{})
	l := p.receiver("a", 0)
	p.events = nil
	p.on = func(e Event) bool {
		if e, ok := e.(*Ended); ok {
			require.False(t, e.Ended)
			require.ErrorIs(t, l.Send(&Message{}), ErrGone)
			l.Settle(0, wire.Accepted{})
			l.Detach(true, nil)
			require.Empty(t, p.take())
		}
		return false
	}
	p.send(0, &wire.End{Error: &wire.Error{Condition: "x"}})
	require.Len(t, p.events, 2)
	require.True(t, p.events[0].(*Detached).Ended)
	require.Equal(t, wire.Symbol("x"), p.events[1].(*Ended).Err.Condition)
	require.IsType(t, &wire.End{}, p.take()[0].body)
}
