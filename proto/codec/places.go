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

// maxFrame is the largest HTTP/2 frame received by gRPC: each frame of a larger message is a piece.
const maxFrame = 16 << 10

// places is the mem.BufferPool of a connection that receives a sequence of large, retained messages, such as log
// records. The memory of a message larger than a frame is its place: all frames except the first are received there
// contiguously. Only the first frame is copied: its header contains the length of the message.
//
// Places are reused only for messages that are not retained (wholeOnce). The memory of first frames of maxFrame bytes
// is always reused. Its capacity, firstCap, is larger than its length, which distinguishes it from all other memory.
//
// This relies on how gRPC sends messages on one stream: the frames of a message are consecutive, and begin with the
// gRPC header. In other cases (several concurrent streams, an exhausted window) the message is copied.
type places struct {
	most    int       // maximum message size in bytes
	firsts  sync.Pool // *[]byte of firstCap
	handles sync.Pool // *[]byte without memory, for slices that are not reused

	mu sync.Mutex // guards the fields below
	// first is the last frame, if it may be the first of a message; it is filled before the next Get.
	first *[]byte
	// placed lists the places that were not taken yet, oldest first; placedBytes is their total size. open is set while
	// the newest place may receive further frames.
	placed      []place
	placedBytes int
	open        bool
	// lent is the result of the last wholeOnce, and free contains up to maxFree earlier ones.
	lent []byte
	free [][]byte
}

const firstCap = maxFrame + 1

const maxFree = 16

// place is the memory of a message without its header. Only the range from front to given was returned by Get.
type place struct {
	b            []byte
	front, given int
}

func newPlaces(most int) *places { return &places{most: most} }

// Get returns memory for a frame, with undefined content.
func (p *places) Get(n int) *[]byte {
	if n > maxFrame {
		b := fresh(n) // not a frame
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

// begin creates the place of a message after its first frame was received, if the message is longer. mu is held.
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
	p.placed, p.open = append(p.placed, place{b: p.memory(size), front: front, given: front}), true
	// The sender never has more bytes in flight, so the oldest messages will not be taken.
	for p.placedBytes += size; p.placedBytes > 2*p.most; {
		p.drop(1)
	}
}

// memory returns memory with undefined content for a place. mu is held.
func (p *places) memory(n int) []byte {
	for i, b := range p.free {
		if cap(b) >= n {
			p.free = slices.Delete(p.free, i, i+1)
			return b[:n]
		}
	}
	return fresh(n)
}

// drop removes the n oldest places. mu is held.
func (p *places) drop(n int) {
	for _, d := range p.placed[:n] {
		p.placedBytes -= len(d.b)
	}
	p.placed = slices.Delete(p.placed, 0, n)
	p.open = p.open && len(p.placed) > 0
}

func (p *places) handle(b []byte) *[]byte {
	h, ok := p.handles.Get().(*[]byte)
	if !ok {
		h = new([]byte)
	}
	*h = b
	return h
}

// Put frees memory returned by Get.
func (p *places) Put(b *[]byte) {
	p.mu.Lock()
	if p.first == b {
		p.first = nil // the stream has ended, or it was the whole message
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

// whole returns a message in one piece, which must not be modified and stays valid.
func (p *places) whole(data mem.BufferSlice) []byte {
	if isCounted(data) {
		if b := data[0].ReadOnlyData(); len(b) == cap(b) {
			return b
		}
	}
	if l, ok := p.take(data); ok {
		// The first frame, and perhaps the last one, were not received into the place.
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

// wholeOnce is like whole, but the result is valid only until the next call.
func (p *places) wholeOnce(data mem.BufferSlice) []byte {
	b := p.whole(data)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.lent) > maxFrame {
		if poisoned {
			for i := range p.lent {
				p.lent[i] = 0xdb
			}
		}
		if len(p.free) == maxFree {
			p.free = slices.Delete(p.free, 0, 1)
		}
		p.free = append(p.free, p.lent)
	}
	p.lent = b
	return b
}

// take returns the place of a message, if the place contains all pieces except the first and perhaps the last. The last
// piece may be elsewhere, since gRPC does not request memory for small pieces. take drops older places.
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

func (l *place) has(at int, piece []byte) bool {
	return len(piece) > 0 && len(piece) <= l.given-at && &l.b[at] == &piece[0]
}

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

// fresh returns memory with undefined content. Only the memory of a string is allocated by Go without zeroing.
func fresh(n int) []byte {
	var s strings.Builder
	s.Grow(n)
	_ = s.WriteByte(0) // an empty string has no memory
	// The string is not used.
	return unsafe.Slice(unsafe.StringData(s.String()), n) //nolint:gosec // G103
}
