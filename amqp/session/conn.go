// SPDX-License-Identifier: Apache-2.0

package session

import (
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// Conn is one connection, in the role of the container that was connected to: it never begins a session or attaches a
// link by itself. It is not safe for concurrent use.
type Conn struct {
	o    Options
	peer *wire.Open // what the peer has opened with; nil before
	out  []byte     // frames that were not taken yet
	err  error      // why it was closed here

	opened, closed, peerClosed bool // Open and Close were sent; Close was received
	left                       bool // the peer has closed it without an error

	now, lastRead, lastWrite time.Time
	beat                     time.Duration // the longest time without a frame that the peer is spared; 0: any

	remote   map[uint16]*Session // by the number of the peer's channel
	channels []*Session          // by the number of the own channel
	due      []*Session          // that have flows or dispositions to be sent
	names    map[linkName]*Link
	links    int
	partial  int // bytes of messages of which not all frames have come
	unsent   int // bytes of messages that wait

	events   events
	transfer wire.Transfer // used again for each one that is sent
	flow     wire.Flow
	tag      []byte
}

// linkName is what a link between two containers is known by (2.6.1).
type linkName struct {
	name   string
	sender bool // the own role
}

// New begins a connection after the protocol headers and the SASL exchange.
func New(o Options, now time.Time) *Conn {
	return &Conn{
		o: o.withDefaults(), now: now, lastRead: now, lastWrite: now,
		remote: make(map[uint16]*Session), names: make(map[linkName]*Link),
	}
}

// Receive applies one frame. The caller must have taken all events by Next before. An error is fatal: a Close with it
// is in the output, and a Closed event has come; the caller writes the output and closes the network connection. The
// error is a *wire.Error, and each further call returns it again.
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
		c.giveBack()
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

// receiveClosing applies a frame when a Close was sent or received: only a Close matters (2.4.6).
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

const minFrameSize = 512 // 2.3.4: each peer takes that much

func (c *Conn) receiveOpen(o *wire.Open) error {
	if c.peer != nil {
		return c.fail(IllegalState, "connection is already open")
	}
	c.peer = o
	if o.MaxFrameSize < minFrameSize {
		return c.fail(InvalidField, "max-frame-size is %d, minimum is %d", o.MaxFrameSize, minFrameSize)
	}
	if o.IdleTimeOut > 0 { // half of it leaves time for the way to the peer
		c.beat = max(time.Duration(o.IdleTimeOut)*time.Millisecond/2, minBeat)
	}
	c.events.push(&Opened{Open: o})
	return nil
}

// minBeat bounds the rate of heartbeats, whatever a peer asks for.
const minBeat = 10 * time.Millisecond

// OpenReply is what a connection is opened with beyond what Options say. Nil leaves that in force.
type OpenReply struct {
	OfferedCapabilities []wire.Symbol
	Properties          wire.Fields
}

// Open answers an Opened event. What was sent before leaves after it, so that a peer may send begin and attach before
// it has the answer. Further calls do nothing.
func (c *Conn) Open(r OpenReply) {
	if c.opened {
		return
	}
	c.opened = true
	open := &wire.Open{
		ContainerID: c.o.ContainerID, MaxFrameSize: c.o.MaxFrameSize, ChannelMax: c.o.ChannelMax,
		IdleTimeOut:         uint32(c.o.IdleTimeOut.Milliseconds()),
		OfferedCapabilities: c.o.OfferedCapabilities, DesiredCapabilities: c.o.DesiredCapabilities,
		Properties: c.o.Properties,
	}
	if r.OfferedCapabilities != nil {
		open.OfferedCapabilities = r.OfferedCapabilities
	}
	if r.Properties != nil {
		open.Properties = r.Properties
	}
	c.out = append(wire.AppendFrame(nil, 0, open, nil), c.out...)
}

// Peer returns what the peer has opened with, or nil before it has.
func (c *Conn) Peer() *wire.Open { return c.peer }

// Close closes the connection, with an error or nil, or answers a Closed event. The links and sessions end without
// further events; a Closed event follows when the peer answers. Further calls do nothing.
func (c *Conn) Close(err *wire.Error) {
	if c.closed {
		return
	}
	c.Open(OpenReply{})
	c.flushDue()
	c.write(0, &wire.Close{Error: c.fitting(err)})
	c.closed = true
	c.events.muted = true
	c.giveBack()
	c.events.muted = false
}

// Done tells whether both sides have closed the connection, so that there is nothing to wait for.
func (c *Conn) Done() bool { return c.closed && c.peerClosed }

// PeerClosed reports whether no further frame of the peer matters: it has closed the connection, or it was lost.
func (c *Conn) PeerClosed() bool { return c.peerClosed }

// Each calls f for each link that was given to the caller and is not gone.
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

// Lost gives back all links and sessions by events, and ends with Closed, when the network connection has ended
// without a Close.
func (c *Conn) Lost(err *wire.Error) {
	if c.closed || c.peerClosed {
		return
	}
	c.closed, c.peerClosed = true, true
	c.giveBack()
	c.events.push(&Closed{Err: err})
}

// fail closes the connection with an error of its own finding.
func (c *Conn) fail(condition wire.Symbol, format string, args ...any) error {
	if c.err != nil {
		return c.err
	}
	e := Errorf(condition, format, args...)
	c.err = e
	if c.closed { // by the caller, who knows
		return c.err
	}
	c.giveBack()
	c.Close(e)
	c.events.push(&Closed{Err: e})
	return c.err
}

// giveBack ends all sessions, and tells the caller so.
func (c *Conn) giveBack() {
	for _, s := range c.channels {
		if s != nil && !s.ended {
			s.giveBack(nil)
		}
	}
	clear(c.remote)
	c.channels, c.due = nil, nil
}

// Next returns the next event, or false if there is none.
func (c *Conn) Next() (Event, bool) { return c.events.next() }

// Output returns the frames that are to be written, and takes the memory of spare for those to come; the caller owns
// what is returned. The caller takes it after each group of calls: flows and dispositions are put together until then.
// The output grows with each Send and each frame received, so that a caller that neither sends nor receives while too
// much of it waits to be written keeps it bounded. Without anything to write it returns spare, empty.
func (c *Conn) Output(spare []byte) []byte {
	c.flushDue()
	if !c.opened || len(c.out) == 0 {
		return spare[:0]
	}
	out := c.out
	c.out, c.lastWrite = spare[:0], c.now
	return out
}

// Partial is how many bytes of messages are kept of which not all frames have come.
func (c *Conn) Partial() int { return c.partial }

// Buffered tells how many bytes of output wait to be taken.
func (c *Conn) Buffered() int { return len(c.out) }

// Waits tells whether Output has something to be written.
func (c *Conn) Waits() bool { return len(c.out) > 0 || len(c.due) > 0 }

// Unsent tells how many bytes of messages wait in all sender links.
func (c *Conn) Unsent() int { return c.unsent }

// Tick does what is due by time: it sends a heartbeat when the peer asks for one, and returns an error, as Receive
// does, when the peer has been silent for too long. It is to be called again at next, or earlier; a zero next means
// that there is nothing to be done by time.
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
	if c.beat > 0 && c.opened {
		if len(c.out) == 0 && !now.Before(c.lastWrite.Add(c.beat)) {
			c.out = wire.AppendFrame(c.out, 0, nil, nil)
			c.lastWrite = now
		}
		if beat := c.lastWrite.Add(c.beat); next.IsZero() || beat.Before(next) {
			next = beat
		}
	}
	return next, nil
}

