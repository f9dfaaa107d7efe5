// SPDX-License-Identifier: Apache-2.0

package session

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

func (p *peer) payloads() []string {
	p.t.Helper()
	var all []string
	for _, f := range p.take() {
		if _, ok := f.body.(*wire.Transfer); ok {
			all = append(all, f.payload)
		}
	}
	return all
}

func message(ref int) *Message {
	return &Message{Ref: uint64(ref), Payload: fmt.Appendf(nil, "m%d", ref)}
}

func sendAll(t *testing.T, l *Link, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		m := message(i)
		require.NoError(t, l.Send(m))
		clear(m.Payload) // the caller reuses its memory
	}
}

// A message is sent if the link has credit; otherwise it waits. Its outcome is reported with its Ref.
func TestSend(t *testing.T) {
	p := opened(t, Options{}).manual()
	l := p.receiver("a", 3)
	p.send(0, credit(3, 0, 2))
	require.Equal(t, &Credit{Link: l, Credit: 2}, eventsOf[*Credit](p)[0])
	require.NoError(t, l.Send(&Message{Ref: 1, Payload: []byte("x")}))
	require.NoError(t, l.Send(&Message{Ref: 2, Settled: true, Payload: []byte("y")}))
	require.NoError(t, l.Send(message(3)))
	require.Equal(t, 1, l.sender.count())
	require.Zero(t, l.credit)
	got := of[*wire.Transfer](p.take())
	require.Len(t, got, 2)
	require.Equal(t, wire.Transfer{
		Handle: 0, DeliveryID: some(0), DeliveryTag: []byte{1}, MessageFormat: some(0), Settled: wire.Some(false),
	}, *got[0])
	require.Equal(t, some(1), got[1].DeliveryID)
	require.NotEmpty(t, got[1].DeliveryTag)
	require.Equal(t, wire.Some(true), got[1].Settled)

	p.send(0, credit(3, 2, 1))
	require.Equal(t, []string{"m3"}, p.payloads())
	require.Zero(t, eventsOf[*Credit](p)[1].Credit, "waiting messages have used it")
	require.Zero(t, p.c.Unsent())

	p.send(0, &wire.Disposition{Role: wire.RoleReceiver, First: 0, Last: 2, Settled: true, State: wire.Accepted{}})
	d := eventsOf[*Disposed](p)
	require.Len(t, d, 2) // number 1 was sent settled and has no outcome
	require.Equal(t, &Disposed{Link: l, First: 0, Refs: []uint64{1}, State: wire.Accepted{}, Settled: true}, d[0])
	require.Equal(t, &Disposed{Link: l, First: 2, Refs: []uint64{3}, State: wire.Accepted{}, Settled: true}, d[1])
	require.Zero(t, l.session.out.live)
}

// The settle mode of the link takes precedence unless it is mixed.
func TestSettleModes(t *testing.T) {
	for mode, want := range map[wire.SenderSettleMode][]bool{
		wire.SenderUnsettled: {false, false}, wire.SenderSettled: {true, true}, wire.SenderMixed: {false, true},
	} {
		p := opened(t, Options{}).manual()
		a := attach("a", 0, wire.RoleReceiver)
		a.SenderSettleMode = mode
		p.send(0, a)
		p.send(0, credit(0, 0, 2))
		p.take()
		for i := range 2 {
			require.NoError(t, p.links["a"].Send(&Message{Settled: i == 1}))
		}
		for i, tr := range of[*wire.Transfer](p.take()) {
			require.Equal(t, want[i], tr.Settled.Value)
		}
	}
}

// An outcome of a receiver that does not settle is settled by the broker, once. A duplicate is not reported again.
func TestUnsettledOutcome(t *testing.T) {
	p := opened(t, Options{})
	l := p.receiver("a", 0)
	p.send(0, credit(0, 0, 10))
	sendAll(t, l, 0, 4)
	p.take()
	p.manual()
	d := &wire.Disposition{Role: wire.RoleReceiver, First: 0, Last: 3, State: wire.Accepted{}}
	p.send(0, d)
	p.send(0, d)
	require.Len(t, eventsOf[*Disposed](p), 1)
	require.Equal(t, []uint64{0, 1, 2, 3}, eventsOf[*Disposed](p)[0].Refs)
	require.False(t, eventsOf[*Disposed](p)[0].Settled)
	for id := range 4 {
		l.Settle(uint32(id), wire.Accepted{})
	}
	got := one[*wire.Disposition](p)
	require.Equal(t, wire.Disposition{Role: wire.RoleSender, Last: 3, Settled: true, State: wire.Accepted{}}, *got)
	p.send(0, d)
	require.Len(t, eventsOf[*Disposed](p), 1)
	require.Zero(t, l.session.out.live)
}

