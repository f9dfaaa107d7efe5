// SPDX-License-Identifier: Apache-2.0

package session

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// The tests in this file cover valid behavior of known clients that a server might not expect.

// Qpid JMS without prefetch grants one credit and drains it if no message is available; the next credit has the count
// after the drained one.
func TestReceiveNoWait(t *testing.T) {
	p := opened(t, Options{})
	l := p.receiver("a", 0)
	count := 0
	for round := range 5 {
		f := credit(0, count, 1)
		f.Drain = true
		p.send(0, f)
		require.True(t, eventsOf[*Credit](p)[round].Drain)
		if round%2 == 1 {
			require.NoError(t, l.Send(message(round)))
		}
		l.Drained()
		got := p.take()
		count++
		last := got[len(got)-1].body
		if round%2 == 1 {
			require.IsType(t, &wire.Transfer{}, got[0].body)
		}
		require.Equal(t, some(count), last.(*wire.Flow).DeliveryCount)
		require.Equal(t, some(0), last.(*wire.Flow).LinkCredit)
	}
	p.requireOpen()
}

// Qpid JMS revokes the credit for Connection.stop, keeps messages that cross it, and grants credit again later.
func TestCreditRevokedAndGrantedAgain(t *testing.T) {
	p := opened(t, Options{})
	l := p.receiver("a", 0)
	p.send(0, credit(0, 0, 10))
	sendAll(t, l, 0, 3)
	p.send(0, credit(0, 1, 0)) // two messages were in flight
	require.Zero(t, l.credit)
	require.NoError(t, l.Send(message(9)))
	require.Len(t, p.payloads(), 3)
	p.send(0, credit(0, 3, 10))
	require.Equal(t, []string{"m9"}, p.payloads())
	require.Equal(t, uint32(9), l.credit)
	p.requireOpen()
}

// A client that closes without waiting causes one end event for each link and session.
func TestEndAndCloseWithoutWaiting(t *testing.T) {
	for name, bodies := range map[string][]wire.Performative{
		"everything":   {&wire.Detach{Handle: 0, Closed: true}, &wire.Detach{Handle: 1}, &wire.End{}, &wire.Close{}},
		"no detach":    {&wire.End{}, &wire.Close{}},
		"no end":       {&wire.Detach{Handle: 1}, &wire.Close{}},
		"only a close": {&wire.Close{}},
	} {
		t.Run(name, func(t *testing.T) {
			p := opened(t, Options{})
			p.receiver("a", 0)
			p.sender("b", 1)
			p.on = func(e Event) bool { // answered after all frames
				_, closed := e.(*Closed)
				return !closed
			}
			for _, b := range bodies {
				p.send(0, b)
			}
			require.NoError(t, p.err)
			require.Len(t, eventsOf[*Detached](p), 2)
			require.Len(t, eventsOf[*Ended](p), 1)
			require.Len(t, eventsOf[*Closed](p), 1)
			require.IsType(t, &wire.Close{}, p.take()[0].body)
			for _, d := range eventsOf[*Detached](p) { // late responses have no effect
				d.Link.Detach(true, nil)
			}
			eventsOf[*Ended](p)[0].Session.End(nil)
			require.Empty(t, p.take())
			require.True(t, p.done())
		})
	}
}

// A detach that crosses the other side's detach is the response to it.
func TestCrossingDetaches(t *testing.T) {
	p := opened(t, Options{})
	l := p.receiver("a", 0)
	l.Detach(true, nil)
	p.send(0, &wire.Detach{Handle: 0})
	require.Empty(t, eventsOf[*Detached](p))
	require.Len(t, p.take(), 1)
	require.Zero(t, p.c.links)
	p.receiver("a", 0) // the name and the handle are free
	p.requireOpen()
}

// An end that crosses the other side's end is the response to it.
func TestCrossingEnds(t *testing.T) {
	p := opened(t, Options{})
	s := p.receiver("a", 0).Session()
	s.End(nil)
	p.send(0, &wire.End{})
	require.Empty(t, eventsOf[*Ended](p))
	require.Len(t, p.take(), 1)
	p.send(0, begin())
	p.requireOpen()
}

// Qpid JMS reattaches a durable subscription by name, with a null source when it searches for an existing
// subscription, and detaches without closing.
func TestReattachAfterFailover(t *testing.T) {
	p := opened(t, Options{})
	for range 3 {
		a := attach("sub", 0, wire.RoleReceiver)
		a.Source = nil // the broker returns the known source
		p.on = func(e Event) bool {
			at, ok := e.(*Attached)
			if ok {
				require.Nil(t, at.Link.Peer().Source)
				at.Link.Accept(Reply{Source: &wire.Source{Address: "topic", Durable: wire.DurabilityUnsettled}})
			}
			return ok
		}
		p.send(0, a)
		require.Equal(t, "topic", one[*wire.Attach](p).Source.Address)
		p.send(0, &wire.Detach{Handle: 0})
		require.False(t, one[*wire.Detach](p).Closed)
	}
	p.requireOpen()
}
