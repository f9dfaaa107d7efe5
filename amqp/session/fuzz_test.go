// SPDX-License-Identifier: Apache-2.0

package session

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// source converts the bytes of a fuzz input to frames and decisions.
type source struct{ b []byte }

func (s *source) byte() byte {
	if len(s.b) == 0 {
		return 0
	}
	x := s.b[0]
	s.b = s.b[1:]
	return x
}

func (s *source) bool() bool { return s.byte()&1 == 1 }

// number returns a small number, one near an end of the range, or any number.
func (s *source) number() uint32 {
	switch x := s.byte(); {
	case x < 200:
		return uint32(x % 20)
	case x < 230:
		return -uint32(x - 200)
	case x < 240:
		return 1<<31 - uint32(x-235)
	default:
		return uint32(s.byte())<<24 | uint32(s.byte())<<8 | uint32(s.byte())
	}
}

func (s *source) optional() wire.Optional[uint32] {
	if s.byte()%4 == 0 {
		return wire.Optional[uint32]{}
	}
	return wire.Some(s.number())
}

func (s *source) state() wire.DeliveryState {
	switch s.byte() % 8 {
	case 0:
		return wire.Accepted{}
	case 1:
		return wire.Released{}
	case 2:
		return &wire.Modified{DeliveryFailed: true}
	case 3:
		return &wire.Rejected{}
	case 4:
		return &wire.TransactionalState{TxnID: []byte("t"), Outcome: wire.Accepted{}}
	case 5:
		return &wire.Received{}
	default:
		return nil
	}
}

func (s *source) frame() *wire.Frame {
	f := &wire.Frame{Channel: uint16(s.byte() % 4)}
	switch x := s.byte(); x % 16 {
	case 0:
		f.Body = &wire.Begin{
			NextOutgoingID: s.number(), IncomingWindow: s.number(), OutgoingWindow: s.number(), HandleMax: s.number(),
		}
	case 1, 2:
		a := attach(string(rune('a'+s.byte()%6)), s.number(), wire.Role(s.bool()))
		a.SenderSettleMode = wire.SenderSettleMode(s.byte() % 3)
		a.ReceiverSettleMode = wire.ReceiverSettleMode(s.byte() % 2)
		a.InitialDeliveryCount = s.optional()
		f.Body = a
	case 3, 4, 5:
		f.Body = &wire.Flow{
			NextIncomingID: s.optional(), IncomingWindow: s.number(), NextOutgoingID: s.number(), OutgoingWindow: s.number(),
			Handle: s.optional(), DeliveryCount: s.optional(), LinkCredit: s.optional(), Drain: s.bool(), Echo: s.bool(),
		}
	case 6, 7, 8, 9:
		f.Body = &wire.Transfer{
			Handle: s.number(), DeliveryID: s.optional(), DeliveryTag: []byte("tag")[:s.byte()%4],
			Settled: wire.Optional[bool]{Set: s.bool(), Value: s.bool()}, More: s.bool(), State: s.state(),
			Aborted: s.byte()%16 == 1,
		}
		f.Payload = make([]byte, s.byte())
	case 10, 11, 12:
		f.Body = &wire.Disposition{
			Role: wire.Role(s.bool()), First: s.number(), Last: s.number(), Settled: s.bool(), State: s.state(),
		}
	case 13:
		f.Body = &wire.Detach{Handle: s.number(), Closed: s.bool()}
	case 14:
		if x < 128 {
			f.Body = &wire.End{}
		}
	case 15:
		if x >= 240 {
			f.Body = &wire.Close{}
		}
	}
	return f
}

// act executes an action of the broker that is not a response.
func (s *source) act(p *peer) {
	l := p.links[string(rune('a'+s.byte()%6))]
	if l == nil {
		return
	}
	switch s.byte() % 16 {
	case 0:
		l.Detach(s.bool(), nil)
	case 1:
		l.Session().End(nil)
	case 2:
		l.Window(s.number())
	case 3:
		l.Grant(s.number() % 1000)
	case 4:
		l.Drained()
	case 5:
		l.Recall()
	case 6, 7, 8, 9:
		l.Settle(s.number(), s.state())
	default:
		for range s.byte() % 8 {
			// ErrGone and ErrFull are expected
			_ = l.Send(&Message{Payload: make([]byte, 9*int(s.byte())), Settled: s.bool()})
		}
	}
}

