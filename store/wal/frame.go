// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"encoding/binary"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/crc"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// A frame is a record in the log and on the wire, little endian, at a multiple of 8:
//
//	 0        4        8        12    13     14        16       24        32
//	+--------+--------+--------+-----+------+---------+--------+---------+---------+-----------+
//	| length | crc    | prev   |kind |flags | 0       | LSN    | term    | payload | 0…        |
//	| u32    | u32    | crc u32|u8   |u8    | u16     | u64    | u64     | length  | to 8      |
//	+--------+--------+--------+-----+------+---------+--------+---------+---------+-----------+
//
// length is the length of the payload. crc is the CRC32C of length, of bytes 8 to 31 and of the payload. These include
// prev, so crc also covers all earlier frames.
const (
	// FrameHeaderBytes is the size of a frame without payload and padding.
	FrameHeaderBytes = 32
	// MaxPayloadBytes is the maximum payload of a frame, regardless of the options.
	MaxPayloadBytes = 1 << 30

	frameAlign = 8

	frameLength  = 0
	frameCRC     = 4
	framePrevCRC = 8
	frameKind    = 12
	frameLSN     = 16
	frameTerm    = 24
)

// Kind is the type of a frame's payload. Frames of unknown kinds are stored and forwarded like any other.
type Kind uint8

// KindTermStart is the kind of the record with which an active begins its term. KindTxn is the kind of a transaction
// encoded by package txn.
const (
	KindTermStart Kind = 1
	KindTxn       Kind = 2
)

func (k Kind) String() string {
	switch k {
	case KindTermStart:
		return "term-start"
	case KindTxn:
		return "txn"
	default:
		return fmt.Sprintf("kind-%d", uint8(k))
	}
}

// Frame is a decoded record.
type Frame struct {
	Pos  lsn.Position
	Kind Kind
	// Payload aliases the decoded bytes.
	Payload []byte
}

// FrameBytes returns the size of a frame for a payload of the given length, including padding.
func FrameBytes(payloadBytes int) int {
	return (FrameHeaderBytes + payloadBytes + frameAlign - 1) &^ (frameAlign - 1)
}

// AppendFrame appends to dst a frame with the record that follows prev. It returns the extended dst and the position of
// the record. The frames in dst must begin at a multiple of 8.
func AppendFrame(dst []byte, prev lsn.Position, term uint64, kind Kind, payload []byte) ([]byte, lsn.Position) {
	start := len(dst)
	return EndFrame(append(BeginFrame(dst), payload...), start, prev, term, kind)
}

// FirstFrameBytes returns the size of the first frame in b, which may be incomplete. It returns 0 if the frame header
// is incomplete or invalid.
func FirstFrameBytes(b []byte) int {
	_, size, err := frameHeader(b)
	if err != nil {
		return 0
	}
	return size
}

// BeginFrame appends space for a frame's header to dst. The caller appends the payload, encoded in place, and calls
// EndFrame with the former length of dst.
func BeginFrame(dst []byte) []byte {
	var header [FrameHeaderBytes]byte
	return append(dst, header[:]...)
}

// EndFrame completes the frame that begins at buf[start]: it fills in the header and adds padding. It returns the
// buffer and the position of the frame, which follows prev.
func EndFrame(buf []byte, start int, prev lsn.Position, term uint64, kind Kind) ([]byte, lsn.Position) {
	buf, pos := endHeader(buf, start, prev, term, kind)
	b := buf[start:]
	pos.Chain = frameChecksum(b, int(binary.LittleEndian.Uint32(b[frameLength:])))
	binary.LittleEndian.PutUint32(b[frameCRC:], pos.Chain)
	return buf, pos
}

// EndFrameWith is EndFrame for a payload with a known CRC32C, computed before the payload was copied.
func EndFrameWith(
	buf []byte, start int, prev lsn.Position, term uint64, kind Kind, payloadChecksum uint32,
) ([]byte, lsn.Position) {
	buf, pos := endHeader(buf, start, prev, term, kind)
	b := buf[start:]
	pos.Chain = crc.Join(headChecksum(b), payloadChecksum, int(binary.LittleEndian.Uint32(b[frameLength:])))
	binary.LittleEndian.PutUint32(b[frameCRC:], pos.Chain)
	return buf, pos
}

