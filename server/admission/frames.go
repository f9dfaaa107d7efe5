// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"encoding/binary"
	"errors"
	"time"
)

// What a client of HTTP/2 sends costs a node the same whether it means anything. gRPC bounds the calls at once, the
// size of headers and the rate of pings of a connection; this file bounds how often it may begin calls only to cancel
// them (CVE-2023-44487), change its settings, and send frames that say nothing.

const (
	prefaceBytes     = 24 // what the client's side of HTTP/2 begins with
	frameHeaderBytes = 9
	// Types of frames. What is beyond frameContinuation is of some extension, and not used.
	frameData         = 0
	frameCall         = 1 // HEADERS
	framePriority     = 2
	frameReset        = 3
	frameSettings     = 4
	frameGoAway       = 7
	frameContinuation = 9
	// What gRPC says to a client that pings too often, and where in the frame.
	enhanceYourCalm = 11
	goAwayCode      = 4
	goAwayBytes     = 8
	flagEndStream   = 1
	flagEndHeaders  = 4

	// Cancelled calls: as many at once as a client has that gives up all that it has under way, and so many a second.
	// Frames that carry nothing and end nothing count as such.
	resetsAtOnce    = 2048
	resetsPerSecond = 100
	// resetsFree are taken as they come; for each further one the connection is read later, so that beginning calls and
	// cancelling them takes a bounded share of the processors. longestPause is how long it waits at most in one go.
	resetsFree   = 256
	resetPause   = time.Millisecond
	longestPause = time.Second
	// Changes of settings, priorities, and frames of extensions.
	settingsAtOnce    = 100
	settingsPerSecond = 10
	// floodShare is the part of its attempts that a connection costs its address that was closed for this.
	floodShare = 8
)

// errFlood ends a connection.
var errFlood = errors.New("the client cancels calls, changes its settings, or sends frames that say nothing, too often")

// bucket allows so many at once, and so many a second.
type bucket struct {
	left float64
	at   time.Time
}

func (b *bucket) take(atOnce, perSecond float64) bool {
	now := time.Now()
	if b.at.IsZero() {
		b.left = atOnce
	} else {
		b.left = min(atOnce, b.left+now.Sub(b.at).Seconds()*perSecond)
	}
	b.at = now
	b.left--
	return b.left >= 0
}

// frameHeaders finds the headers of frames in what goes over a connection in pieces of any size.
type frameHeaders struct {
	skip   int // bytes up to the next header
	header [frameHeaderBytes]byte
	have   int // of header
}

// next goes to the next header and returns what comes after it; false if it does not end in b.
func (h *frameHeaders) next(b []byte) (rest []byte, found bool) {
	if h.skip > 0 {
		n := min(h.skip, len(b))
		h.skip -= n
		b = b[n:]
	}
	n := copy(h.header[h.have:], b)
	h.have += n
	if h.have < frameHeaderBytes {
		return nil, false
	}
	h.have = 0
	h.skip = int(binary.BigEndian.Uint32(h.header[:4]) >> 8)
	return b[n:], true
}

func (h *frameHeaders) kind() byte   { return h.header[3] }
func (h *frameHeaders) flags() byte  { return h.header[4] }
func (h *frameHeaders) call() uint32 { return binary.BigEndian.Uint32(h.header[5:]) &^ (1 << 31) }

// passOut looks at what the node sends.
func (h *frameHeaders) passOut(c *Conn, b []byte) {
	for {
		var found bool
		if b, found = h.next(b); !found {
			return
		}
		switch kind := h.kind(); {
		case kind == frameReset, kind == frameCall && h.flags()&flagEndStream != 0:
			c.callOver(h.call())
		case kind == frameGoAway && len(b) >= goAwayBytes &&
			binary.BigEndian.Uint32(b[goAwayCode:]) == enhanceYourCalm:
			c.flooded()
			return
		}
	}
}

// frames looks at the headers of the frames that a client sends. One goroutine reads a connection.
type frames struct {
	frameHeaders

	resets bucket
	sets   bucket
}

func newWire(c *Conn) *wire {
	return &wire{conn: c, in: frames{frameHeaders: frameHeaders{skip: prefaceBytes}}}
}

// pass looks at what the client sends, and tells how long the next should wait; false if it floods.
func (f *frames) pass(c *Conn, b []byte) (pause time.Duration, ok bool) {
	for {
		var found bool
		if b, found = f.next(b); !found {
			return pause, true
		}
		kind, flags := f.kind(), f.flags()
		if c.l.ahead.limit > 0 {
			switch {
			case kind == frameData && f.skip > 0:
				c.arrived(f.call(), f.skip)
			case kind == frameReset:
				c.callOver(f.call())
			case kind == frameCall:
				c.ahead.current = f.call()
			}
		}
		switch {
		case kind == frameReset, f.skip == 0 && kind == frameData && flags&flagEndStream == 0,
			f.skip == 0 && kind == frameContinuation && flags&flagEndHeaders == 0:
			if !f.resets.take(resetsAtOnce, resetsPerSecond) {
				return pause, false
			}
			if f.resets.left < resetsAtOnce-resetsFree {
				pause += resetPause
			}
		case kind == frameSettings, kind == framePriority, kind > frameContinuation:
			if !f.sets.take(settingsAtOnce, settingsPerSecond) {
				return pause, false
			}
		}
	}
}