// A disposition may cover several links, gaps, and numbers that were never used.
func TestDispositionsOfSeveralLinks(t *testing.T) {
	p := opened(t, Options{}).manual()
	a, b := p.receiver("a", 0), p.receiver("b", 1)
	p.send(0, credit(0, 0, 100))
	p.send(0, credit(1, 0, 100))
	for i := range 6 {
		require.NoError(t, []*Link{a, a, b}[i%3].Send(message(i)))
	}
	rejected := &wire.Modified{DeliveryFailed: true}
	p.send(0, &wire.Disposition{Role: true, First: 4, Last: 4, Settled: true, State: rejected})
	p.send(0, &wire.Disposition{Role: true, First: 3, Last: 2, Settled: true}) // backwards: empty
	p.send(0, &wire.Disposition{Role: true, First: 1<<32 - 5, Last: 1000, Settled: true})
	var got []string
	for _, d := range eventsOf[*Disposed](p) {
		got = append(got, fmt.Sprintf("%s%d%d%v", d.Link.Peer().Name, d.First, d.Refs, d.State))
	}
	require.Equal(t, []string{
		"a4[4]" + fmt.Sprint(rejected), "a0[0 1]<nil>", "b2[2]<nil>", "a3[3]<nil>", "b5[5]<nil>",
	}, got)
	require.Zero(t, p.links["a"].session.out.live)
}

// Messages are split into frames of the peer's maximum size, limited by its window.
func TestFragments(t *testing.T) {
	p := newPeer(t, Options{}).manual()
	p.send(0, &wire.Open{MaxFrameSize: 512, ChannelMax: 1})
	p.send(0, &wire.Begin{IncomingWindow: 3, HandleMax: 5})
	l := p.receiver("a", 0)
	p.send(0, &wire.Flow{IncomingWindow: 3, Handle: some(0), LinkCredit: some(10)})
	text := strings.Repeat("0123456789", 200)
	var got string
	seen := 0
	take := func() []*wire.Transfer {
		var all []*wire.Transfer
		for _, f := range p.take() {
			if tr, ok := f.body.(*wire.Transfer); ok {
				all = append(all, tr)
				got += f.payload
				seen++
				require.Equal(t, seen == 1, tr.DeliveryID.Set)
			}
		}
		return all
	}
	require.NoError(t, l.Send(&Message{Payload: []byte(text)}))
	require.NoError(t, l.Send(message(2)))
	first := take()
	require.Len(t, first, 3)
	require.True(t, first[2].More)
	require.Equal(t, 2, l.sender.count())
	require.Equal(t, []uint64{2}, l.Recall(), "a started delivery is completed")
	p.send(0, &wire.Flow{NextIncomingID: some(1), IncomingWindow: 3}) // one more frame
	require.Len(t, take(), 1)
	p.send(0, &wire.Flow{NextIncomingID: some(4), IncomingWindow: 3})
	last := take()
	require.False(t, last[len(last)-1].More)
	require.Equal(t, text, got)
	require.Zero(t, p.c.Unsent())
	require.Equal(t, uint32(9), l.credit)
}

// Waiting messages are sent round-robin over the links.
func TestLinksSendRoundRobin(t *testing.T) {
	p := newPeer(t, Options{}).manual()
	p.send(0, &wire.Open{MaxFrameSize: 512, ChannelMax: 1})
	p.send(0, &wire.Begin{HandleMax: 5})
	for i, name := range []string{"a", "b", "c"} {
		l := p.receiver(name, uint32(i))
		f := credit(i, 0, 10)
		f.IncomingWindow = 0
		p.send(0, f)
		sendAll(t, l, 10*i, 10*i+3)
	}
	require.Empty(t, p.payloads())
	p.send(0, &wire.Flow{IncomingWindow: 100})
	require.Equal(t, []string{"m0", "m10", "m20", "m1", "m11", "m21", "m2", "m12", "m22"}, p.payloads())
}

