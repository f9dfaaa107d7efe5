// SPDX-License-Identifier: Apache-2.0

package session

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// manual makes the broker of a test accept links without a window, and leave deliveries unsettled.
func (p *peer) manual() *peer {
	p.on = func(e Event) bool {
		switch e := e.(type) {
		case *Attached:
			p.links[e.Link.Peer().Name] = e.Link
			e.Link.Accept(Reply{})
			return true
		case *Delivery, *Disposed:
			return true
		}
		return false
	}
	return p
}

// A received message is reported once, and settled once with the outcome of the broker.
func TestReceive(t *testing.T) {
	p := opened(t, Options{}).manual()
	l := p.sender("a", 4)
	l.Grant(10)
	require.Equal(t, some(10), one[*wire.Flow](p).LinkCredit)
	p.send(0, &wire.Transfer{
		Handle: 4, DeliveryID: some(70), DeliveryTag: []byte("tag"), MessageFormat: some(3),
		State: &wire.TransactionalState{TxnID: []byte("x")},
	}, 'm')
	p.send(0, &wire.Transfer{Handle: 4, DeliveryID: some(71), Settled: wire.Some(true)}, 'n')
	d := eventsOf[*Delivery](p)
	require.Equal(t, &Delivery{
		Link: l, ID: 70, State: &wire.TransactionalState{TxnID: []byte("x")}, Payload: []byte("m"),
	}, d[0])
	require.True(t, d[1].Settled)
	require.Equal(t, uint32(8), l.credit)
	require.Empty(t, p.take())

	l.Settle(71, wire.Accepted{}) // settled by the peer: no frame is sent
	require.Empty(t, p.take())
	rejected := &wire.Rejected{Error: Errorf(PreconditionFailed, "full")}
	l.Settle(70, rejected)
	got := one[*wire.Disposition](p)
	require.True(t, got.Settled)
	require.Equal(t, wire.RoleReceiver, got.Role)
	require.Equal(t, uint32(70), got.First)
	require.Equal(t, rejected, got.State)
	l.Settle(70, wire.Accepted{})
	l.Settle(12345, wire.Accepted{})
	require.Empty(t, p.take())
	require.Zero(t, l.session.in.live)
}

// Messages of several frames may be interleaved with those of another link.
func TestInterleavedMessages(t *testing.T) {
	p := opened(t, Options{}).manual()
	a, b := p.sender("a", 0), p.sender("b", 1)
	a.Grant(3)
	b.Grant(3)
	part := func(handle uint32, id int, more bool, text string) {
		tr := &wire.Transfer{Handle: handle, More: more}
		if id >= 0 {
			tr.DeliveryID, tr.DeliveryTag = some(id), []byte{byte(id)}
		}
		p.send(0, tr, []byte(text)...)
	}
	part(0, 0, true, "one ")
	part(1, 1, true, "uno ")
	part(0, -1, true, "two ")
	part(1, 1, true, "due ") // a sender may repeat ID and tag
	require.Equal(t, 16, p.c.partial)
	part(0, -1, false, "three")
	part(1, -1, false, "")
	part(0, 2, false, "four")
	p.requireOpen()
	d := eventsOf[*Delivery](p)
	require.Len(t, d, 3)
	require.Equal(t, "one two three", string(d[0].Payload))
	require.Equal(t, "uno due ", string(d[1].Payload))
	require.Equal(t, "four", string(d[2].Payload))
	require.Equal(t, uint32(1), a.credit)
	require.Zero(t, p.c.partial)
}

// The settled flag in any frame settles the delivery (2.7.5), and so does a disposition in between.
func TestSettledInAnyFrame(t *testing.T) {
	p := opened(t, Options{}).manual()
	l := p.sender("a", 0)
	l.Grant(3)
	txn := &wire.TransactionalState{TxnID: []byte("t1"), Outcome: wire.Accepted{}}
	p.send(0, &wire.Transfer{Handle: 0, DeliveryID: some(0), More: true, State: txn}, 'a')
	txn.TxnID[0] = 'X' // the reader's memory
	p.send(0, &wire.Transfer{Handle: 0, Settled: wire.Some(true)}, 'b')
	p.send(0, &wire.Transfer{Handle: 0, DeliveryID: some(1), More: true}, 'a')
	p.send(0, &wire.Disposition{Role: wire.RoleSender, First: 1, Last: 1, Settled: true})
	p.send(0, &wire.Transfer{Handle: 0}, 'b')
	d := eventsOf[*Delivery](p)
	require.True(t, d[0].Settled)
	require.Equal(t, "t1", string(d[0].State.(*wire.TransactionalState).TxnID))
	require.True(t, d[1].Settled)
}

