// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/crc"
)

// FormatVersion is the only supported version of the layout.
const FormatVersion = 1

// Sizes and positions in bytes, and the maximum number of pages of an extent. Every page size is a multiple of
// MinPageBytes.
const (
	MinPageBytes     = 2048
	DefaultPageBytes = 2048
	MaxPageBytes     = 1 << 20
	// DataOffset is the position of page 1.
	DataOffset        = 64 << 10
	ExtentHeaderBytes = 32
	MaxExtentPages    = 1 << 24

	headerBytes = 4 << 10
	slotBytes   = 16 << 10
)

// slotOffset returns the offset of a meta slot. Slots are 16 KiB apart and 16 KiB long.
func slotOffset(slot int) int64 { return int64(16<<10) * int64(slot+1) }

// CheckPageSize returns ErrPageSize for an invalid page size.
func CheckPageSize(sizeBytes int) error {
	if sizeBytes < MinPageBytes || sizeBytes > MaxPageBytes || sizeBytes%MinPageBytes != 0 {
		return fmt.Errorf("%w: %d", ErrPageSize, sizeBytes)
	}
	return nil
}

// The file header. Its first 64 bytes have the same meaning in every format version. The checksum is checked before
// the version.
//
//	 0  magic "LSPAGES\n"
//	 8  crc u32        CRC32C of bytes 12..64
//	12  version u32
//	16  page size u32
//	20  reserved u32
//	24  store id [16]
//	40  reserved [24]
//	64  zero up to 4096
const (
	headerMagic  = "LSPAGES\n"
	headerFields = 64
)

type header struct {
	pageSize int
	storeID  [16]byte
}

func describeForeign(b []byte) string {
	switch {
	case len(b) == 0:
		return "empty file"
	case len(b) < len(headerMagic):
		return fmt.Sprintf("file of %d bytes", len(b))
	case len(bytes.Trim(b, "\x00")) == 0:
		return "file starts with zeros"
	default:
		return fmt.Sprintf("file starts with %q", b[:len(headerMagic)])
	}
}

func encodeHeader(h header) []byte {
	b := make([]byte, headerBytes)
	copy(b, headerMagic)
	binary.LittleEndian.PutUint32(b[12:], FormatVersion)
	binary.LittleEndian.PutUint32(b[16:], uint32(h.pageSize))
	copy(b[24:40], h.storeID[:])
	putHeaderSum(b)
	return b
}

func putHeaderSum(b []byte) {
	binary.LittleEndian.PutUint32(b[8:], crc.Of(b[12:headerFields]))
}

// decodeHeader decodes and verifies the file header. It returns ErrNotPageFile, ErrNewerVersion or a CorruptError.
func decodeHeader(b []byte) (header, error) {
	if len(b) < len(headerMagic) || string(b[:len(headerMagic)]) != headerMagic {
		return header{}, fmt.Errorf("%w: %s", ErrNotPageFile, describeForeign(b))
	}
	if len(b) < headerFields {
		return header{}, &CorruptError{Reason: "truncated file header"}
	}
	if got := crc.Of(b[12:headerFields]); got != binary.LittleEndian.Uint32(b[8:]) {
		return header{}, &CorruptError{Reason: "file header checksum mismatch"}
	}
	if v := binary.LittleEndian.Uint32(b[12:]); v != FormatVersion {
		return header{}, fmt.Errorf("%w: version %d, this program supports version %d; use a newer program",
			ErrNewerVersion, v,
			FormatVersion)
	}
	h := header{pageSize: int(binary.LittleEndian.Uint32(b[16:]))}
	copy(h.storeID[:], b[24:40])
	if err := CheckPageSize(h.pageSize); err != nil {
		return header{}, &CorruptError{Reason: err.Error()}
	}
	return h, nil
}
