// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

const (
	// MinMaxFrameSize is the least that a peer may set as the largest frame (2.7.1).
	MinMaxFrameSize = 512
	// frameHead is the fixed part of a frame: size, offset of the data, type, channel.
	frameHead = 8
	// readAhead is what a Reader holds; a larger frame gets memory of its own, which is given back after manySmall
	// frames that did not need it.
	readAhead = 16 << 10
	manySmall = 1024

	typeAMQP = 0
	typeSASL = 1
)

// Protocols of a protocol header (2.2, 5.2, 5.3).
const (
	ProtocolAMQP = 0
	ProtocolTLS  = 2
	ProtocolSASL = 3
)

func framingError(format string, args ...any) *Error {
	return &Error{Condition: ConditionFraming, Description: fmt.Sprintf(format, args...)}
}

// Frame is one frame as it was received.
type Frame struct {
	SASL    bool
	Channel uint16
	// Body is nil for an empty frame, which only shows that the peer is there.
	Body Performative
	// Payload is what follows the body: a part of a message, behind a Transfer.
	Payload []byte
}

// Reader takes frames from a connection. Errors about what was read are *Error; others are those of the connection.
type Reader struct {
	in       *bufio.Reader
	maxFrame uint32
	taken    int    // of in, by the last frame
	large    []byte // for frames that do not fit in
	small    int    // frames since one of those
	reused   reused
}

// NewReader makes a Reader that refuses frames of more than maxFrame bytes before it takes memory for them. That of a
// large frame grows as its bytes come.
func NewReader(r io.Reader, maxFrame uint32) *Reader {
	return &Reader{in: bufio.NewReaderSize(r, readAhead), maxFrame: maxFrame}
}

// Buffered is how many bytes were read and not taken, so that Next may return without waiting.
func (r *Reader) Buffered() int { return r.in.Buffered() - r.taken }

// Whole tells whether the next frame was read already, so that Next returns without reading.
func (r *Reader) Whole() bool {
	n := r.Buffered()
	if n < frameHead {
		return false
	}
	b, err := r.in.Peek(r.taken + frameHead)
	return err == nil && int64(big.Uint32(b[r.taken:])) <= int64(n)
}

// ProtocolHeader takes the 8 bytes that begin a connection, or a layer of it.
func (r *Reader) ProtocolHeader() (id byte, version [3]byte, err error) {
	r.release()
	b, err := r.in.Peek(frameHead)
	if err != nil {
		return 0, version, whole(err)
	}
	if string(b[:4]) != "AMQP" {
		return 0, version, framingError("%q does not begin a connection of AMQP 1.0", b[:4])
	}
	id, version = b[4], [3]byte(b[5:])
	r.taken = frameHead
	return id, version, nil
}

// AppendProtocolHeader appends the header of version 1.0.0 of a protocol.
func AppendProtocolHeader(b []byte, id byte) []byte {
	return append(b, 'A', 'M', 'Q', 'P', id, 1, 0, 0)
}

// release gives the bytes of the last frame up.
func (r *Reader) release() {
	_, _ = r.in.Discard(r.taken) // they are in the buffer
	r.taken = 0
}

// Next takes a frame. A Transfer, Flow or Disposition, and the Payload, are valid until the next call, and those of
// them that carry no map and no state of a transaction cost no allocation.
func (r *Reader) Next(f *Frame) error {
	r.release()
	head, err := r.in.Peek(frameHead)
	if err != nil {
		if len(head) == 0 && errors.Is(err, io.EOF) {
			return io.EOF
		}
		return whole(err)
	}
	size, offset, kind := big.Uint32(head), 4*int(head[4]), head[5]
	f.Channel = big.Uint16(head[6:])
	switch {
	case size < frameHead:
		return framingError("a frame of %d bytes is too short", size)
	case size > r.maxFrame:
		return framingError("a frame of %d bytes; %d are allowed", size, r.maxFrame)
	case offset < frameHead || offset > int(size):
		return framingError("the data of a frame of %d bytes begins at %d", size, offset)
	}
	b, err := r.frame(int(size))
	if err != nil {
		return whole(err)
	}
	f.SASL, f.Body, f.Payload = kind == typeSASL, nil, nil
	switch {
	case kind == typeSASL:
		f.Channel = 0
		f.Body, err = decodeSASL(b[offset:])
	case kind != typeAMQP:
		err = framingError("frames of type %d are not known", kind)
	case offset < len(b):
		f.Body, f.Payload, err = decodePerformative(b[offset:], &r.reused)
	}
	return err
}

// frame returns the bytes of a whole frame.
func (r *Reader) frame(size int) ([]byte, error) {
	if size <= readAhead {
		if r.small++; r.small >= manySmall {
			r.large = nil
		}
		b, err := r.in.Peek(size)
		if err == nil {
			r.taken = size
		}
		return b, err //nolint:wrapcheck // see whole
	}
	r.small = 0
	for have := 0; have < size; {
		if have == len(r.large) {
			larger := make([]byte, min(size, max(2*have, 2*readAhead)))
			copy(larger, r.large)
			r.large = larger
		}
		n, err := io.ReadFull(r.in, r.large[have:min(size, len(r.large))])
		if err != nil {
			return nil, err //nolint:wrapcheck // see whole
		}
		have += n
	}
	return r.large[:size], nil
}

// whole turns an end in the middle of a frame into an error of its own.
func whole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read a frame: %w", err)
}

// AppendFrame appends a frame of AMQP; one without a body only shows that this end is there. The caller keeps it below
// the largest frame of the peer.
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

// AppendSASLFrame appends a frame of SASL.
func AppendSASLFrame(b []byte, body Performative) []byte {
	at := len(b)
	b = appendSASL(append(b, 0, 0, 0, 0, 2, typeSASL, 0, 0), body)
	big.PutUint32(b[at:], uint32(len(b)-at))
	return b
}
