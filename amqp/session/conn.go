// SPDX-License-Identifier: Apache-2.0

package session

import (
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// Conn is a connection in the role of the container that accepted it: it begins no sessions and attaches no links.
type Conn struct {
	o    Options
	peer *wire.Open // nil before the peer's Open
	out  []byte     // frames not taken with Output
	err  error      // error returned by fail

	opened, closed, peerClosed bool // Open and Close were sent; Close was received
	left                       bool // the peer closed the connection without an error

	now, lastRead, lastWrite time.Time
	heartbeat                time.Duration // maximum time without output; 0: unlimited

	remote   map[uint16]*Session // by the peer's channel number
	channels []*Session          // by the own channel number
	due      []*Session          // sessions with flows or dispositions to send
	names    map[linkName]*Link
	links    int
	partial  int // bytes of incomplete messages
	unsent   int // bytes of waiting messages

	events   events
	transfer wire.Transfer // reused for each sent transfer
	flow     wire.Flow
	tag      []byte
}

// linkName identifies a link between two containers (2.6.1).
type linkName struct {
	name   string
	sender bool // the own role
}

// New starts a connection after the protocol headers and the SASL exchange.
func New(o Options, now time.Time) *Conn {
	return &Conn{
		o: o.withDefaults(), now: now, lastRead: now, lastWrite: now,
		remote: make(map[uint16]*Session), names: make(map[linkName]*Link),
	}
}

// Receive applies a frame. Before the call, the caller must have taken all events with Next. An error is fatal, and has
// the type *wire.Error. The output then contains a Close with the error, a Closed event reports it, and further calls
// return it again. The caller writes the output and closes the network connection.
func (c *Conn) Receive(f *wire.Frame, now time.Time) error {
	c.now, c.lastRead = now, now
	if c.events.pending() {
		return c.fail(InternalError, "frame applied before the events of the previous frame were consumed")
	}
	c.events.reset()
	if c.closed || c.peerClosed {
		return c.receiveClosing(f)
	}
	if f.SASL {
		return c.fail(ConnectionFramingError, "SASL frame after the SASL exchange")
	}
	switch body := f.Body.(type) {
	case nil: // a heartbeat
		return nil
	case *wire.Open:
		return c.receiveOpen(body)
	case *wire.Close:
		if c.peer == nil {
			return c.fail(IllegalState, "close before open")
		}
		c.peerClosed, c.left = true, body.Error == nil
		c.endSessions()
		c.events.push(&Closed{Err: body.Error})
		return nil
	case *wire.Begin:
		return c.receiveBegin(f.Channel, body)
	}
	s := c.remote[f.Channel]
	if s == nil {
		return c.fail(ConnectionFramingError, "frame on channel %d without a session", f.Channel)
	}
	s.receive(f)
	return c.err
}

// receiveClosing applies a frame after a Close in either direction: only a Close has an effect (2.4.6).
func (c *Conn) receiveClosing(f *wire.Frame) error {
	body, ok := f.Body.(*wire.Close)
	if !ok || c.peerClosed {
		return c.err
	}
	c.peerClosed = true
	if c.err == nil {
		c.events.push(&Closed{Err: body.Error})
	}
	return c.err
}

func (c *Conn) receiveOpen(o *wire.Open) error {
	if c.peer != nil {
		return c.fail(IllegalState, "connection is already open")
	}
	c.peer = o
	if o.MaxFrameSize < wire.MinMaxFrameSize {
		return c.fail(InvalidField, "max-frame-size is %d, minimum is %d", o.MaxFrameSize, wire.MinMaxFrameSize)
	}
	if o.IdleTimeOut > 0 { // half of it allows for network latency
		c.heartbeat = max(time.Duration(o.IdleTimeOut)*time.Millisecond/2, minHeartbeat)
	}
	c.events.push(&Opened{Open: o})
	return nil
}

const minHeartbeat = 10 * time.Millisecond // limits the rate of heartbeats

// OpenReply contains fields of the Open in addition to Options.
type OpenReply struct {
	OfferedCapabilities []wire.Symbol
	Properties          wire.Fields
}

// Open responds to an Opened event. Output that was created earlier is sent after the Open. Further calls have no
// effect.
func (c *Conn) Open(r OpenReply) {
	if c.opened {
		return
	}
	c.opened = true
	open := &wire.Open{
		ContainerID: c.o.ContainerID, MaxFrameSize: c.o.MaxFrameSize, ChannelMax: c.o.ChannelMax,
		IdleTimeOut:         uint32(c.o.IdleTimeOut.Milliseconds()),
		OfferedCapabilities: r.OfferedCapabilities, Properties: r.Properties,
	}
	c.out = append(wire.AppendFrame(nil, 0, open, nil), c.out...)
}

// Peer returns the peer's Open; nil before it has arrived.
func (c *Conn) Peer() *wire.Open { return c.peer }

// Close closes the connection, with an error or nil, or responds to a Closed event. Links and sessions end without
// events. A Closed event follows when the peer responds. Further calls have no effect.
func (c *Conn) Close(err *wire.Error) {
	if c.closed {
		return
	}
	c.Open(OpenReply{})
	c.flushDue()
	c.write(0, &wire.Close{Error: c.fitting(err)})
	c.closed = true
	c.events.muted = true
	c.endSessions()
	c.events.muted = false
}

// PeerClosed reports whether the peer has closed the connection, or the connection was lost.
func (c *Conn) PeerClosed() bool { return c.peerClosed }

// Each calls f for each link that the caller has received in an Attached event and that has not ended.
func (c *Conn) Each(f func(*Link)) {
	for _, s := range c.channels {
		if s == nil {
			continue
		}
		for _, l := range s.links {
			if l != nil && !l.gone {
				f(l)
			}
		}
	}
}

// Lost records that the network connection was lost. All links and sessions end with events, and then the connection
// ends with Closed. It has no effect after a Close in either direction.
func (c *Conn) Lost(err *wire.Error) {
	if c.closed || c.peerClosed {
		return
	}
	c.closed, c.peerClosed = true, true
	c.endSessions()
	c.events.push(&Closed{Err: err})
}

// fail closes the connection because of a violation by the peer.
func (c *Conn) fail(condition wire.Symbol, format string, args ...any) error {
	if c.err != nil {
		return c.err
	}
	e := Errorf(condition, format, args...)
	c.err = e
	if c.closed { // closed by the caller, without an event
		return c.err
	}
	c.endSessions()
	c.Close(e)
	c.events.push(&Closed{Err: e})
	return c.err
}

func (c *Conn) endSessions() {
	for _, s := range c.channels {
		if s != nil && !s.ended {
			s.close(nil)
		}
	}
	clear(c.remote)
	c.channels, c.due = nil, nil
}

// Next returns the next event; it returns false if no event is queued.
func (c *Conn) Next() (Event, bool) { return c.events.next() }

// Output returns the frames to be written, and uses the memory of spare for later ones. The caller owns the result.
// It calls Output after each group of calls: flows and dispositions are batched until then. The output grows with
// each Send and each received frame. To limit the output, the caller pauses sending and receiving while much output
// is unwritten.
func (c *Conn) Output(spare []byte) []byte {
	c.flushDue()
	if !c.opened || len(c.out) == 0 {
		return spare[:0]
	}
	out := c.out
	c.out, c.lastWrite = spare[:0], c.now
	return out
}

// Partial returns the number of bytes of incomplete messages.
func (c *Conn) Partial() int { return c.partial }

// Buffered returns the number of bytes of output not taken.
func (c *Conn) Buffered() int { return len(c.out) }

// Waits reports whether frames, flows or dispositions wait for Output.
func (c *Conn) Waits() bool { return len(c.out) > 0 || len(c.due) > 0 }

// Unsent returns the number of bytes of messages waiting in sender links.
func (c *Conn) Unsent() int { return c.unsent }

// Tick sends heartbeats if the peer has requested them. If the peer has been silent for too long, it returns an error
// like Receive. Unless next is zero, the caller must call Tick again at this time or earlier.
func (c *Conn) Tick(now time.Time) (next time.Time, err error) {
	c.now = now
	if c.closed || c.peerClosed {
		return time.Time{}, c.err
	}
	if limit := 2 * c.o.IdleTimeOut; limit > 0 {
		if next = c.lastRead.Add(limit); !now.Before(next) {
			return time.Time{}, c.fail(ResourceLimitExceeded, "no frame received for %s (idle-time-out)", limit)
		}
	}
	if c.heartbeat > 0 && c.opened {
		if len(c.out) == 0 && !now.Before(c.lastWrite.Add(c.heartbeat)) {
			c.out = wire.AppendFrame(c.out, 0, nil, nil)
			c.lastWrite = now
		}
		if heartbeat := c.lastWrite.Add(c.heartbeat); next.IsZero() || heartbeat.Before(next) {
			next = heartbeat
		}
	}
	return next, nil
}

// Unread records that the caller is not reading frames, so that the peer does not count as silent.
func (c *Conn) Unread(now time.Time) { c.lastRead = now }

func (c *Conn) write(channel uint16, body wire.Performative) {
	if !c.closed {
		c.out = wire.AppendFrame(c.out, channel, body, nil)
	}
}

func (c *Conn) flushDue() {
	for i := 0; i < len(c.due); i++ {
		c.due[i].flush()
	}
	clear(c.due)
	c.due = c.due[:0]
}

func (c *Conn) maxFrame() int {
	if c.peer == nil {
		return wire.MinMaxFrameSize
	}
	return int(min(max(c.peer.MaxFrameSize, wire.MinMaxFrameSize), 1<<30))
}

// maxOtherFields is the maximum number of bytes by which a frame with an error exceeds a close with that error.
const maxOtherFields = 48

// fitting truncates an error to the peer's maximum frame size.
func (c *Conn) fitting(e *wire.Error) *wire.Error {
	if e == nil {
		return nil
	}
	if len(wire.AppendFrame(nil, 0, &wire.Close{Error: e}, nil)) <= c.maxFrame()-maxOtherFields {
		return e
	}
	cut := *e
	cut.Info = nil
	cut.Description = strings.ToValidUTF8(cut.Description[:min(len(cut.Description), 256)], "")
	return &cut
}
