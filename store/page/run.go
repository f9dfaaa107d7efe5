// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/lockstep-mq/lockstep/store/crc"
)

// No is a page number. The first page is 1; 0 means none.
type No uint64

// Run is an extent: consecutive pages that are written, read and freed together. The zero Run is invalid.
type Run struct {
	// First page.
	First No
	// Pages is the number of pages.
	Pages uint32
	// Born is the number of the checkpoint in which the extent was allocated. It is part of the header. A read with
	// Born set detects an older extent after a lost write. 0 means unknown and skips this check.
	Born uint64
}

// IsZero reports whether r is the zero Run.
func (r Run) IsZero() bool { return r.First == 0 && r.Pages == 0 }

// End returns the page after the extent.
func (r Run) End() No { return r.First + No(r.Pages) }

// Sub returns count pages of r after the first skip pages.
func (r Run) Sub(skip, count uint32) Run {
	return Run{First: r.First + No(skip), Pages: count, Born: r.Born}
}

// String returns first+pages.
func (r Run) String() string { return fmt.Sprintf("%d+%d", r.First, r.Pages) }

// within reports whether the extent is inside a file with the given number of pages.
func (r Run) within(pages uint64) bool {
	return r.First >= 1 && r.Pages >= 1 && r.Pages <= MaxRunPages && uint64(r.First) <= pages &&
		uint64(r.First)-1+uint64(r.Pages) <= pages
}

// Kind is the content type of an extent.
type Kind uint8

// Kinds of extents.
const (
	// KindPacked is an extent with small messages, or with one message in a single page.
	KindPacked Kind = 1
	// KindLarge is an extent with one message in several pages. Readers do not depend on the distinction.
	KindLarge Kind = 2
	// KindNode is a tree node.
	KindNode Kind = 3
	// KindBitmap is a chunk of the file's bitmap of used pages.
	KindBitmap Kind = 4
	// KindBitmapDir is a directory page with the positions of bitmap chunks.
	KindBitmapDir Kind = 5
)

// String returns the name of the kind.
func (k Kind) String() string {
	switch k {
	case KindPacked:
		return "packed"
	case KindLarge:
		return "large"
	case KindNode:
		return "node"
	case KindBitmap:
		return "bitmap"
	case KindBitmapDir:
		return "bitmap directory"
	default:
		return fmt.Sprintf("kind %d", uint8(k))
	}
}

func (k Kind) known() bool { return k >= KindPacked && k <= KindBitmapDir }

// The header of an extent.
//
//	 0  crc u32         CRC32C of bytes 4..32 and of the payload
//	 4  kind u8
//	 5  flags u8        0
//	 6  reserved u16    0
//	 8  payload u32     length in bytes
//	12  pages u32
//	16  page u64        first page of the extent
//	24  checkpoint u64  Run.Born
//	32  payload, then zeros up to the end of the last page

// PagesFor returns the number of pages of an extent with the given payload.
func PagesFor(pageSize, payloadBytes int) uint32 {
	return uint32(divideUp(uint64(payloadBytes)+RunHeaderBytes, uint64(pageSize)))
}

// AppendRun appends the bytes of an extent, whole pages, to dst. It returns ErrMisuse if the payload does not fit, or
// if the extent was not returned by Alloc: neither must reach the disk.
func AppendRun(dst []byte, pageSize int, run Run, kind Kind, payload []byte) ([]byte, error) {
	if run.First == 0 || run.Born == 0 || !kind.known() || PagesFor(pageSize, len(payload)) > run.Pages {
		return dst, fmt.Errorf("%w: %d bytes of kind %v for extent %v of checkpoint %d, with pages of %d bytes", ErrMisuse,
			len(payload), kind,
			run, run.Born, pageSize)
	}
	start, size := len(dst), int(run.Pages)*pageSize
	dst = slices.Grow(dst, size)[:start+size]
	buf := dst[start:]
	clear(buf[RunHeaderBytes+copy(buf[RunHeaderBytes:], payload):])
	sealRun(buf, run, kind, len(payload))
	return dst, nil
}

