// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"encoding/binary"
	"errors"
	"time"
)

// This file limits canceled calls (CVE-2023-44487), empty frames, and SETTINGS, PRIORITY and extension frames.

const (
	prefaceBytes     = 24 // size of the preface that a client sends on each connection
	frameHeaderBytes = 9
	// Types of frames. Types above frameContinuation are extensions that are not used.
	frameData         = 0
	frameCall         = 1 // a HEADERS frame, which starts a call
	framePriority     = 2
	frameReset        = 3
	frameSettings     = 4
	frameGoAway       = 7
	frameContinuation = 9
	// enhanceYourCalm is the error code that gRPC sends to a client that pings too often. goAwayCode is the offset of
	// the code in the frame.
	enhanceYourCalm = 11
	goAwayCode      = 4
	goAwayBytes     = 8
	flagEndStream   = 1
	flagEndHeaders  = 4

	// Limit of canceled calls. The burst permits a client to cancel many calls together. Empty frames that do not end a
	// stream also count.
	maxResets       = 2048
	resetsPerSecond = 100
	// The first resetsFree canceled calls are not delayed. Each further call delays the next read of the connection.
	// longestPause is the maximum delay of one read.
	resetsFree   = 256
	resetPause   = time.Millisecond
	longestPause = time.Second
	// Limit of SETTINGS, PRIORITY and extension frames.
	maxSettings       = 100
	settingsPerSecond = 10
	// floodFraction determines the charge for flooding: 1/floodFraction of the maximum number of attempts of the
	// address.
	floodFraction = 8
)

var errFlood = errors.New("too many canceled calls, SETTINGS frames or empty frames")

// bucket is a token bucket.
type bucket struct {
	left float64
	at   time.Time
}

func (b *bucket) take(immediate, perSecond float64) bool {
	now := time.Now()
	if b.at.IsZero() {
		b.left = immediate
	} else {
		b.left = min(immediate, b.left+now.Sub(b.at).Seconds()*perSecond)
	}
	b.at = now
	b.left--
	return b.left >= 0
}

// frameHeaders finds frame headers in a byte stream that arrives in arbitrary pieces.
type frameHeaders struct {
	skip   int // number of bytes until the next header
	header [frameHeaderBytes]byte
	have   int // number of bytes in header
}

// next completes the next header with bytes of b, and returns the bytes that follow it. found is false if b does not
// complete the header.
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

func (h *frameHeaders) passOut(c *Conn, b []byte) {
	for {
		var found bool
		if b, found = h.next(b); !found {
			return
		}
		switch kind := h.kind(); {
		case kind == frameReset, kind == frameCall && h.flags()&flagEndStream != 0:
			c.callEnded(h.call())
		case kind == frameGoAway && len(b) >= goAwayBytes &&
			binary.BigEndian.Uint32(b[goAwayCode:]) == enhanceYourCalm:
			c.closeAndCharge(Flood, floodFraction)
			return
		}
	}
}

// frames parses the frames that a client sends. Only the goroutine that reads the connection uses it.
type frames struct {
	frameHeaders

	resets bucket
	sets   bucket
}

func newWire(c *Conn) *wire {
	return &wire{conn: c, in: frames{frameHeaders: frameHeaders{skip: prefaceBytes}}}
}

// pass counts the frames in b and returns the required delay before the next read. ok is false if the client exceeds
// a limit.
func (f *frames) pass(c *Conn, b []byte) (pause time.Duration, ok bool) {
	for {
		var found bool
		if b, found = f.next(b); !found {
			return pause, true
		}
		kind, flags := f.kind(), f.flags()
		if c.l.unprocessed.limit > 0 {
			switch {
			case kind == frameData && f.skip > 0:
				c.arrived(f.call(), f.skip)
			case kind == frameReset:
				c.callEnded(f.call())
			case kind == frameCall:
				c.unprocessed.current = f.call()
			}
		}
		switch {
		case kind == frameReset, f.skip == 0 && kind == frameData && flags&flagEndStream == 0,
			f.skip == 0 && kind == frameContinuation && flags&flagEndHeaders == 0:
			if !f.resets.take(maxResets, resetsPerSecond) {
				return pause, false
			}
			if f.resets.left < maxResets-resetsFree {
				pause += resetPause
			}
		case kind == frameSettings, kind == framePriority, kind > frameContinuation:
			if !f.sets.take(maxSettings, settingsPerSecond) {
				return pause, false
			}
		}
	}
}