// Waiting messages are limited in bytes over all links; recalled and released messages do not count.
func TestUnsentIsBounded(t *testing.T) {
	p := opened(t, Options{MaxUnsent: 100}).manual()
	a, b := p.receiver("a", 0), p.receiver("b", 1)
	large := &Message{Payload: make([]byte, 60)}
	require.NoError(t, a.Send(large))
	require.ErrorIs(t, b.Send(large), ErrFull)
	require.Equal(t, []uint64{0}, a.Recall())
	require.Empty(t, a.Recall())
	require.NoError(t, b.Send(&Message{Payload: make([]byte, 500)}), "one message always fits")
	require.ErrorIs(t, a.Send(large), ErrFull)
	p.send(0, &wire.Detach{Handle: 1})
	require.Zero(t, p.c.Unsent())
	require.NoError(t, a.Send(large))
	require.ErrorIs(t, b.Send(large), ErrGone)
}

// Withdraw settles sent messages, removes waiting ones, and does not withdraw a partly sent message. The peer's
// later outcome of a withdrawn message is ignored.
func TestWithdraw(t *testing.T) {
	p := opened(t, Options{}).manual()
	l := p.receiver("a", 0)
	p.send(0, credit(0, 0, 3))
	sendAll(t, l, 0, 6) // three messages wait for credit
	require.Equal(t, []string{"m0", "m1", "m2"}, p.payloads())
	state := &wire.Modified{DeliveryFailed: true}
	require.Equal(t, 2, l.Withdraw(map[uint64]bool{0: true, 1: true, 4: true, 5: true, 9: true}, state))
	got := of[*wire.Disposition](p.take())
	require.Equal(t, []*wire.Disposition{{Role: wire.RoleSender, First: 0, Last: 1, Settled: true, State: state}}, got)
	require.Equal(t, 2, p.c.Unsent())
	p.send(0, &wire.Disposition{Role: wire.RoleReceiver, First: 0, Last: 2, Settled: true, State: wire.Accepted{}})
	require.Equal(t, []uint64{2}, eventsOf[*Disposed](p)[0].Refs)

	p.send(0, &wire.Flow{
		IncomingWindow: 1, NextIncomingID: some(3), Handle: some(0), DeliveryCount: some(3), LinkCredit: some(2),
	})
	require.Equal(t, []string{"m3"}, p.payloads())
	require.NoError(t, l.Send(&Message{Ref: 7, Payload: []byte(strings.Repeat("x", 2*l.session.frameRoom()))}))
	p.send(0, &wire.Flow{IncomingWindow: 1, NextIncomingID: some(4)})
	require.Len(t, of[*wire.Transfer](p.take()), 1)
	require.Zero(t, l.Withdraw(map[uint64]bool{7: true}, state))
	p.send(0, &wire.Flow{IncomingWindow: 1, NextIncomingID: some(5)})
	last := of[*wire.Transfer](p.take())
	require.Len(t, last, 1)
	require.False(t, last[0].More)
	require.Zero(t, p.c.Unsent())
}

// The limit of unsettled messages delays further messages, except presettled ones.
func TestUnsettledIsBounded(t *testing.T) {
	p := opened(t, Options{MaxUnsettled: 2}).manual()
	l := p.receiver("a", 0)
	p.send(0, credit(0, 0, 10))
	sendAll(t, l, 0, 4)
	require.Equal(t, []string{"m0", "m1"}, p.payloads())
	p.send(0, &wire.Disposition{Role: true, First: 1, Last: 1, Settled: true, State: wire.Accepted{}})
	require.Equal(t, []string{"m2"}, p.payloads())
	p.send(0, &wire.Disposition{Role: true, First: 0, Last: 0, State: wire.Accepted{}})
	require.Empty(t, p.payloads())
	l.Settle(0, wire.Accepted{})
	require.Equal(t, []string{"m3"}, p.payloads())
}