// An aborted delivery has no effect, except that it uses its number and its credit.
func TestAbortedDelivery(t *testing.T) {
	p := opened(t, Options{}).manual()
	l := p.sender("a", 0)
	l.Window(4)
	p.take()
	p.send(0, &wire.Transfer{Handle: 0, DeliveryID: some(0), More: true}, 'a')
	p.send(0, &wire.Transfer{Handle: 0, Aborted: true}, 'b')
	p.send(0, &wire.Transfer{Handle: 0, DeliveryID: some(1), Aborted: true}, 'b')
	require.Equal(t, some(4), one[*wire.Flow](p).LinkCredit)
	require.Zero(t, p.c.partial)
	require.Zero(t, l.session.in.live)
	p.send(0, transfer(0, 2), 'c')
	p.requireOpen()
	require.Len(t, eventsOf[*Delivery](p), 1)
	require.Equal(t, "c", string(eventsOf[*Delivery](p)[0].Payload))
}

// A detach discards an incomplete delivery.
func TestDetachedWithinDelivery(t *testing.T) {
	p := opened(t, Options{}).manual()
	p.sender("a", 0).Grant(3)
	p.send(0, &wire.Transfer{Handle: 0, DeliveryID: some(0), More: true}, 'a')
	p.send(0, &wire.Detach{Handle: 0})
	require.Zero(t, p.c.partial)
	p.sender("b", 0).Grant(1)
	p.send(0, transfer(0, 1), 'c')
	p.requireOpen()
	require.Len(t, eventsOf[*Delivery](p), 1)
}

// Credit is granted again as deliveries are settled, including presettled ones, half a window at a time.
func TestCreditWindow(t *testing.T) {
	p := opened(t, Options{}).manual()
	l := p.sender("a", 0)
	l.Window(10)
	require.Equal(t, some(10), one[*wire.Flow](p).LinkCredit)
	for id := range 10 {
		tr := transfer(0, id)
		tr.Settled = wire.Some(id%2 == 0)
		p.send(0, tr)
	}
	require.Zero(t, l.credit)
	for id := range 4 {
		l.Settle(uint32(id), wire.Accepted{})
	}
	require.Empty(t, of[*wire.Flow](p.take()))
	l.Settle(4, wire.Accepted{})
	f := one[*wire.Flow](p)
	require.Equal(t, some(5), f.LinkCredit)
	require.Equal(t, some(10), f.DeliveryCount)
	l.Window(3) // five deliveries are open: no credit until the window has space
	require.Equal(t, some(0), one[*wire.Flow](p).LinkCredit)
	for id := 5; id < 9; id++ {
		l.Settle(uint32(id), wire.Accepted{})
	}
	require.Equal(t, some(2), one[*wire.Flow](p).LinkCredit)
	l.Grant(0)
	require.Equal(t, some(0), one[*wire.Flow](p).LinkCredit)
	l.Settle(9, wire.Accepted{})
	require.Empty(t, of[*wire.Flow](p.take()))
}

// Messages that the peer sends before it receives the revocation of its credit are accepted.
func TestCreditRevoked(t *testing.T) {
	for _, take := range []func(*Link){func(l *Link) { l.Grant(0) }, func(l *Link) { l.Window(1) }} {
		p := opened(t, Options{}).manual()
		l := p.sender("a", 0)
		l.Window(3)
		p.take()
		p.send(0, transfer(0, 0))
		take(l)
		require.Equal(t, some(0), one[*wire.Flow](p).LinkCredit)
		p.send(0, transfer(0, 1)) // these two transfers crossed the flow
		p.send(0, transfer(0, 2))
		p.requireOpen()
		require.Zero(t, l.credit)
		require.Len(t, eventsOf[*Delivery](p), 3)
		p.send(0, transfer(0, 3))
		p.requireDetached(LinkTransferLimitExceeded)
	}
}

// A sender that advances its delivery-count without a transfer uses credit.
func TestCreditUsedWithoutSending(t *testing.T) {
	p := opened(t, Options{}).manual()
	l := p.sender("a", 0)
	l.Grant(10)
	p.send(0, &wire.Flow{Handle: some(0), DeliveryCount: some(4), LinkCredit: some(6), Available: some(2)})
	require.Equal(t, uint32(6), l.credit)
	p.send(0, &wire.Flow{Handle: some(0), DeliveryCount: some(4), LinkCredit: some(99)}) // a sender cannot grant credit
	p.send(0, &wire.Flow{Handle: some(0)})
	require.Equal(t, uint32(6), l.credit)
	p.send(0, &wire.Flow{Handle: some(0), DeliveryCount: some(50)})
	require.Zero(t, l.credit)
	p.requireOpen()
}

