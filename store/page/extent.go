// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/lockstep-mq/lockstep/store/crc"
)

// No is a page number. The first page is 1.
type No uint64

// Extent is a range of pages that are written, read and freed together. The zero Extent is invalid.
type Extent struct {
	First No
	Pages uint32
	// Born is the number of the checkpoint in which the extent was allocated. A read that expects a Born detects an older
	// extent after a lost write; 0 skips this check.
	Born uint64
}

// IsZero reports whether e is the zero Extent.
func (e Extent) IsZero() bool { return e.First == 0 && e.Pages == 0 }

// End returns the number of the first page after the extent.
func (e Extent) End() No { return e.First + No(e.Pages) }

func (e Extent) String() string { return fmt.Sprintf("%d+%d", e.First, e.Pages) }

func (e Extent) within(pages uint64) bool {
	return e.First >= 1 && e.Pages >= 1 && e.Pages <= MaxExtentPages && uint64(e.First) <= pages &&
		uint64(e.First)-1+uint64(e.Pages) <= pages
}

// Kind is the type of an extent's content.
type Kind uint8

// Kinds of extents.
const (
	// KindPacked contains several messages, or one message in a single page. KindLarge contains one message in several
	// pages.
	KindPacked Kind = 1
	KindLarge  Kind = 2
	KindNode   Kind = 3
	// KindBitmap is a chunk of the bitmap of used pages, KindBitmapDir a page with the positions of such chunks.
	KindBitmap    Kind = 4
	KindBitmapDir Kind = 5
)

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
//	24  checkpoint u64  Extent.Born
//	32  payload, then zeros up to the end of the last page

// PagesFor returns the number of pages that an extent needs for a payload.
func PagesFor(pageSize, payloadBytes int) uint32 {
	return uint32(divideUp(uint64(payloadBytes)+ExtentHeaderBytes, uint64(pageSize)))
}

// AppendExtent appends an extent's pages to dst. It returns ErrMisuse if the payload does not fit, or if ext or kind
// is invalid.
func AppendExtent(dst []byte, pageSize int, ext Extent, kind Kind, payload []byte) ([]byte, error) {
	if ext.First == 0 || ext.Born == 0 || !kind.known() || PagesFor(pageSize, len(payload)) > ext.Pages {
		return dst, fmt.Errorf("%w: %d bytes of kind %v for extent %v of checkpoint %d, with pages of %d bytes", ErrMisuse,
			len(payload), kind,
			ext, ext.Born, pageSize)
	}
	start, size := len(dst), int(ext.Pages)*pageSize
	dst = slices.Grow(dst, size)[:start+size]
	buf := dst[start:]
	clear(buf[ExtentHeaderBytes+copy(buf[ExtentHeaderBytes:], payload):])
	SealExtent(buf, ext, kind, len(payload))
	return dst, nil
}

// SealExtent writes the header of an extent into buf, which must be whole pages with the payload at
// buf[ExtentHeaderBytes:] and zeros after it. Unlike AppendExtent, it does not copy the payload.
func SealExtent(buf []byte, ext Extent, kind Kind, payloadBytes int) {
	extentHeader(buf, ext, kind, payloadBytes)
	binary.LittleEndian.PutUint32(buf, crc.Of(buf[4:ExtentHeaderBytes+payloadBytes]))
}

// SealExtentWith is SealExtent with a known checksum: last is the CRC32C of the last lastBytes bytes of the payload.
func SealExtentWith(buf []byte, ext Extent, kind Kind, payloadBytes, lastBytes int, last uint32) {
	extentHeader(buf, ext, kind, payloadBytes)
	first := crc.Of(buf[4 : ExtentHeaderBytes+payloadBytes-lastBytes])
	binary.LittleEndian.PutUint32(buf, crc.Join(first, last, lastBytes))
}

// extentHeader writes the header without the checksum.
func extentHeader(buf []byte, ext Extent, kind Kind, payloadBytes int) {
	h := buf[:ExtentHeaderBytes]
	clear(h)
	h[4] = byte(kind)
	binary.LittleEndian.PutUint32(h[8:], uint32(payloadBytes))
	binary.LittleEndian.PutUint32(h[12:], ext.Pages)
	binary.LittleEndian.PutUint64(h[16:], uint64(ext.First))
	binary.LittleEndian.PutUint64(h[24:], ext.Born)
}

// OffsetOf returns the file offset of a page.
func OffsetOf(n No, pageSize int) int64 { return geometry{pageSize: pageSize}.offset(n) }

// NoAt returns the page at a file offset, which must be at least DataOffset.
func NoAt(offset int64, pageSize int) No { return No((offset-DataOffset)/int64(pageSize)) + 1 }

// ExtentHeader is the decoded header of an extent.
type ExtentHeader struct {
	Extent       Extent
	Kind         Kind
	PayloadBytes int
}

// PeekExtent decodes an extent's header without verifying the checksum.
func PeekExtent(b []byte) (ExtentHeader, error) {
	if len(b) < ExtentHeaderBytes {
		return ExtentHeader{}, &CorruptError{Reason: "shorter than an extent header"}
	}
	h := ExtentHeader{
		Kind:         Kind(b[4]),
		PayloadBytes: int(binary.LittleEndian.Uint32(b[8:])),
		Extent: Extent{
			First: No(binary.LittleEndian.Uint64(b[16:])),
			Pages: binary.LittleEndian.Uint32(b[12:]),
			Born:  binary.LittleEndian.Uint64(b[24:]),
		},
	}
	if !h.Kind.known() || b[5] != 0 || b[6] != 0 || b[7] != 0 {
		return h, &CorruptError{Page: h.Extent.First, Reason: "no extent starts here"}
	}
	return h, nil
}

// DecodeExtent verifies an extent and returns its kind and payload, which aliases b. The error is a CorruptError.
func DecodeExtent(b []byte, pageSize int, ext Extent) (Kind, []byte, error) {
	damaged := func(format string, args ...any) (Kind, []byte, error) {
		return 0, nil, &CorruptError{Page: ext.First, Reason: fmt.Sprintf(format, args...)}
	}
	if len(b) < ExtentHeaderBytes || uint64(len(b)) < uint64(ext.Pages)*uint64(pageSize) {
		return damaged("%d bytes are too few for %d pages", len(b), ext.Pages)
	}
	h, err := PeekExtent(b)
	if err != nil {
		return damaged("no extent starts here")
	}
	if h.PayloadBytes > len(b)-ExtentHeaderBytes {
		return damaged("payload of %d bytes in an extent of %d pages", h.PayloadBytes, ext.Pages)
	}
	if got := crc.Of(b[4 : ExtentHeaderBytes+h.PayloadBytes]); got != binary.LittleEndian.Uint32(b) {
		return damaged("checksum mismatch")
	}
	switch {
	case h.Extent.First != ext.First:
		return damaged("header has page number %d: misdirected write", h.Extent.First)
	case h.Extent.Pages != ext.Pages:
		return damaged("extent of %d pages, expected %d: lost write", h.Extent.Pages, ext.Pages)
	case ext.Born != 0 && h.Extent.Born != ext.Born:
		return damaged("checkpoint %d, expected %d: lost write", h.Extent.Born, ext.Born)
	case PagesFor(pageSize, h.PayloadBytes) > ext.Pages:
		return damaged("payload of %d bytes in an extent of %d pages", h.PayloadBytes, ext.Pages)
	}
	return h.Kind, b[ExtentHeaderBytes : ExtentHeaderBytes+h.PayloadBytes : ExtentHeaderBytes+h.PayloadBytes], nil
}
