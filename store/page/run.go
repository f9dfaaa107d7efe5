// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/lockstep-mq/lockstep/store/crc"
)

// No is the number of a page. The first page is 1; 0 means none.
type No uint64

// Run names neighbouring pages that are written, read and freed together. The zero Run is no run.
type Run struct {
	// First page.
	First No
	// Pages is how many there are.
	Pages uint32
	// Born is the checkpoint that was being built when the run was allocated. It is part of what is written, and
	// reading with a Run that has it set notices when the pages hold an older run, because a write was lost. 0 means
	// unknown: then this is not checked.
	Born uint64
}

// IsZero tells whether r is no run.
func (r Run) IsZero() bool { return r.First == 0 && r.Pages == 0 }

// End is the page after the run.
func (r Run) End() No { return r.First + No(r.Pages) }

// Sub names pages of r: count of them, from the skip-th on.
func (r Run) Sub(skip, count uint32) Run {
	return Run{First: r.First + No(skip), Pages: count, Born: r.Born}
}

// String gives first+pages.
func (r Run) String() string { return fmt.Sprintf("%d+%d", r.First, r.Pages) }

// within tells whether the run lies in a file of that many pages.
func (r Run) within(pages uint64) bool {
	return r.First >= 1 && r.Pages >= 1 && r.Pages <= MaxRunPages && uint64(r.First) <= pages &&
		uint64(r.First)-1+uint64(r.Pages) <= pages
}

// Kind says what a run holds.
type Kind uint8

// The kinds of runs.
const (
	// KindPacked is a run of small messages, or of one in a single page.
	KindPacked Kind = 1
	// KindLarge is a run of one message in several pages. No reader depends on which of the two kinds a run has.
	KindLarge Kind = 2
	// KindNode is a node of a tree.
	KindNode Kind = 3
	// KindBitmap is a part of the file's own bitmap of used pages.
	KindBitmap Kind = 4
	// KindBitmapDir is a part of the directory that says where the bitmap's parts are.
	KindBitmapDir Kind = 5
)

// String names the kind.
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

// A run's header.
//
//	 0  crc u32         CRC32C of bytes 4..32 and of the payload
//	 4  kind u8
//	 5  flags u8        0
//	 6  reserved u16    0
//	 8  payload u32     length in bytes
//	12  pages u32
//	16  page u64        the run's first page
//	24  checkpoint u64  Run.Born
//	32  payload, then zeros up to the end of the last page

// PagesFor returns how many pages a run with that much payload takes.
func PagesFor(pageSize, payloadBytes int) uint32 {
	return uint32(divideUp(uint64(payloadBytes)+RunHeaderBytes, uint64(pageSize)))
}

// AppendRun appends the bytes of a run, whole pages, to dst. It returns ErrMisuse if the payload does not fit in the
// run, or if the run was not returned by Alloc: both must not reach the disk.
func AppendRun(dst []byte, pageSize int, run Run, kind Kind, payload []byte) ([]byte, error) {
	if run.First == 0 || run.Born == 0 || !kind.known() || PagesFor(pageSize, len(payload)) > run.Pages {
		return dst, fmt.Errorf("%w: %d bytes of kind %v for run %v of checkpoint %d, with pages of %d bytes", ErrMisuse,
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

// sealRun fills in the header of a run whose payload is at buf[RunHeaderBytes:] already.
func sealRun(buf []byte, run Run, kind Kind, payloadBytes int) {
	runHeader(buf, run, kind, payloadBytes)
	binary.LittleEndian.PutUint32(buf, crc.Of(buf[4:RunHeaderBytes+payloadBytes]))
}

// runHeader fills in the header but for the checksum.
func runHeader(buf []byte, run Run, kind Kind, payloadBytes int) {
	h := buf[:RunHeaderBytes]
	clear(h)
	h[4] = byte(kind)
	binary.LittleEndian.PutUint32(h[8:], uint32(payloadBytes))
	binary.LittleEndian.PutUint32(h[12:], run.Pages)
	binary.LittleEndian.PutUint64(h[16:], uint64(run.First))
	binary.LittleEndian.PutUint64(h[24:], run.Born)
}

// OffsetOf returns where a page begins in the file, in bytes.
func OffsetOf(n No, pageSize int) int64 { return geometry{pageSize: pageSize}.offset(n) }

// NoAt returns the page that has the byte at offset, which must not be less than DataOffset.
func NoAt(offset int64, pageSize int) No { return No((offset-DataOffset)/int64(pageSize)) + 1 }

// RunHeader is what the header of a run says of itself.
type RunHeader struct {
	Run          Run
	Kind         Kind
	PayloadBytes int
}

// PeekRun decodes a run's header without verifying the checksum, which needs the whole run.
func PeekRun(b []byte) (RunHeader, error) {
	if len(b) < RunHeaderBytes {
		return RunHeader{}, &DamagedError{Reason: "shorter than a run's header"}
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
		return h, &DamagedError{Page: h.Run.First, Reason: "no run begins here"}
	}
	return h, nil
}

// DecodeRun verifies the bytes of a run and returns what it holds; payload aliases b. The error is a DamagedError.
func DecodeRun(b []byte, pageSize int, run Run) (Kind, []byte, error) {
	damaged := func(format string, args ...any) (Kind, []byte, error) {
		return 0, nil, &DamagedError{Page: run.First, Reason: fmt.Sprintf(format, args...)}
	}
	if len(b) < RunHeaderBytes || uint64(len(b)) < uint64(run.Pages)*uint64(pageSize) {
		return damaged("%d bytes are too few for %d pages", len(b), run.Pages)
	}
	h, err := PeekRun(b)
	if err != nil {
		return damaged("no run begins here")
	}
	if h.PayloadBytes > len(b)-RunHeaderBytes {
		return damaged("payload of %d bytes in a run of %d pages", h.PayloadBytes, run.Pages)
	}
	if got := crc.Of(b[4 : RunHeaderBytes+h.PayloadBytes]); got != binary.LittleEndian.Uint32(b) {
		return damaged("the checksum does not match")
	}
	switch {
	case h.Run.First != run.First:
		return damaged("it holds page %d: a write went to the wrong place", h.Run.First)
	case h.Run.Pages != run.Pages:
		return damaged("the run has %d pages, %d were expected: a write was lost", h.Run.Pages, run.Pages)
	case run.Born != 0 && h.Run.Born != run.Born:
		return damaged("it is of checkpoint %d, %d was expected: a write was lost", h.Run.Born, run.Born)
	case PagesFor(pageSize, h.PayloadBytes) > run.Pages:
		return damaged("payload of %d bytes in a run of %d pages", h.PayloadBytes, run.Pages)
	}
	return h.Kind, b[RunHeaderBytes : RunHeaderBytes+h.PayloadBytes : RunHeaderBytes+h.PayloadBytes], nil
}
