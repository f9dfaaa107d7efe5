// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/binary"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/crc"
)

// ExtentStream verifies a stream of used pages in ascending order, such as a copy of a checkpoint.
type ExtentStream struct {
	pageSize int
	next     No     // expected page, if left is not 0
	left     uint32 // missing pages of the extent
	first    No
	rest     int // bytes of header and payload not yet included in crc
	crc      uint32
	want     uint32
}

// NewExtentStream returns an empty ExtentStream for pages of the given size in bytes.
func NewExtentStream(pageSize int) *ExtentStream { return &ExtentStream{pageSize: pageSize} }

// Write verifies whole pages, beginning with page first. The error is a CorruptError, or ErrMisuse if pages is not a
// multiple of the page size.
func (s *ExtentStream) Write(first No, pages []byte) error {
	if len(pages)%s.pageSize != 0 {
		return fmt.Errorf("%w: %d bytes are not a multiple of the page size %d", ErrMisuse, len(pages), s.pageSize)
	}
	for len(pages) > 0 {
		if s.left == 0 {
			if err := s.begin(first, pages); err != nil {
				return err
			}
		} else if first != s.next {
			return s.damaged(s.first, "extent continues at page %d, which is not in use", s.next)
		}
		n := min(s.left, uint32(len(pages)/s.pageSize))
		piece := pages[:int(n)*s.pageSize]
		take := min(s.rest, len(piece))
		sum := piece[:take]
		if s.next == s.first {
			sum = sum[4:] // the checksum does not cover itself
		}
		s.crc = crc.Update(s.crc, sum)
		s.rest -= take
		s.left -= n
		first += No(n)
		s.next = first
		pages = pages[len(piece):]
		if s.left == 0 && s.crc != s.want {
			return s.damaged(s.first, "checksum mismatch")
		}
	}
	return nil
}

func (s *ExtentStream) begin(first No, pages []byte) error {
	h, err := PeekExtent(pages)
	switch {
	case err != nil:
		return s.damaged(first, "no extent starts here")
	case h.Extent.First != first:
		return s.damaged(first, "header has page number %d: misdirected write", h.Extent.First)
	case h.Extent.Pages == 0 || h.Extent.Pages > MaxExtentPages || PagesFor(s.pageSize, h.PayloadBytes) > h.Extent.Pages:
		return s.damaged(first, "payload of %d bytes in an extent of %d pages", h.PayloadBytes, h.Extent.Pages)
	}
	s.first, s.next, s.left = first, first, h.Extent.Pages
	s.rest, s.crc, s.want = ExtentHeaderBytes+h.PayloadBytes, 0, binary.LittleEndian.Uint32(pages)
	return nil
}

// End returns an error if the last extent is incomplete.
func (s *ExtentStream) End() error {
	if s.left > 0 {
		return s.damaged(s.first, "last %d pages of the extent are missing", s.left)
	}
	return nil
}

func (s *ExtentStream) damaged(at No, format string, args ...any) error {
	return &CorruptError{Page: at, Offset: OffsetOf(at, s.pageSize), Reason: fmt.Sprintf(format, args...)}
}