// Unread notes that the caller does not read the peer's frames at present, so that the peer is not silent.
func (c *Conn) Unread(now time.Time) { c.lastRead = now }

// write appends a frame that stands in an order with the dispositions before it.
func (c *Conn) write(channel uint16, body wire.Performative) {
	if !c.closed {
		c.out = wire.AppendFrame(c.out, channel, body, nil)
	}
}

// flushDue writes what was put together.
func (c *Conn) flushDue() {
	for i := 0; i < len(c.due); i++ {
		c.due[i].flush()
	}
	clear(c.due)
	c.due = c.due[:0]
}

// maxFrame is the largest frame that the peer takes.
func (c *Conn) maxFrame() int {
	if c.peer == nil {
		return minFrameSize
	}
	return int(min(max(c.peer.MaxFrameSize, minFrameSize), 1<<30))
}

// maxBeside bounds what frames with an error have beside it, and a close has not.
const maxBeside = 48

// fitting cuts an error so that its frame fits what the peer takes.
func (c *Conn) fitting(e *wire.Error) *wire.Error {
	if e == nil {
		return nil
	}
	if len(wire.AppendFrame(nil, 0, &wire.Close{Error: e}, nil)) <= c.maxFrame()-maxBeside {
		return e
	}
	cut := *e
	cut.Info = nil
	cut.Description = strings.ToValidUTF8(cut.Description[:min(len(cut.Description), 256)], "")
	return &cut
}