// A drain is answered when the caller has called Drained and the waiting messages are sent.
func TestDrain(t *testing.T) {
	drain := func(count, n int) *wire.Flow {
		f := credit(0, count, n)
		f.Drain = true
		return f
	}
	t.Run("with nothing to send", func(t *testing.T) {
		p := opened(t, Options{})
		l := p.receiver("a", 0)
		p.send(0, drain(0, 10))
		require.Equal(t, &Credit{Link: l, Credit: 10, Drain: true}, eventsOf[*Credit](p)[0])
		require.Empty(t, p.take())
		l.Drained()
		f := one[*wire.Flow](p)
		require.Equal(t, some(10), f.DeliveryCount)
		require.Equal(t, some(0), f.LinkCredit)
		require.True(t, f.Drain)
		l.Drained()
		require.Empty(t, p.take())
		p.send(0, drain(10, 1)) // again
		l.Drained()
		require.Equal(t, some(11), one[*wire.Flow](p).DeliveryCount)
	})
	t.Run("with some to send", func(t *testing.T) {
		p := opened(t, Options{})
		l := p.receiver("a", 0)
		p.send(0, drain(0, 3))
		sendAll(t, l, 0, 2)
		l.Drained()
		got := p.take()
		require.Len(t, got, 3)
		require.Equal(t, some(3), got[2].body.(*wire.Flow).DeliveryCount)
	})
	t.Run("without credit", func(t *testing.T) { // receiveNoWait of a client without credit
		p := opened(t, Options{})
		p.receiver("a", 0)
		p.send(0, drain(0, 0))
		f := one[*wire.Flow](p)
		require.Equal(t, some(0), f.LinkCredit)
		require.True(t, f.Drain)
	})
	t.Run("used by waiting messages", func(t *testing.T) {
		p := opened(t, Options{})
		l := p.receiver("a", 0)
		sendAll(t, l, 0, 5)
		p.send(0, drain(0, 3))
		l.Drained()
		got := p.take()
		require.Len(t, got, 4)
		require.Equal(t, some(3), got[3].body.(*wire.Flow).DeliveryCount)
		require.Equal(t, 2, l.sender.count())
	})
	t.Run("behind a closed window", func(t *testing.T) {
		p := opened(t, Options{})
		l := p.receiver("a", 0)
		f := drain(0, 3)
		f.IncomingWindow = 1
		p.send(0, f)
		sendAll(t, l, 0, 2)
		l.Drained()
		require.Len(t, p.take(), 1, "the flow waits for the second message")
		p.send(0, &wire.Flow{NextIncomingID: some(1), IncomingWindow: 1})
		got := p.take()
		require.Len(t, got, 2)
		require.Equal(t, some(0), got[1].body.(*wire.Flow).LinkCredit)
	})
	t.Run("repeated behind a closed window", func(t *testing.T) {
		p := opened(t, Options{})
		l := p.receiver("a", 0)
		f := drain(0, 3)
		f.IncomingWindow = 1
		p.send(0, f)
		sendAll(t, l, 0, 2)
		l.Drained()
		p.take()
		f = drain(1, 2)
		f.IncomingWindow = 0
		p.send(0, f) // the caller has already called Drained
		require.Len(t, eventsOf[*Credit](p), 1)
		p.send(0, &wire.Flow{NextIncomingID: some(1), IncomingWindow: 1})
		got := p.take()
		require.Len(t, got, 2)
		require.Equal(t, some(3), got[1].body.(*wire.Flow).DeliveryCount)
	})
	t.Run("before the link is accepted", func(t *testing.T) {
		for n, credits := range map[int]int{0: 0, 5: 1} {
			p := opened(t, Options{})
			p.on = func(e Event) bool { _, ok := e.(*Attached); return ok }
			p.send(0, attach("a", 0, wire.RoleReceiver))
			f := drain(0, n)
			f.DeliveryCount = wire.Optional[uint32]{} // the peer has not yet received the delivery count
			p.send(0, f)
			require.Empty(t, eventsOf[*Credit](p))
			l := eventsOf[*Attached](p)[0].Link
			require.True(t, l.Accept(Reply{}))
			p.drain()
			require.Len(t, eventsOf[*Credit](p), credits)
			l.Drained()
			require.Equal(t, some(n), one[*wire.Flow](p).DeliveryCount)
		}
	})
	t.Run("canceled", func(t *testing.T) {
		p := opened(t, Options{})
		l := p.receiver("a", 0)
		p.send(0, drain(0, 3))
		p.send(0, credit(0, 0, 3))
		require.False(t, eventsOf[*Credit](p)[1].Drain)
		l.Drained()
		require.Empty(t, p.take())
		require.Equal(t, uint32(3), l.credit)
	})
}

