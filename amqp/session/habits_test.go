// SPDX-License-Identifier: Apache-2.0

package session

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// What known clients do that is allowed, and that a server could have forgotten.

// TestReceiveNoWait is what Qpid JMS does without prefetch: it gives one credit, and drains it when there is nothing;
// the next one comes with the count behind the drained one.
func TestReceiveNoWait(t *testing.T) {
	p := opened(t, Options{})
	l := p.receiver("a", 0)
	count := 0
	for round := range 5 {
		f := credit(0, count, 1)
		f.Drain = true
		p.send(0, f)
		require.True(t, happened[*Credit](p)[round].Drain)
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

// TestStopAndStart is what Qpid JMS does for Connection.stop: credit becomes none, what crosses that is kept by the
// client, and credit comes again.
func TestStopAndStart(t *testing.T) {
	p := opened(t, Options{})
	l := p.receiver("a", 0)
	p.send(0, credit(0, 0, 10))
	sendAll(t, l, 0, 3)
	p.send(0, credit(0, 1, 0)) // two were under way
	require.Zero(t, l.Credit())
	require.NoError(t, l.Send(message(9)))
	require.Len(t, p.payloads(), 3)
	p.send(0, credit(0, 3, 10))
	require.Equal(t, []string{"m9"}, p.payloads())
	require.Equal(t, uint32(9), l.Credit())
	p.requireOpen()
}

// TestEndAndCloseInARow is a client that closes without waiting: each thing is given back once.
func TestEndAndCloseInARow(t *testing.T) {
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
			p.on = func(e Event) bool { // answered when all has come
				_, closed := e.(*Closed)
				return !closed
			}
			for _, b := range bodies {
				p.send(0, b)
			}
			require.NoError(t, p.err)
			require.Len(t, happened[*Detached](p), 2)
			require.Len(t, happened[*Ended](p), 1)
			require.Len(t, happened[*Closed](p), 1)
			require.IsType(t, &wire.Close{}, p.take()[0].body)
			for _, d := range happened[*Detached](p) { // late answers do nothing
				d.Link.Detach(true, nil)
			}
			happened[*Ended](p)[0].Session.End(nil)
			require.Empty(t, p.take())
			require.True(t, p.c.Done())
		})
	}
}

// TestBothDetach: each side's detach crosses the other's, and is the answer to it.
func TestBothDetach(t *testing.T) {
	p := opened(t, Options{})
	l := p.receiver("a", 0)
	l.Detach(true, nil)
	p.send(0, &wire.Detach{Handle: 0})
	require.Empty(t, happened[*Detached](p))
	require.Len(t, p.take(), 1)
	require.Zero(t, p.c.links)
	p.receiver("a", 0) // and the name and the handle are free
	p.requireOpen()
}

// TestBothEnd: the same for a session.
func TestBothEnd(t *testing.T) {
	p := opened(t, Options{})
	s := p.receiver("a", 0).Session()
	s.End(nil)
	p.send(0, &wire.End{})
	require.Empty(t, happened[*Ended](p))
	require.Len(t, p.take(), 1)
	p.send(0, begin())
	p.requireOpen()
}

// TestReattachAfterFailover: a durable subscription of Qpid JMS is attached again under its name, with a null source
// when it looks for the one that is there, and is detached without being closed.
func TestReattachAfterFailover(t *testing.T) {
	p := opened(t, Options{})
	for range 3 {
		a := attach("sub", 0, wire.RoleReceiver)
		a.Source = nil // the broker answers with the one that it knows
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

// TestUnsettledAtAttach: a peer that resumes a link tells what it has not settled; the answer names what is known, and
// a delivery that is sent again is marked (2.6.13).
func TestUnsettledAtAttach(t *testing.T) {
	p := opened(t, Options{}).manual()
	a := attach("a", 0, wire.RoleSender)
	a.Unsettled = wire.Map{{Key: []byte("t1")}, {Key: []byte("t2"), Value: wire.Accepted{}}}
	p.on = func(e Event) bool {
		if at, ok := e.(*Attached); ok {
			require.Equal(t, a.Unsettled, at.Link.Peer().Unsettled)
			at.Link.Accept(Reply{Unsettled: wire.Map{{Key: []byte("t1"), Value: wire.Accepted{}}}})
			at.Link.Window(10)
			p.links["a"] = at.Link
			return true
		}
		_, ok := e.(*Delivery)
		return ok
	}
	p.send(0, a)
	require.Len(t, one[*wire.Attach](p).Unsettled, 1)
	tr := transfer(0, 0)
	tr.DeliveryTag, tr.Resume, tr.State = []byte("t1"), true, wire.Accepted{}
	p.send(0, tr)
	d := happened[*Delivery](p)[0]
	require.True(t, d.Resume)
	require.Empty(t, d.Payload)
	d.Link.Settle(d.ID, wire.Accepted{})
	require.True(t, one[*wire.Disposition](p).Settled)

	l := p.manual().receiver("b", 1)
	p.send(0, credit(1, 0, 1))
	again := &Message{Tag: []byte("t9"), Resume: true, State: &wire.TransactionalState{TxnID: []byte("x")}}
	require.NoError(t, l.Send(again))
	got := one[*wire.Transfer](p)
	require.True(t, got.Resume)
	require.Equal(t, "t9", string(got.DeliveryTag))
}
