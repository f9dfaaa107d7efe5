// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/binary"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/crc"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// AppDataBytes is the length of Meta.AppData.
const AppDataBytes = 64

// Meta describes a checkpoint. The caller of Checkpoint sets Position, Root, CreatedMS and AppData. The file sets
// the other fields.
type Meta struct {
	// Checkpoint is the checkpoint number. Numbers increase and can have gaps.
	Checkpoint uint64
	Position   lsn.Position
	Root       Extent // zero if the checkpoint is empty
	// CreatedMS is the creation time in milliseconds since 1970.
	CreatedMS int64
	AppData   [AppDataBytes]byte

	PageSize int
	StoreID  [16]byte
	// Pages counts used and free pages. UsedPages includes the pages of the bitmap.
	Pages     uint64
	UsedPages uint64

	leaves []ref
}

// FileBytes returns the minimum file length for the checkpoint.
func (m Meta) FileBytes() int64 { return DataOffset + int64(m.Pages)*int64(m.PageSize) }

// ref is a one-page extent of the bitmap or directory; zero if it does not exist.
type ref struct {
	page No
	born uint64
}

func (r ref) extent() Extent { return Extent{First: r.page, Pages: 1, Born: r.born} }

// A meta slot. A snapshot sent to another node contains the same encoding of its checkpoint.
//
//	  0  magic "LSMETA1\n"
//	  8  crc u32          CRC32C of bytes 12..length
//	 12  length u32       192 + 16 * directory pages
//	 16  version u32
//	 20  page size u32
//	 24  store id [16]
//	 40  checkpoint u64
//	 48  term u64         \
//	 56  lsn u64           > position in the log
//	 64  chain u32        /
//	 68  directory pages u32
//	 72  root: page u64
//	 80  root: checkpoint u64
//	 88  root: pages u32
//	 92  reserved u32
//	 96  pages u64        pages of the file
//	104  used u64         pages used by the checkpoint
//	112  created i64      milliseconds since 1970
//	120  reserved u64
//	128  application data [64]
//	192  (page u64, checkpoint u64) of each directory page
const (
	metaMagic  = "LSMETA1\n"
	metaFields = 192
	maxLeaves  = (slotBytes - metaFields) / 16
)

// Encode returns the encoding of m for meta slots and snapshots, at most 16 KiB.
func (m Meta) Encode() []byte {
	b := make([]byte, metaFields, metaFields+16*len(m.leaves))
	copy(b, metaMagic)
	binary.LittleEndian.PutUint32(b[12:], uint32(metaFields+16*len(m.leaves)))
	binary.LittleEndian.PutUint32(b[16:], FormatVersion)
	binary.LittleEndian.PutUint32(b[20:], uint32(m.PageSize))
	copy(b[24:40], m.StoreID[:])
	binary.LittleEndian.PutUint64(b[40:], m.Checkpoint)
	binary.LittleEndian.PutUint64(b[48:], m.Position.Term)
	binary.LittleEndian.PutUint64(b[56:], m.Position.LSN)
	binary.LittleEndian.PutUint32(b[64:], m.Position.Chain)
	binary.LittleEndian.PutUint32(b[68:], uint32(len(m.leaves)))
	binary.LittleEndian.PutUint64(b[72:], uint64(m.Root.First))
	binary.LittleEndian.PutUint64(b[80:], m.Root.Born)
	binary.LittleEndian.PutUint32(b[88:], m.Root.Pages)
	binary.LittleEndian.PutUint64(b[96:], m.Pages)
	binary.LittleEndian.PutUint64(b[104:], m.UsedPages)
	binary.LittleEndian.PutUint64(b[112:], uint64(m.CreatedMS))
	copy(b[128:192], m.AppData[:])
	for _, l := range m.leaves {
		b = binary.LittleEndian.AppendUint64(b, uint64(l.page))
		b = binary.LittleEndian.AppendUint64(b, l.born)
	}
	binary.LittleEndian.PutUint32(b[8:], crc.Of(b[12:]))
	return b
}

