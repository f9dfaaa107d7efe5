// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/crc"
)

// These targets insert a valid checksum into random bytes. The decoders must not panic, must limit their allocations,
// and must accept only consistent input.

func FuzzHeader(f *testing.F) {
	f.Add(encodeHeader(header{pageSize: 4096, storeID: [16]byte{1}}), true)
	f.Add([]byte(headerMagic), false)
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if seal && len(b) >= headerFields {
			putHeaderSum(b)
		}
		h, err := decodeHeader(b)
		if err != nil {
			return
		}
		require.NoError(t, CheckPageSize(h.pageSize))
		again, err := decodeHeader(encodeHeader(h))
		require.NoError(t, err)
		require.Equal(t, h, again)
	})
}

func FuzzMeta(f *testing.F) {
	m := Meta{Checkpoint: 5, PageSize: 2048, Pages: 40_000_000, UsedPages: 17, Root: Extent{First: 3, Pages: 2, Born: 4}}
	f.Add(Meta{Checkpoint: 1, PageSize: 2048}.Encode(), true)
	m.leaves = make([]ref, geometry{pageSize: 2048}.leavesFor(m.Pages))
	m.leaves[1] = ref{page: 9, born: 5}
	f.Add(m.Encode(), true)
	f.Add(m.Encode()[:100], false)
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if length := uint32(0); seal && len(b) >= metaFields {
			length = min(max(binary.LittleEndian.Uint32(b[12:]), metaFields), uint32(len(b)))
			binary.LittleEndian.PutUint32(b[8:], crc.Of(b[12:length]))
		}
		m, err := DecodeMeta(b)
		if err != nil {
			return
		}
		require.LessOrEqual(t, m.UsedPages, m.Pages)
		require.Positive(t, m.FileBytes())
		encoded := m.Encode()
		require.LessOrEqual(t, len(encoded), slotBytes)
		again, err := DecodeMeta(encoded)
		require.NoError(t, err)
		require.Equal(t, m, again)
	})
}

func FuzzExtent(f *testing.F) {
	ext := Extent{First: 7, Pages: 2, Born: 3}
	b, err := AppendExtent(nil, 2048, ext, KindLarge, []byte("payload"))
	require.NoError(f, err)
	f.Add(b, uint64(7), uint32(2), uint64(3), true)
	f.Add(b[:40], uint64(7), uint32(1), uint64(0), false)
	f.Fuzz(func(t *testing.T, b []byte, first uint64, pages uint32, born uint64, seal bool) {
		if seal && len(b) >= ExtentHeaderBytes {
			end := min(uint64(len(b)), ExtentHeaderBytes+uint64(binary.LittleEndian.Uint32(b[8:])))
			binary.LittleEndian.PutUint32(b, crc.Of(b[4:end]))
		}
		ext := Extent{First: No(first), Pages: pages, Born: born}
		kind, payload, err := DecodeExtent(b, 2048, ext)
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			return
		}
		h, err := PeekExtent(b)
		require.NoError(t, err)
		require.Len(t, payload, h.PayloadBytes)
		if h.Extent.Born == 0 || first == 0 {
			return // never written by this package
		}
		again, err := AppendExtent(nil, 2048, h.Extent, kind, payload)
		require.NoError(t, err)
		require.Equal(t, b[:ExtentHeaderBytes+len(payload)], again[:ExtentHeaderBytes+len(payload)])
	})
}

func FuzzBitmap(f *testing.F) {
	s := newSpace(2048)
	s.grow(20_000)
	s.take(100, 50)
	s.chunks[0].at = ref{page: 3, born: 2}
	f.Add(s.chunkPayload(nil, 0), uint16(16_128))
	f.Add(s.chunkPayload(nil, 1), uint16(20_000-16_128))
	f.Add(s.leafPayload(nil, 0), uint16(2))
	geo := geometry{pageSize: 2048}
	f.Fuzz(func(t *testing.T, b []byte, count uint16) {
		pages := min(uint64(count), geo.chunkPages())
		if words, err := decodeChunk(b, geo, pages); err == nil {
			require.LessOrEqual(t, countBits(words), pages)
		} else {
			require.ErrorIs(t, err, ErrCorrupt)
		}
		refs, err := decodeLeaf(b, int(count)%128, 20_000)
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			return
		}
		for _, r := range refs {
			require.True(t, r == (ref{}) || r.extent().within(20_000))
		}
	})
}