// sealRun sets the header of an extent whose payload is at buf[RunHeaderBytes:].
func sealRun(buf []byte, run Run, kind Kind, payloadBytes int) {
	runHeader(buf, run, kind, payloadBytes)
	binary.LittleEndian.PutUint32(buf, crc.Of(buf[4:RunHeaderBytes+payloadBytes]))
}

// runHeader sets the header except for the checksum.
func runHeader(buf []byte, run Run, kind Kind, payloadBytes int) {
	h := buf[:RunHeaderBytes]
	clear(h)
	h[4] = byte(kind)
	binary.LittleEndian.PutUint32(h[8:], uint32(payloadBytes))
	binary.LittleEndian.PutUint32(h[12:], run.Pages)
	binary.LittleEndian.PutUint64(h[16:], uint64(run.First))
	binary.LittleEndian.PutUint64(h[24:], run.Born)
}

// OffsetOf returns the file offset of a page, in bytes.
func OffsetOf(n No, pageSize int) int64 { return geometry{pageSize: pageSize}.offset(n) }

// NoAt returns the page that contains the byte at offset, which must be at least DataOffset.
func NoAt(offset int64, pageSize int) No { return No((offset-DataOffset)/int64(pageSize)) + 1 }

// RunHeader is the decoded header of an extent.
type RunHeader struct {
	Run          Run
	Kind         Kind
	PayloadBytes int
}

// PeekRun decodes an extent's header without verifying the checksum, which requires the whole extent.
func PeekRun(b []byte) (RunHeader, error) {
	if len(b) < RunHeaderBytes {
		return RunHeader{}, &CorruptError{Reason: "shorter than an extent header"}
	}
	h := RunHeader{
		Kind:         Kind(b[4]),
		PayloadBytes: int(binary.LittleEndian.Uint32(b[8:])),
		Run: Run{
			First: No(binary.LittleEndian.Uint64(b[16:])),
			Pages: binary.LittleEndian.Uint32(b[12:]),
			Born:  binary.LittleEndian.Uint64(b[24:]),
		},
	}
	if !h.Kind.known() || b[5] != 0 || b[6] != 0 || b[7] != 0 {
		return h, &CorruptError{Page: h.Run.First, Reason: "no extent starts here"}
	}
	return h, nil
}

// DecodeRun verifies the bytes of an extent and returns its kind and payload, which aliases b. The error is a
// CorruptError.
func DecodeRun(b []byte, pageSize int, run Run) (Kind, []byte, error) {
	damaged := func(format string, args ...any) (Kind, []byte, error) {
		return 0, nil, &CorruptError{Page: run.First, Reason: fmt.Sprintf(format, args...)}
	}
	if len(b) < RunHeaderBytes || uint64(len(b)) < uint64(run.Pages)*uint64(pageSize) {
		return damaged("%d bytes are too few for %d pages", len(b), run.Pages)
	}
	h, err := PeekRun(b)
	if err != nil {
		return damaged("no extent starts here")
	}
	if h.PayloadBytes > len(b)-RunHeaderBytes {
		return damaged("payload of %d bytes in an extent of %d pages", h.PayloadBytes, run.Pages)
	}
	if got := crc.Of(b[4 : RunHeaderBytes+h.PayloadBytes]); got != binary.LittleEndian.Uint32(b) {
		return damaged("checksum mismatch")
	}
	switch {
	case h.Run.First != run.First:
		return damaged("it has page number %d: misdirected write", h.Run.First)
	case h.Run.Pages != run.Pages:
		return damaged("extent of %d pages, expected %d: lost write", h.Run.Pages, run.Pages)
	case run.Born != 0 && h.Run.Born != run.Born:
		return damaged("checkpoint %d, expected %d: lost write", h.Run.Born, run.Born)
	case PagesFor(pageSize, h.PayloadBytes) > run.Pages:
		return damaged("payload of %d bytes in an extent of %d pages", h.PayloadBytes, run.Pages)
	}
	return h.Kind, b[RunHeaderBytes : RunHeaderBytes+h.PayloadBytes : RunHeaderBytes+h.PayloadBytes], nil
}
