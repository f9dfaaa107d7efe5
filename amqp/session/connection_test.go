// SPDX-License-Identifier: Apache-2.0

package session

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// A client may send all frames before it receives a response, and the responses are in order.
func TestPipelinedFrames(t *testing.T) {
	p := newPeer(t, Options{})
	var attached *Link
	p.on = func(e Event) bool { // the broker responds late
		if e, ok := e.(*Attached); ok {
			attached = e.Link
			return true
		}
		_, isOpen := e.(*Opened)
		return isOpen
	}
	p.send(0, &wire.Open{ContainerID: "c", MaxFrameSize: 1 << 16, ChannelMax: 10})
	p.send(0, begin())
	p.send(0, attach("l", 0, wire.RoleReceiver))
	p.send(0, &wire.Flow{IncomingWindow: 10, Handle: some(0), LinkCredit: some(5)}) // before any response
	require.Empty(t, p.take())
	p.c.Open(OpenReply{Properties: wire.Fields{{Key: wire.Symbol("product"), Value: "x"}}})
	require.Empty(t, eventsOf[*Credit](p), "the caller has no stream yet")
	attached.Accept(Reply{})
	p.drain()
	require.NoError(t, attached.Send(&Message{Ref: 1, Payload: []byte("m")}))
	got := p.take()
	require.Len(t, got, 4)
	require.Equal(t, "node", got[0].body.(*wire.Open).ContainerID)
	require.Equal(t, "x", got[0].body.(*wire.Open).Properties[0].Value)
	require.Equal(t, wire.Some(uint16(0)), got[1].body.(*wire.Begin).RemoteChannel)
	require.Equal(t, "l", got[2].body.(*wire.Attach).Name)
	require.Equal(t, "m", got[3].payload)
	require.Equal(t, uint32(5), eventsOf[*Credit](p)[0].Credit)
	p.requireOpen()
}

// A violation of the connection closes it with the condition of the specification.
func TestConnectionErrors(t *testing.T) {
	open := &wire.Open{ContainerID: "c", MaxFrameSize: 4096, ChannelMax: 3}
	for name, tc := range map[string]struct {
		frames    []*wire.Frame
		condition wire.Symbol
	}{
		"a begin first":   {[]*wire.Frame{{Body: begin()}}, IllegalState},
		"a close first":   {[]*wire.Frame{{Body: &wire.Close{}}}, IllegalState},
		"a flow first":    {[]*wire.Frame{{Body: &wire.Flow{}}}, ConnectionFramingError},
		"two opens":       {[]*wire.Frame{{Body: open}, {Body: open}}, IllegalState},
		"a small frame":   {[]*wire.Frame{{Body: &wire.Open{MaxFrameSize: 511}}}, InvalidField},
		"SASL":            {[]*wire.Frame{{Body: open}, {SASL: true, Body: &wire.SASLInit{}}}, ConnectionFramingError},
		"SASL in AMQP":    {[]*wire.Frame{{Body: open}, {Body: begin()}, {Body: &wire.SASLInit{}}}, ConnectionFramingError},
		"no such channel": {[]*wire.Frame{{Body: open}, {Channel: 1, Body: &wire.Flow{}}}, ConnectionFramingError},
		"begun twice":     {[]*wire.Frame{{Body: open}, {Body: begin()}, {Body: begin()}}, ConnectionFramingError},
		"channel-max":     {[]*wire.Frame{{Body: open}, {Channel: 9, Body: begin()}}, ConnectionFramingError},
		"a begin that is a response": {
			[]*wire.Frame{{Body: open}, {Body: &wire.Begin{RemoteChannel: wire.Some(uint16(1))}}}, NotAllowed,
		},
		"handle-max": {
			[]*wire.Frame{{Body: open}, {Body: begin()}, {Body: attach("l", 16, false)}}, ConnectionFramingError,
		},
		"an end without a session": {[]*wire.Frame{{Body: open}, {Body: &wire.End{}}}, ConnectionFramingError},
		"after its own end": {
			[]*wire.Frame{{Body: open}, {Body: begin()}, {Body: &wire.End{}}, {Body: &wire.Flow{}}}, ConnectionFramingError,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, Options{ChannelMax: 8, HandleMax: 15})
			for _, f := range tc.frames {
				require.NoError(t, p.err)
				p.err = p.c.Receive(f, p.now)
				p.drain()
			}
			require.Error(t, p.err)
			got := p.take()
			require.IsType(t, &wire.Open{}, got[0].body, "the open precedes the error")
			require.Equal(t, tc.condition, got[len(got)-1].body.(*wire.Close).Error.Condition)
			require.Len(t, eventsOf[*Closed](p), 1)

			for range 3 { // everything except a close is discarded; the error persists
				require.Error(t, p.c.Receive(&wire.Frame{Body: begin()}, p.now))
				p.drain()
			}
			require.False(t, p.done())
			require.Error(t, p.c.Receive(&wire.Frame{Body: &wire.Close{}}, p.now))
			require.True(t, p.done())
			require.Empty(t, p.take())
			require.Len(t, eventsOf[*Closed](p), 1)
		})
	}
}

