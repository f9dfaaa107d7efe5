// SPDX-License-Identifier: Apache-2.0

package index_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
)

// An extent of several messages has as many whole pages as fit into index.ExtentBytes, and at least one.
func TestRoom(t *testing.T) {
	for pageSize, pages := range map[int]int{2048: 2, 4096: 1, 6144: 1, 8192: 1, 32 << 10: 1, 1 << 20: 1} {
		room := index.Room(pageSize)
		require.Equal(t, pages*pageSize-page.ExtentHeaderBytes, room, "page size %d", pageSize)
		require.Equal(t, uint32(pages), page.PagesFor(pageSize, room), "page size %d", pageSize)
	}
}

// Takes accepts messages of the same queue up to the capacity of the extent.
func TestPackingFillsExtent(t *testing.T) {
	var p index.Packing
	room := index.Room(2048)
	require.False(t, p.Takes(1, 1, 500, room), "no extent has been started")
	p.Begin(1, 1)
	p.Add(1, 500)
	require.True(t, p.Takes(1, 2, 500, room))
	require.False(t, p.Takes(2, 2, 500, room), "another queue")
	left := room - p.Size - 1 // one byte for the sequence delta
	require.True(t, p.Takes(1, 2, left, room))
	require.False(t, p.Takes(1, 2, left+1, room))
	p.Add(2, left)
	require.Equal(t, room, p.Size)
	require.Equal(t, uint64(2), p.Entry(page.Extent{First: 1, Pages: 2, Born: 1}).Count)
}

// An extent is large if it has a single message in several pages.
func TestExtentKind(t *testing.T) {
	require.Equal(t, page.KindPacked, index.ExtentKind(1, 1))
	require.Equal(t, page.KindPacked, index.ExtentKind(7, 2))
	require.Equal(t, page.KindLarge, index.ExtentKind(1, 2))
}
