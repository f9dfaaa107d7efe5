// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"io"
)

const (
	// MinMaxFrameSize is the minimum value of a peer's maximum frame size (2.7.1).
	MinMaxFrameSize = 512
	frameHead       = 8 // size, data offset, type, channel
	// readAhead is the size of a read. After a full read, the buffer grows to manyAhead. That memory, and the memory of a
	// large frame, is released after manySmall frames that did not need it.
	readAhead  = 16 << 10
	manyAhead  = 128 << 10
	manySmall  = 1024
	emptyReads = 100 // consecutive reads without data or an error

	typeAMQP = 0
	typeSASL = 1
)

// Protocols of a protocol header (2.2, 5.3).
const (
	ProtocolAMQP = 0
	ProtocolSASL = 3
)

func framingError(format string, args ...any) *Error {
	return &Error{Condition: ConditionFraming, Description: fmt.Sprintf(format, args...)}
}

// Frame is a received frame.
type Frame struct {
	SASL    bool
	Channel uint16
	Body    Performative // nil for a heartbeat
	Payload []byte       // data after the body: after a Transfer, a part of a message
}

// Reader reads frames from a connection. Protocol errors have the type *Error; all other errors originate from the
// connection.
type Reader struct {
	from      io.Reader
	maxFrame  uint32
	buf       []byte // readAhead or manyAhead bytes
	next, end int    // data read and not released
	taken     int    // bytes from next on that belong to the last frame
	failed    error  // returned when buf is exhausted
	large     []byte // for frames that do not fit in buf
	small     int    // frames since the last frame or read that needed more than readAhead
	reused    reused
}

// NewReader creates a Reader that rejects frames of more than maxFrame bytes. The memory for a large frame grows as its
// bytes arrive.
func NewReader(r io.Reader, maxFrame uint32) *Reader {
	return &Reader{from: r, maxFrame: maxFrame, buf: make([]byte, readAhead)}
}

// Buffered returns the number of bytes read but not yet consumed.
func (r *Reader) Buffered() int { return r.end - r.next - r.taken }

// Whole reports whether the next frame is buffered, so that Next does not read.
func (r *Reader) Whole() bool {
	n := r.Buffered()
	return n >= frameHead && int64(big.Uint32(r.buf[r.next+r.taken:])) <= int64(n)
}

// peek returns the next n bytes, or an error with the bytes available. n is at most readAhead, or the bytes are already
// buffered.
func (r *Reader) peek(n int) ([]byte, error) {
	for empty := 0; r.end-r.next < n; {
		if r.failed != nil {
			err := r.failed
			r.failed = nil
			return r.buf[r.next:r.end], err
		}
		before := r.end - r.next
		r.fill()
		if r.end-r.next > before {
			empty = 0
		} else if empty++; empty == emptyReads && r.failed == nil {
			r.failed = io.ErrNoProgress
		}
	}
	return r.buf[r.next : r.next+n], nil
}

// fill reads once. The buffer has space: the remaining data is part of a frame that fits into it.
func (r *Reader) fill() {
	switch full := r.end == len(r.buf); {
	case full && len(r.buf) < manyAhead: // more data is likely available
		r.move(manyAhead)
		r.small = 0
	case len(r.buf) > readAhead && r.small >= manySmall && r.end-r.next < readAhead:
		r.move(readAhead)
	case r.next > 0:
		r.end = copy(r.buf, r.buf[r.next:r.end])
		r.next = 0
	}
	n, err := r.from.Read(r.buf[r.end:])
	if n > readAhead {
		r.small = 0
	}
	r.end += n
	r.failed = err
}

func (r *Reader) move(size int) {
	b := make([]byte, size)
	r.end = copy(b, r.buf[r.next:r.end])
	r.buf, r.next = b, 0
}

// ProtocolHeader reads the 8-byte header at the start of a connection or a security layer.
func (r *Reader) ProtocolHeader() (id byte, version [3]byte, err error) {
	r.release()
	b, err := r.peek(frameHead)
	if err != nil {
		return 0, version, readError(err)
	}
	if string(b[:4]) != "AMQP" {
		return 0, version, framingError("%q is not an AMQP 1.0 protocol header", b[:4])
	}
	id, version = b[4], [3]byte(b[5:])
	r.taken = frameHead
	return id, version, nil
}