// FuzzConn sends any sequence of frames, with arbitrary actions of the broker in between. A Conn does not panic, does
// not exceed the limits of its Options, and does not produce large output for one frame. Each link and session ends
// with an event.
func FuzzConn(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x00\x00\x00\x10\x10\x10\x10\x00\x01\x00\x00\x00\x00\x00\x01\x00"))
	f.Fuzz(fuzzOne)
}

func fuzzOne(t *testing.T, input []byte) {
	o := Options{
		ChannelMax: 2, HandleMax: 15, MaxLinks: 4, MaxPartial: 1000, MaxFrameSize: 512, MaxUnsent: 4000,
		IncomingWindow: 8, MaxUnsettled: 20, MaxMessageSize: 700, IdleTimeOut: time.Second,
	}
	p := newPeer(t, o)
	src := &source{input}
	attached := map[*Link]bool{}
	start := map[*Session]bool{}
	p.on = func(e Event) bool {
		p.events = p.events[:0]
		switch e := e.(type) {
		case *Attached:
			require.False(t, attached[e.Link])
			attached[e.Link] = true
			switch src.byte() % 8 {
			case 0:
				e.Link.Refuse(Errorf(NotFound, "x"))
				return true
			case 1:
				p.links[e.Link.Peer().Name] = e.Link // never answered, or later at random
				return true
			}
		case *Began:
			start[e.Session] = true
		case *Detached:
			require.True(t, attached[e.Link])
			delete(attached, e.Link)
			return src.byte()%8 == 0 // never answered
		case *Ended:
			require.True(t, start[e.Session])
			delete(start, e.Session)
			return src.byte()%8 == 0
		case *Delivery:
			require.True(t, attached[e.Link])
			require.LessOrEqual(t, len(e.Payload), 700)
			return src.byte()%4 == 0 // never settled, or later at random
		case *Disposed:
			require.True(t, attached[e.Link])
			return src.byte()%4 == 0
		}
		return false
	}
	p.send(0, &wire.Open{MaxFrameSize: uint32(src.byte()) * 8, ChannelMax: uint16(src.byte() % 4)})
	for len(src.b) > 0 {
		before := p.c.unsent
		p.err = p.c.Receive(src.frame(), p.now)
		p.drain()
		for range src.byte() % 4 {
			src.act(p)
		}
		requireBounded(t, p.c)
		if n := p.c.Buffered(); n > 0 && src.byte()%4 > 0 {
			require.Less(t, n, 100_000+2*before)
			p.take()
		}
	}
	p.drain()
	p.c.Lost(nil)
	p.drain()
	for l := range attached {
		require.True(t, l.Gone(), "all except deliveries that the broker ended are requeued")
	}
	require.Zero(t, p.c.partial)
	require.Zero(t, p.c.unsent)
	require.Zero(t, p.c.links)
}

func requireBounded(t *testing.T, c *Conn) {
	t.Helper()
	sessions, links, ok := 0, 0, true
	for _, s := range c.channels {
		if s == nil {
			continue
		}
		sessions++
		links += s.count
		ok = ok && len(s.handles) <= s.count && len(s.byFlow) <= c.o.MaxLinks+refusedLinks &&
			s.out.live <= c.o.MaxUnsettled && len(s.out.ring) <= 8*c.o.MaxUnsettled && len(s.out.old) <= s.out.live
	}
	ok = ok && c.links == links && links <= c.o.MaxLinks+refusedLinks && len(c.names) <= links &&
		sessions <= int(c.o.ChannelMax)+1 && len(c.remote) <= sessions &&
		c.partial <= c.o.MaxPartial && c.unsent <= c.o.MaxUnsent
	if !ok { // plain conditions for speed, because this runs for each frame of a fuzz run
		require.Fail(t, "out of bounds", "links %d of %d, partial %d, unsent %d, sessions %d", links, c.links, c.partial,
			c.unsent, sessions)
	}
}
