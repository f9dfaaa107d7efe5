// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"google.golang.org/grpc/mem"
)

// maxFrame is the largest HTTP/2 frame that gRPC receives: of a larger message each frame is a piece.
const maxFrame = 16 << 10

// places is the mem.BufferPool of a connection on which one large message after the other comes that is kept, such as
// log records. Each message that is larger than a frame gets memory of its own, its place, and all frames of it but the
// first are received there, side by side, so that only the first is copied: when that has come, it tells how long the
// message is. A message in one frame is received into memory of its own altogether.
//
// Nothing of that is ever used again: it is the garbage collector's, as what a message was copied to would be. Only
// the memory of first frames of maxFrame bytes is, and its capacity, firstCap, is larger than its length, by which it
// is told from all else.
//
// That frames of one message come one after the other, and begin with gRPC's header of it, is how gRPC sends messages
// on one stream. Where it is not so (several streams at a time, a window that is used up), pieces are not where they
// belong; then the message is copied.
type places struct {
	most    int       // no message is larger, in bytes
	firsts  sync.Pool // *[]byte of firstCap
	handles sync.Pool // *[]byte of nothing, for what is not used again

	mu sync.Mutex // guards all below
	// first is the last frame, if it may be the first of a message; it is not filled before the next one is asked for.
	first *[]byte
	// placed are the messages that have a place and were not taken, oldest first, of so many bytes; open: frames of the
	// newest may be to come.
	placed      []place
	placedBytes int
	open        bool
}

// firstCap is the capacity of memory that is used again.
const firstCap = maxFrame + 1

// place is where a message belongs, without its header. Only what lies between front and given was handed out.
type place struct {
	b            []byte
	front, given int
}

// newPlaces returns a pool for messages of at most so many bytes.
func newPlaces(most int) *places { return &places{most: most} }

// Get returns memory for a frame, with any content.
func (p *places) Get(n int) *[]byte {
	if n > maxFrame {
		b := fresh(n) // no frame
		return &b
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begin()
	if p.open {
		last := &p.placed[len(p.placed)-1]
		if to := last.given + n; to <= len(last.b) {
			b := p.handle(last.b[last.given:to:to])
			last.given = to
			return b
		}
		p.open = false
	}
	if n < maxFrame {
		p.first = p.handle(fresh(n))
	} else if b, ok := p.firsts.Get().(*[]byte); ok {
		p.first = b
	} else {
		b := make([]byte, n, firstCap)
		p.first = &b
	}
	return p.first
}

// begin makes the place of the message whose first frame has come, if there is more of it. mu is held.
func (p *places) begin() {
	if p.first == nil {
		return
	}
	b := *p.first
	p.first = nil
	if len(b) < prefixBytes || b[0] != 0 { // compressed
		return
	}
	size, front := int(binary.BigEndian.Uint32(b[1:])), len(b)-prefixBytes
	if size <= front || size > p.most {
		return
	}
	p.placed, p.open = append(p.placed, place{b: fresh(size), front: front, given: front}), true
	// More than this was not sent ahead: these were never taken.
	for p.placedBytes += size; p.placedBytes > 2*p.most; {
		p.drop(1)
	}
}

// drop forgets the oldest places. mu is held.
func (p *places) drop(n int) {
	for _, d := range p.placed[:n] {
		p.placedBytes -= len(d.b)
	}
	p.placed = slices.Delete(p.placed, 0, n)
	p.open = p.open && len(p.placed) > 0
}

// handle returns what a slice is handed out in.
func (p *places) handle(b []byte) *[]byte {
	h, ok := p.handles.Get().(*[]byte)
	if !ok {
		h = new([]byte)
	}
	*h = b
	return h
}

// Put takes back what Get returned.
func (p *places) Put(b *[]byte) {
	p.mu.Lock()
	if p.first == b {
		p.first = nil // its stream has ended, or it was the whole message
	}
	p.mu.Unlock()
	if cap(*b) != firstCap {
		*b = nil
		p.handles.Put(b)
		return
	}
	*b = (*b)[:maxFrame]
	if poisoned {
		for i := range *b {
			(*b)[i] = 0xdb
		}
	}
	p.firsts.Put(b)
}

// whole returns a message in one piece, which must not be changed and stays good.
func (p *places) whole(data mem.BufferSlice) []byte {
	if isCounted(data) {
		if b := data[0].ReadOnlyData(); len(b) == cap(b) {
			return b
		}
	}
	if l, ok := p.take(data); ok {
		// What is not there was not handed out, and will not be.
		tallyCopy(l.front)
		copy(l.b[:l.front], data[0].ReadOnlyData())
		if l.given < len(l.b) {
			last := data[len(data)-1].ReadOnlyData()
			tallyCopy(len(last))
			copy(l.b[l.given:], last)
		}
		return l.b
	}
	return join(data)
}

// take returns the place of a message, if all of it is there but its first piece and perhaps the last: gRPC does not
// ask for memory for little. It forgets older ones, which come before it.
func (p *places) take(data mem.BufferSlice) (place, bool) {
	if len(data) < 2 {
		return place{}, false
	}
	second := data[1].ReadOnlyData()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, l := range p.placed {
		if !l.has(l.front, second) {
			continue
		}
		p.drop(i + 1)
		fits := l.fits(data)
		return l, fits
	}
	return place{}, false
}

// has tells whether a piece lies at an offset.
func (l *place) has(at int, piece []byte) bool {
	return len(piece) > 0 && len(piece) <= l.given-at && &l.b[at] == &piece[0]
}

// fits tells whether a message is in its place.
func (l *place) fits(data mem.BufferSlice) bool {
	if data[0].Len() != l.front {
		return false
	}
	at := l.front
	for _, piece := range data[1 : len(data)-1] {
		if !l.has(at, piece.ReadOnlyData()) {
			return false
		}
		at += piece.Len()
	}
	last := data[len(data)-1].ReadOnlyData()
	return at+len(last) == len(l.b) && (l.has(at, last) || at == l.given)
}

// fresh returns memory with any content. A string's is the only one that Go hands out without setting it to zero
// before.
func fresh(n int) []byte {
	var s strings.Builder
	s.Grow(n)
	_ = s.WriteByte(0) // an empty string has no memory
	// The string is not used.
	return unsafe.Slice(unsafe.StringData(s.String()), n) //nolint:gosec // G103
}