// All links and sessions end with events before Closed.
func TestCloseByPeer(t *testing.T) {
	p := opened(t, Options{})
	p.receiver("a", 0)
	p.sender("b", 1)
	p.events = nil
	p.send(0, &wire.Close{Error: &wire.Error{Condition: "x"}})
	require.Len(t, p.events, 4)
	require.True(t, p.events[0].(*Detached).Ended)
	require.True(t, p.events[1].(*Detached).Ended)
	require.True(t, p.events[2].(*Ended).Ended)
	require.Equal(t, wire.Symbol("x"), p.events[3].(*Closed).Err.Condition)
	require.Len(t, p.take(), 1)
	require.True(t, p.done())
	require.Zero(t, p.c.links)
}

// A redirect sends an open, followed by a close with an error.
func TestCloseByCaller(t *testing.T) {
	p := newPeer(t, Options{})
	p.on = func(e Event) bool {
		if _, ok := e.(*Opened); ok {
			p.c.Open(OpenReply{})
			p.c.Close(Errorf(ConnectionRedirect, "the other node is active"))
			p.c.Close(nil)
			return true
		}
		return false
	}
	p.send(0, &wire.Open{ContainerID: "c", MaxFrameSize: 512})
	p.send(0, begin()) // pipelined
	p.requireOpen()
	got := p.take()
	require.Len(t, got, 2)
	require.Equal(t, ConnectionRedirect, got[1].body.(*wire.Close).Error.Condition)
	p.send(0, &wire.Close{})
	require.Len(t, eventsOf[*Closed](p), 1)
	require.True(t, p.done())
}

// Settlements are sent before the connection closes.
func TestDispositionBeforeClose(t *testing.T) {
	p := opened(t, Options{}).manual()
	l := p.sender("a", 0)
	l.Grant(1)
	p.send(0, transfer(0, 0))
	p.take()
	l.Settle(0, wire.Accepted{})
	p.c.Close(nil)
	got := p.take()
	require.Len(t, got, 2)
	require.IsType(t, &wire.Disposition{}, got[0].body)
	require.IsType(t, &wire.Close{}, got[1].body)
}

// A lost connection ends each link, session and the connection with one event.
func TestLostConnection(t *testing.T) {
	p := opened(t, Options{})
	l := p.receiver("a", 0)
	p.c.Lost(Errorf(ConnectionForced, "EOF"))
	p.c.Lost(nil)
	p.drain()
	require.Len(t, eventsOf[*Detached](p), 1)
	require.Len(t, eventsOf[*Ended](p), 1)
	require.Len(t, eventsOf[*Closed](p), 1)
	require.ErrorIs(t, l.Send(&Message{}), ErrGone)
	require.Empty(t, p.take())
}