// AppendProtocolHeader appends the header of version 1.0.0 of a protocol.
func AppendProtocolHeader(b []byte, id byte) []byte {
	return append(b, 'A', 'M', 'Q', 'P', id, 1, 0, 0)
}

func (r *Reader) release() {
	r.next += r.taken
	r.taken = 0
}

// Next reads a frame. A Transfer, Flow or Disposition, and the Payload, are valid until the next call. They are decoded
// without allocations unless they contain a map, or a delivery state with fields. At the end of the connection, Next
// returns io.EOF, or io.ErrUnexpectedEOF within a frame.
func (r *Reader) Next(f *Frame) error {
	r.release()
	head, err := r.peek(frameHead)
	if err != nil {
		if len(head) == 0 && errors.Is(err, io.EOF) {
			return io.EOF
		}
		return readError(err)
	}
	size, offset, kind := big.Uint32(head), 4*int(head[4]), head[5]
	f.Channel = big.Uint16(head[6:])
	switch {
	case size < frameHead:
		return framingError("frame of %d bytes is too short", size)
	case size > r.maxFrame:
		return framingError("frame has %d bytes, maximum is %d", size, r.maxFrame)
	case offset < frameHead || offset > int(size):
		return framingError("data offset of a frame of %d bytes is %d", size, offset)
	}
	b, err := r.frame(int(size))
	if err != nil {
		return readError(err)
	}
	f.SASL, f.Body, f.Payload = kind == typeSASL, nil, nil
	switch {
	case kind == typeSASL:
		f.Channel = 0
		f.Body, err = decodeSASL(b[offset:])
	case kind != typeAMQP:
		err = framingError("unknown frame type %d", kind)
	case offset < len(b):
		f.Body, f.Payload, err = decodePerformative(b[offset:], &r.reused)
	}
	return err
}

func (r *Reader) frame(size int) ([]byte, error) {
	if r.small++; size <= readAhead || r.end-r.next >= size {
		if r.small >= manySmall {
			r.large = nil
		}
		b, err := r.peek(size)
		if err == nil {
			r.taken = size
		}
		return b, err
	}
	r.small = 0
	for have := 0; have < size; {
		if have == len(r.large) {
			larger := make([]byte, min(size, max(2*have, 2*readAhead)))
			copy(larger, r.large)
			r.large = larger
		}
		n, err := r.readFull(r.large[have:min(size, len(r.large))])
		if err != nil {
			return nil, err
		}
		have += n
	}
	return r.large[:size], nil
}

func (r *Reader) readFull(b []byte) (int, error) {
	n := copy(b, r.buf[r.next:r.end])
	r.next += n
	if n == len(b) {
		return n, nil
	}
	if err := r.failed; err != nil {
		r.failed = nil
		return n, err
	}
	more, err := io.ReadFull(r.from, b[n:])
	return n + more, err //nolint:wrapcheck // see readError
}

// readError converts an io.EOF within a frame to io.ErrUnexpectedEOF, and wraps other errors.
func readError(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read a frame: %w", err)
}

// AppendFrame appends an AMQP frame. Without a body, the frame is a heartbeat. The caller must respect the peer's
// maximum frame size.
func AppendFrame(b []byte, channel uint16, body Performative, payload []byte) []byte {
	at := len(b)
	b = append(b, 0, 0, 0, 0, 2, typeAMQP, byte(channel>>8), byte(channel))
	if body != nil {
		b = appendPerformative(b, body)
	}
	b = append(b, payload...)
	big.PutUint32(b[at:], uint32(len(b)-at))
	return b
}

// AppendSASLFrame appends a SASL frame.
func AppendSASLFrame(b []byte, body Performative) []byte {
	at := len(b)
	b = appendSASL(append(b, 0, 0, 0, 0, 2, typeSASL, 0, 0), body)
	big.PutUint32(b[at:], uint32(len(b)-at))
	return b
}
