// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"encoding/binary"
	"errors"
	"time"
)

// What a client of HTTP/2 sends costs a node the same whether it means anything. gRPC bounds the calls at once, the
// size of headers and the rate of pings of a connection; this file bounds how often it may begin calls only to cancel
// them (CVE-2023-44487), and change its settings.

const (
	prefaceBytes     = 24 // what the client's side of HTTP/2 begins with
	frameHeaderBytes = 9
	frameReset       = 3
	frameSettings    = 4

	// Cancelled calls: as many at once as a client has that gives up all that it has under way, and so many a second.
	resetsAtOnce    = 2048
	resetsPerSecond = 100
	// Changes of settings.
	settingsAtOnce    = 100
	settingsPerSecond = 10
	// floodTries is what a connection that was closed for this costs its address of the attempts that it has.
	floodTries = 256
)

// errFlood ends a connection.
var errFlood = errors.New("the client cancels calls, or changes its settings, too often")

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

// frames looks at the headers of the frames that pass. One goroutine reads a connection.
type frames struct {
	skip   int // bytes up to the next header
	header [frameHeaderBytes]byte
	have   int // of header
	resets bucket
	sets   bucket
}

func newFrames() frames { return frames{skip: prefaceBytes} }

// pass looks at what was read; false if there is too much of something.
func (f *frames) pass(b []byte) bool {
	for len(b) > 0 {
		if f.skip > 0 {
			n := min(f.skip, len(b))
			f.skip -= n
			b = b[n:]
			continue
		}
		n := copy(f.header[f.have:], b)
		f.have += n
		b = b[n:]
		if f.have < frameHeaderBytes {
			return true
		}
		f.have = 0
		f.skip = int(binary.BigEndian.Uint32(f.header[:4]) >> 8)
		switch kind := f.header[3]; {
		case kind == frameReset && !f.resets.take(resetsAtOnce, resetsPerSecond),
			kind == frameSettings && !f.sets.take(settingsAtOnce, settingsPerSecond):
			return false
		}
	}
	return true
}
