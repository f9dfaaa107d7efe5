// SPDX-License-Identifier: Apache-2.0

package format

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/page"
)

// pages writes the page file: header, meta slots, and every extent used by the newer slot's checkpoint.
func (d *dumper) pages() {
	b := read(d.t, d.fsys, nodeDir+"/page.db")
	d.line(0, "header: version %d, page size %d, store id %x", le32(b[12:]), le32(b[16:]), b[24:40])
	d.hex(1, b[:64])
	d.zero(b[64:4096], "the rest of the page file header")
	f := openPages(d, b)
	for slot := range 2 {
		d.slot(slot, b[16<<10*(slot+1):])
	}
	for _, r := range f.extents() {
		kind, payload := f.read(r)
		d.seen[extentKind(kind)] = true
		if kind == page.KindPacked && r.Pages > 1 {
			d.seen[packedPages] = true
		}
		d.line(0, "%s, kind %d (%s)", r, uint8(kind), kind)
		d.hex(1, b[page.OffsetOf(r.First, f.meta.PageSize):][:page.ExtentHeaderBytes])
		d.payload(kind, payload)
	}
}

func (d *dumper) slot(n int, b []byte) {
	length := le32(b[12:])
	d.line(0, "meta slot %d: version %d, page size %d, checkpoint %d, position %s", n, le32(b[16:]), le32(b[20:]),
		le64(b[40:]), position(b[48:]))
	d.line(1, "root %s, %d pages, %d used, created %d, %d directory pages", ref(b[72:], true), le64(b[96:]),
		le64(b[104:]), le64(b[112:]), le32(b[68:]))
	d.hex(1, b[:length])
}

// packedPages is the name of the kind of extents with several messages and several pages.
const packedPages = "extent packed, of several pages"

// ref decodes a reference to an extent, with or without its length.
func ref(b []byte, withPages bool) page.Extent {
	r := page.Extent{First: page.No(le64(b)), Pages: 1, Born: le64(b[8:])}
	if withPages {
		r.Pages = le32(b[16:])
	}
	return r
}

func (d *dumper) payload(kind page.Kind, b []byte) {
	switch kind {
	case page.KindPacked, page.KindLarge:
		d.line(1, "queue %d, first sequence %d, %d messages", le64(b), le64(b[8:]), le32(b[16:]))
		for n, m := range storedMessages(b) {
			if n == shownMessages {
				d.line(2, "…")
				break
			}
			d.message(2, fmt.Sprintf("sequence %d", m.sequence), m.record)
		}
	case page.KindNode:
		level, prefix, entries := b[0], int(le16(b[2:])), le32(b[4:])
		d.line(1, "tree node: level %d, %d entries, prefix %q", level, entries, b[8:8+prefix])
	default:
	}
	d.hex(1, b)
}

type storedMessage struct {
	sequence uint64
	record   []byte
}

func storedMessages(b []byte) (all []storedMessage) {
	first := le64(b[8:])
	for count, b := le32(b[16:]), b[20:]; count > 0; count-- {
		delta, n := binary.Uvarint(b)
		size := 4 + int(le32(b[n:]))
		all = append(all, storedMessage{first + delta, b[n : n+size]})
		b = b[n+size:]
	}
	return all
}

// pageFile is a page file in memory.
type pageFile struct {
	d    *dumper
	raw  []byte
	meta page.Meta
	root page.Extent
	dirs []page.Extent
}

func openPages(d *dumper, raw []byte) *pageFile {
	f := &pageFile{d: d, raw: raw}
	for slot := range 2 {
		b := raw[16<<10*(slot+1):]
		meta, err := page.DecodeMeta(b)
		require.NoError(d.t, err)
		if meta.Checkpoint < f.meta.Checkpoint {
			continue
		}
		f.meta, f.root, f.dirs = meta, ref(b[72:], true), nil
		for n := range int(le32(b[68:])) {
			f.dirs = append(f.dirs, ref(b[192+16*n:], false))
		}
	}
	return f
}

func (f *pageFile) read(r page.Extent) (page.Kind, []byte) {
	size := f.meta.PageSize
	kind, payload, err := page.DecodeExtent(f.raw[page.OffsetOf(r.First, size):page.OffsetOf(r.End(), size)], size, r)
	require.NoError(f.d.t, err, r)
	return kind, payload
}

// extents returns every extent used by the checkpoint, ordered by page.
func (f *pageFile) extents() (all []page.Extent) {
	for _, dir := range f.dirs {
		all = append(all, dir)
		_, b := f.read(dir)
		for entry := range chunks(b, 16) {
			if r := ref(entry, false); r.First != 0 {
				all = append(all, r)
			}
		}
	}
	f.walk(f.root, func(r page.Extent) { all = append(all, r) }, func(key, value []byte) {
		if key[0] == 'i' {
			fields := uvarints(value)
			all = append(all, page.Extent{First: page.No(fields[1]), Pages: uint32(fields[2]), Born: fields[3]})
		}
	})
	slices.SortFunc(all, func(a, b page.Extent) int { return int(a.First) - int(b.First) })
	used := uint64(0)
	for _, r := range all {
		used += uint64(r.Pages)
	}
	require.Equal(f.d.t, f.meta.UsedPages, used, "found extents")
	return all
}

// walk visits the tree node in an extent, all tree nodes below it, and all entries of the leaves in order.
func (f *pageFile) walk(at page.Extent, node func(page.Extent), entry func(key, value []byte)) {
	node(at)
	_, b := f.read(at)
	level, n, prefix := b[0], le32(b[4:]), b[8:8+le16(b[2:])]
	for b = b[8+len(prefix):]; n > 0; n-- {
		size, skip := binary.Uvarint(b)
		key := append(slices.Clone(prefix), b[skip:skip+int(size)]...)
		b = b[skip+int(size):]
		if level > 0 {
			f.walk(ref(b, true), node, entry)
			b = b[20:]
			continue
		}
		size, skip = binary.Uvarint(b)
		entry(key, b[skip:skip+int(size)])
		b = b[skip+int(size):]
	}
	require.Empty(f.d.t, b, "bytes after the last entry of %s", at)
}

func uvarints(b []byte) (all []uint64) {
	for len(b) > 0 {
		v, n := binary.Uvarint(b)
		all, b = append(all, v), b[n:]
	}
	return all
}