// With rcv-settle-mode second, the receiver sends the outcome, and the sender settles.
func TestReceiverSecond(t *testing.T) {
	p := opened(t, Options{}).manual()
	a := attach("a", 0, wire.RoleSender)
	a.ReceiverSettleMode = wire.ReceiverSecond
	p.send(0, a)
	l := p.links["a"]
	l.Window(2)
	p.take()
	p.send(0, transfer(0, 0))
	p.send(0, transfer(0, 1))
	l.Settle(0, wire.Accepted{})
	l.Settle(0, wire.Accepted{})
	d := one[*wire.Disposition](p)
	require.False(t, d.Settled)
	require.Equal(t, wire.Accepted{}, d.State)
	require.Equal(t, 2, l.session.in.live)
	p.send(0, &wire.Disposition{Role: wire.RoleSender, First: 0, Last: 1, Settled: true})
	require.Equal(t, 1, l.session.in.live, "1 occupies its slot until the broker settles it")
	require.Equal(t, some(1), one[*wire.Flow](p).LinkCredit)
	l.Settle(1, wire.Accepted{})
	require.Empty(t, of[*wire.Disposition](p.take()))
	require.Zero(t, l.session.in.live)
}

// Consecutive deliveries with one state are settled in one frame, regardless of the order of the calls.
func TestSettlementsAreCombined(t *testing.T) {
	p := opened(t, Options{}).manual()
	a, b := p.sender("a", 0), p.sender("b", 1)
	a.Grant(100)
	b.Grant(100)
	for id := range 40 {
		p.send(0, transfer(id%2, id))
	}
	p.take()
	links := []*Link{a, b}
	for id := range 20 {
		links[id%2].Settle(uint32(id), wire.Accepted{})
	}
	a.Settle(20, wire.Released{})
	for id := 30; id > 22; id-- {
		links[id%2].Settle(uint32(id), wire.Accepted{})
	}
	a.Settle(38, wire.Accepted{})
	got := of[*wire.Disposition](p.take())
	require.Len(t, got, 4)
	require.Equal(t, wire.Disposition{Role: true, First: 0, Last: 19, Settled: true, State: wire.Accepted{}}, *got[0])
	require.Equal(t, wire.Disposition{Role: true, First: 20, Last: 20, Settled: true, State: wire.Released{}}, *got[1])
	require.Equal(t, wire.Disposition{Role: true, First: 23, Last: 30, Settled: true, State: wire.Accepted{}}, *got[2])
	require.Equal(t, uint32(38), got[3].First)
}

// Settlements are sent before the detach.
func TestDispositionBeforeDetach(t *testing.T) {
	p := opened(t, Options{}).manual()
	l := p.sender("a", 0)
	l.Grant(1)
	p.send(0, transfer(0, 0))
	p.take()
	l.Settle(0, wire.Accepted{})
	l.Detach(true, nil)
	got := p.take()
	require.Len(t, got, 2)
	require.IsType(t, &wire.Disposition{}, got[0].body)
}

// The window is renewed when half of it is used. A peer that exceeds it ends its session.
func TestIncomingWindow(t *testing.T) {
	p := opened(t, Options{IncomingWindow: 4})
	p.sender("a", 0)
	p.send(0, transfer(0, 0))
	require.Empty(t, of[*wire.Flow](p.take()))
	p.send(0, transfer(0, 1))
	f := one[*wire.Flow](p)
	require.Equal(t, some(2), f.NextIncomingID)
	require.Equal(t, uint32(4), f.IncomingWindow)
	for id := range 4 {
		p.send(0, transfer(0, 2+id))
	}
	p.requireOpen()
	p.send(0, transfer(0, 6)) // the pending flow was never taken
	require.Equal(t, SessionWindowViolation, eventsOf[*Ended](p)[0].Err.Condition)
}

// More unsettled deliveries than MaxUnsettled end the session if the link has no window.
func TestTooManyUnsettled(t *testing.T) {
	p := opened(t, Options{MaxUnsettled: 3}).manual()
	p.sender("a", 0).Grant(100)
	for id := range 3 {
		p.send(0, transfer(0, id))
	}
	p.requireOpen()
	p.take()
	p.send(0, transfer(0, 3))
	p.requireEnded(ResourceLimitExceeded)
}

// Requests for an echo are answered once per output, regardless of their number.
func TestEcho(t *testing.T) {
	p := opened(t, Options{}).manual()
	p.receiver("a", 0)
	p.sender("b", 1).Grant(7)
	p.take()
	for range 100 {
		p.send(0, &wire.Flow{IncomingWindow: 10, Echo: true})
	}
	f := one[*wire.Flow](p)
	require.False(t, f.Handle.Set)
	for range 100 {
		p.send(0, &wire.Flow{IncomingWindow: 10, Handle: some(0), LinkCredit: some(3), Echo: true})
		p.send(0, &wire.Flow{IncomingWindow: 10, Handle: some(1), DeliveryCount: some(0), Echo: true})
	}
	flows := of[*wire.Flow](p.take())
	require.Len(t, flows, 2)
	require.Equal(t, some(3), flows[0].LinkCredit)
	require.Equal(t, some(0), flows[0].Available)
	require.Equal(t, some(7), flows[1].LinkCredit)
	for _, f := range flows {
		require.False(t, f.Echo, "a response does not request an echo")
	}
}
