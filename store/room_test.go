// SPDX-License-Identifier: Apache-2.0

package store

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Free and pending pages count as available space, minus the space that the messages in memory need. Half of the
// watermark must be free in the filesystem.
func TestRoom(t *testing.T) {
	const mark = 100
	for name, c := range map[string]struct {
		room              Room
		low, nearly, held bool
	}{
		"twice the watermark":    {room: Room{FreeBytes: 200}},
		"equal to the watermark": {room: Room{FreeBytes: 100}, nearly: true},
		"below the watermark":    {room: Room{FreeBytes: 99}, low: true, nearly: true},
		"with free pages":        {room: Room{FreeBytes: 60, PageBytes: 40}, nearly: true},
		"with pending pages":     {room: Room{FreeBytes: 60, PendingBytes: 40}, nearly: true},
		"tail larger than half of the watermark allows": {
			room: Room{FreeBytes: 60, TailBytes: 40, PendingBytes: 90},
			low:  true, nearly: true, held: true,
		},
		"less than half of the watermark in the filesystem": {
			room: Room{FreeBytes: 49, PageBytes: 1000},
			low:  true, nearly: true, held: true,
		},
		"with a tail":                           {room: Room{FreeBytes: 120, TailBytes: 30}, low: true, nearly: true},
		"with a tail that fits into free pages": {room: Room{FreeBytes: 120, TailBytes: 30, PageBytes: 30}, nearly: true},
		"with a tail larger than the free pages": {
			room: Room{FreeBytes: 60, TailBytes: 60, PageBytes: 40},
			low:  true, nearly: true, held: true,
		},
	} {
		require.Equal(t, c.low, c.room.Low(mark), name)
		require.Equal(t, c.nearly, c.room.NearlyLow(mark), name)
		_, held := c.room.Held(mark, 0)
		require.Equal(t, c.held, held, name)
	}
}