func endHeader(buf []byte, start int, prev lsn.Position, term uint64, kind Kind) ([]byte, lsn.Position) {
	length := len(buf) - start - FrameHeaderBytes
	var padding [frameAlign]byte
	buf = append(buf, padding[:FrameBytes(length)-FrameHeaderBytes-length]...)
	b := buf[start:]
	pos := lsn.Position{Term: term, LSN: prev.LSN + 1}
	binary.LittleEndian.PutUint32(b[frameLength:], uint32(length))
	binary.LittleEndian.PutUint32(b[framePrevCRC:], prev.Chain)
	binary.LittleEndian.PutUint32(b[frameKind:], uint32(kind)) // flags and the reserved bytes are 0
	binary.LittleEndian.PutUint64(b[frameLSN:], pos.LSN)
	binary.LittleEndian.PutUint64(b[frameTerm:], term)
	return buf, pos
}

// DecodeFrame decodes and verifies the first frame in b. The frame must follow prev: its LSN is the next one, its
// term is the same or higher, and it contains the checksum of prev. rest is b after the frame. The error matches
// ErrShortFrame, ErrBadFrame or ErrChain.
func DecodeFrame(b []byte, prev lsn.Position) (f Frame, rest []byte, err error) {
	h, size, err := completeFrame(b)
	if err != nil {
		return Frame{}, nil, err
	}
	if got := frameChecksum(b, h.length); got != h.pos.Chain {
		return Frame{}, nil, fmt.Errorf("%w: checksum is %08x, expected %08x", ErrBadFrame, got, h.pos.Chain)
	}
	for _, pad := range b[FrameHeaderBytes+h.length : size] {
		if pad != 0 {
			return Frame{}, nil, fmt.Errorf("%w: padding is not zero", ErrBadFrame)
		}
	}
	return h.follow(b, size, prev)
}

// NextFrame is DecodeFrame without verification of checksum and padding, for frames that this process has created or
// already verified.
func NextFrame(b []byte, prev lsn.Position) (f Frame, rest []byte, err error) {
	h, size, err := completeFrame(b)
	if err != nil {
		return Frame{}, nil, err
	}
	return h.follow(b, size, prev)
}

func completeFrame(b []byte) (h frameHead, size int, err error) {
	h, size, err = frameHeader(b)
	if err == nil && len(b) < size {
		err = fmt.Errorf("%w: %d bytes, %d available", ErrShortFrame, size, len(b))
	}
	return h, size, err
}

func (h frameHead) follow(b []byte, size int, prev lsn.Position) (f Frame, rest []byte, err error) {
	if h.pos.LSN != prev.LSN+1 || h.prevCRC != prev.Chain || h.pos.Term < prev.Term {
		return Frame{}, nil, fmt.Errorf("%w: %s after checksum %08x does not follow %s", ErrChain, h.pos, h.prevCRC,
			prev)
	}
	end := FrameHeaderBytes + h.length
	return Frame{Pos: h.pos, Kind: h.kind, Payload: b[FrameHeaderBytes:end:end]},
		b[size:], nil
}

type frameHead struct {
	pos     lsn.Position
	prevCRC uint32
	kind    Kind
	length  int
}

// frameHeader decodes the header of the first frame in b. It verifies only the length.
func frameHeader(b []byte) (frameHead, int, error) {
	if len(b) < FrameHeaderBytes {
		return frameHead{}, 0, fmt.Errorf("%w: %d bytes are shorter than a header", ErrShortFrame, len(b))
	}
	length := binary.LittleEndian.Uint32(b[frameLength:])
	if length > MaxPayloadBytes {
		return frameHead{}, 0, fmt.Errorf("%w: length of %d bytes exceeds the limit", ErrBadFrame, length)
	}
	h := frameHead{
		pos: lsn.Position{
			Term:  binary.LittleEndian.Uint64(b[frameTerm:]),
			LSN:   binary.LittleEndian.Uint64(b[frameLSN:]),
			Chain: binary.LittleEndian.Uint32(b[frameCRC:]),
		},
		prevCRC: binary.LittleEndian.Uint32(b[framePrevCRC:]),
		kind:    Kind(b[frameKind]),
		length:  int(length),
	}
	return h, FrameBytes(h.length), nil
}

// frameChecksum returns the checksum of a frame, which excludes the checksum field and the padding.
func frameChecksum(b []byte, length int) uint32 {
	return checksum(headChecksum(b), b[FrameHeaderBytes:FrameHeaderBytes+length])
}

func headChecksum(b []byte) uint32 {
	return checksum(checksum(0, b[:frameCRC]), b[framePrevCRC:FrameHeaderBytes])
}

// PayloadChecksum returns the CRC32C of the payload of the first frame in b, which must be complete and valid.
func PayloadChecksum(b []byte) uint32 {
	whole, length := binary.LittleEndian.Uint32(b[frameCRC:]), binary.LittleEndian.Uint32(b[frameLength:])
	return crc.Suffix(whole, headChecksum(b), int(length))
}

func checksum(sum uint32, b []byte) uint32 { return crc.Update(sum, b) }