// A long error fits the smallest frame size of a peer, in every frame type.
func TestLongErrorFitsFrame(t *testing.T) {
	for size := range 1000 {
		p := newPeer(t, Options{}).manual()
		p.send(0, &wire.Open{ContainerID: "c", MaxFrameSize: 512, ChannelMax: 1})
		p.send(0, begin())
		l := p.sender("a", 1<<10-1)
		l.Grant(1)
		p.send(0, &wire.Transfer{Handle: 1<<10 - 1, DeliveryID: some(1 << 31)})
		p.take()
		long := Errorf(InternalError, "%s", strings.Repeat("ä", size))
		long.Info = wire.Fields{{Key: wire.Symbol("k"), Value: "v"}}
		l.Settle(1<<31, &wire.Rejected{Error: long})
		for _, end := range []func(){
			func() {}, func() { l.Detach(true, long) }, func() { l.Session().End(long) }, func() { p.c.Close(long) },
		} {
			end()
			out := p.c.Output(nil)
			require.NotEmpty(t, out)
			require.LessOrEqual(t, len(out), 512)
		}
	}
}

// A Conn sends the heartbeats that the peer requests, and disconnects a peer that is silent for too long.
func TestHeartbeats(t *testing.T) {
	p := newPeer(t, Options{IdleTimeOut: 10 * time.Second})
	p.send(0, &wire.Open{ContainerID: "c", MaxFrameSize: 512, IdleTimeOut: 8000})
	require.Equal(t, uint32(10000), one[*wire.Open](p).IdleTimeOut)
	start := p.now
	tick := func(after time.Duration) (time.Duration, error) {
		p.now = start.Add(after)
		next, err := p.c.Tick(p.now)
		p.drain()
		return next.Sub(start), err
	}
	next, err := tick(0)
	require.NoError(t, err)
	require.Equal(t, 4*time.Second, next)
	require.Empty(t, p.c.Output(nil))

	next, err = tick(4 * time.Second)
	require.NoError(t, err)
	require.Equal(t, 8*time.Second, next)
	require.Len(t, p.c.Output(nil), 8, "an empty frame")

	p.send(0, begin()) // any sent frame replaces a heartbeat
	p.now = start.Add(6 * time.Second)
	require.NoError(t, p.c.Receive(&wire.Frame{}, p.now))
	require.NotEmpty(t, p.c.Output(nil))
	_, err = tick(8 * time.Second)
	require.NoError(t, err)
	require.Empty(t, p.c.Output(nil))

	_, err = tick(25 * time.Second)
	require.NoError(t, err)
	p.c.Output(nil)
	_, p.err = tick(26 * time.Second) // 6 s, and twice the timeout
	p.requireClosed(ResourceLimitExceeded)
}

// Without idle timeouts, no timer is active.
func TestNoIdleTimeout(t *testing.T) {
	p := opened(t, Options{})
	next, err := p.c.Tick(p.now.Add(time.Hour))
	require.NoError(t, err)
	require.True(t, next.IsZero())
	require.Empty(t, p.take())
}

// A frame that is applied before the events of the previous one were taken is an error.
func TestEventsMustBeTaken(t *testing.T) {
	p := newPeer(t, Options{})
	require.NoError(t, p.c.Receive(&wire.Frame{Body: &wire.Open{MaxFrameSize: 512}}, p.now))
	require.Error(t, p.c.Receive(&wire.Frame{Body: begin()}, p.now))
}

// Output uses the memory of spare for later frames.
func TestOutputReusesMemory(t *testing.T) {
	p := newPeer(t, Options{})
	spare := make([]byte, 100, 4096)
	require.Empty(t, p.c.Output(spare))
	p.send(0, &wire.Open{MaxFrameSize: 512})
	one := p.c.Output(spare)
	require.NotEmpty(t, one)
	require.Zero(t, p.c.Buffered())
	p.send(0, begin())
	two := p.c.Output(nil)
	require.Same(t, &spare[0], &two[0])
}