// DecodeMeta decodes the result of Encode, and ignores any bytes after it. It returns ErrNewerVersion or a
// CorruptError.
func DecodeMeta(b []byte) (Meta, error) {
	damaged := func(format string, args ...any) (Meta, error) {
		return Meta{}, &CorruptError{Reason: "meta slot: " + fmt.Sprintf(format, args...)}
	}
	if len(b) < metaFields || string(b[:len(metaMagic)]) != metaMagic {
		return damaged("never written")
	}
	length := binary.LittleEndian.Uint32(b[12:])
	if length < metaFields || length > slotBytes || int(length) > len(b) {
		return damaged("invalid length %d", length)
	}
	b = b[:length]
	if got := crc.Of(b[12:]); got != binary.LittleEndian.Uint32(b[8:]) {
		return damaged("checksum mismatch")
	}
	if v := binary.LittleEndian.Uint32(b[16:]); v != FormatVersion {
		return Meta{}, fmt.Errorf("%w: meta slot of version %d, this program supports version %d", ErrNewerVersion, v,
			FormatVersion)
	}
	m := Meta{
		PageSize:   int(binary.LittleEndian.Uint32(b[20:])),
		Checkpoint: binary.LittleEndian.Uint64(b[40:]),
		Position: lsn.Position{
			Term:  binary.LittleEndian.Uint64(b[48:]),
			LSN:   binary.LittleEndian.Uint64(b[56:]),
			Chain: binary.LittleEndian.Uint32(b[64:]),
		},
		Root: Extent{
			First: No(binary.LittleEndian.Uint64(b[72:])),
			Born:  binary.LittleEndian.Uint64(b[80:]),
			Pages: binary.LittleEndian.Uint32(b[88:]),
		},
		Pages:     binary.LittleEndian.Uint64(b[96:]),
		UsedPages: binary.LittleEndian.Uint64(b[104:]),
		CreatedMS: int64(binary.LittleEndian.Uint64(b[112:])),
	}
	copy(m.StoreID[:], b[24:40])
	copy(m.AppData[:], b[128:192])
	leaves := binary.LittleEndian.Uint32(b[68:])
	if uint64(leaves)*16+metaFields != uint64(length) {
		return damaged("%d directory pages in %d bytes", leaves, length)
	}
	for at := metaFields; at < len(b); at += 16 {
		m.leaves = append(m.leaves, ref{
			page: No(binary.LittleEndian.Uint64(b[at:])),
			born: binary.LittleEndian.Uint64(b[at+8:]),
		})
	}
	if reason := m.implausible(); reason != "" {
		return damaged("%s", reason)
	}
	return m, nil
}

// implausible returns the first inconsistency, or "".
func (m *Meta) implausible() string {
	g := geometry{pageSize: m.PageSize}
	switch {
	case CheckPageSize(m.PageSize) != nil:
		return CheckPageSize(m.PageSize).Error()
	case m.Checkpoint == 0:
		return "checkpoint number 0"
	case m.Pages > g.maxPages():
		return fmt.Sprintf("%d pages exceed the limit of the format", m.Pages)
	case uint64(len(m.leaves)) != g.leavesFor(m.Pages):
		return fmt.Sprintf("%d directory pages for %d pages", len(m.leaves), m.Pages)
	case m.UsedPages > m.Pages:
		return fmt.Sprintf("%d of %d pages used", m.UsedPages, m.Pages)
	case m.Root != Extent{} && !m.Root.within(m.Pages):
		return fmt.Sprintf("root %v is outside the file", m.Root)
	}
	for _, l := range m.leaves {
		if l != (ref{}) && !l.extent().within(m.Pages) {
			return fmt.Sprintf("directory page %d is outside the file", l.page)
		}
	}
	return ""
}

type geometry struct{ pageSize int }

// chunkPages returns the number of pages that one bitmap page describes.
func (g geometry) chunkPages() uint64 { return uint64(g.pageSize-ExtentHeaderBytes) * 8 }

// leafChunks returns the number of bitmap pages that one directory page describes.
func (g geometry) leafChunks() uint64 { return uint64(g.pageSize-ExtentHeaderBytes) / 16 }

func (g geometry) chunksFor(pages uint64) uint64 { return divideUp(pages, g.chunkPages()) }

func (g geometry) leavesFor(pages uint64) uint64 { return divideUp(g.chunksFor(pages), g.leafChunks()) }

// maxPages returns the maximum number of pages. It limits the file to 3.8 TiB with a page size of 2 KiB, and to 31
// TiB with 4 KiB. Larger pages have higher limits.
func (g geometry) maxPages() uint64 {
	most := maxLeaves * g.leafChunks() * g.chunkPages()
	if limit := uint64(1<<62) / uint64(g.pageSize); most > limit {
		return limit
	}
	return most
}

func (g geometry) offset(n No) int64 { return DataOffset + int64(n-1)*int64(g.pageSize) }

func divideUp(a, b uint64) uint64 { return (a + b - 1) / b }