// Credit is relative to the delivery-count in the flow that grants it (2.6.7).
func TestCreditIsRelative(t *testing.T) {
	p := opened(t, Options{}).manual()
	l := p.receiver("a", 0)
	p.send(0, credit(0, 0, 10))
	sendAll(t, l, 0, 4)
	for _, tc := range []struct{ count, credit, want int }{
		{2, 10, 8}, {4, 1, 1}, {1, 3, 0}, {0, 4, 0}, {4, 10, 10}, {99, 5, 5},
	} {
		p.send(0, credit(0, tc.count, tc.credit))
		require.Equal(t, uint32(tc.want), l.credit, "%+v", tc)
	}
	n := len(eventsOf[*Credit](p))
	p.send(0, credit(0, 99, 5))
	p.send(0, &wire.Flow{IncomingWindow: 9, Handle: some(0)})
	require.Len(t, eventsOf[*Credit](p), n, "nothing changed")
	p.requireOpen()
}

// Transfers, deliveries and delivery counts wrap around on both sides, with reordered settlements.
func TestNumbersWrapAround(t *testing.T) {
	const first = 1<<32 - 100
	p := newPeer(t, Options{firstID: first, IncomingWindow: 8, MaxUnsettled: 64}).manual()
	p.send(0, &wire.Open{MaxFrameSize: 512, ChannelMax: 1})
	b := begin()
	b.NextOutgoingID, b.IncomingWindow = first, 8
	p.send(0, b)
	out := p.receiver("a", 0)
	a := attach("b", 1, wire.RoleSender)
	a.InitialDeliveryCount = some(first)
	p.send(0, a)
	in := p.links["b"]
	in.Window(4)
	p.take()
	for i := range 300 {
		id := first + i
		f := &wire.Flow{
			NextIncomingID: some(id), IncomingWindow: 8, NextOutgoingID: uint32(id),
			Handle: some(0), DeliveryCount: some(id), LinkCredit: some(2),
		}
		p.send(0, f)
		require.Equal(t, uint32(2), out.credit)
		require.NoError(t, out.Send(message(i)))
		p.send(0, transfer(1, id), 'x')
		in.Settle(uint32(id), wire.Accepted{})
		if i%50 == 49 { // 50 at a time, across the wraparound
			p.send(0, &wire.Disposition{Role: true, First: uint32(id - 49), Last: uint32(id), Settled: true})
		}
		p.requireOpen()
		require.Len(t, of[*wire.Transfer](p.take()), 1)
	}
	refs := 0
	for _, d := range eventsOf[*Disposed](p) {
		for i, ref := range d.Refs {
			require.Equal(t, uint64(refs), ref)
			require.Equal(t, uint32(first+refs), d.First+uint32(i))
			refs++
		}
	}
	require.Equal(t, 300, refs)
	require.Len(t, eventsOf[*Delivery](p), 300)
	require.Zero(t, in.session.in.live)
	require.Zero(t, in.session.out.live)
}

// A delivery that is never settled does not cause later deliveries to be retained.
func TestUnsettledDeliveryRetainsNoOthers(t *testing.T) {
	p := opened(t, Options{}).manual()
	l := p.receiver("a", 0)
	for i := range 20000 {
		p.send(0, credit(0, i, 2))
		require.NoError(t, l.Send(message(i)))
		if i%5000 != 0 {
			p.send(0, &wire.Disposition{Role: true, First: uint32(i), Last: uint32(i), Settled: true})
		}
		p.events = nil
	}
	out := &l.session.out
	require.Equal(t, 4, out.live)
	require.LessOrEqual(t, len(out.ring), 64)
	p.c.out = nil
	p.send(0, &wire.Disposition{Role: true, First: 1, Last: 20000, Settled: true})
	var refs []uint64
	for _, d := range eventsOf[*Disposed](p) {
		refs = append(refs, d.Refs...)
	}
	require.Equal(t, []uint64{5000, 10000, 15000}, refs)
	l.Detach(true, nil)
	require.Zero(t, l.session.out.live)
}
