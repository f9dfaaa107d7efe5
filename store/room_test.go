// SPDX-License-Identifier: Apache-2.0

package store

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Free pages count as available space, but half of the watermark must be free in the filesystem.
func TestRoom(t *testing.T) {
	const mark = 100
	for name, c := range map[string]struct {
		room            Room
		low, nearly, is bool // is: a standby is held
	}{
		"much":                  {room: Room{FreeBytes: 200}},
		"enough":                {room: Room{FreeBytes: 100}, nearly: true},
		"not enough free bytes": {room: Room{FreeBytes: 99}, low: true, nearly: true},
		"free pages":            {room: Room{FreeBytes: 60, PageBytes: 40}, nearly: true},
		"pending pages":         {room: Room{FreeBytes: 60, PendingBytes: 40}, nearly: true},
		"not enough for the tail": {
			room: Room{FreeBytes: 60, TailBytes: 40, PendingBytes: 90},
			low:  true, nearly: true, is: true,
		},
		"only free pages": {
			room: Room{FreeBytes: 49, PageBytes: 1000},
			low:  true, nearly: true, is: true,
		},
		"in memory":                {room: Room{FreeBytes: 120, TailBytes: 30}, low: true, nearly: true},
		"in memory, to free pages": {room: Room{FreeBytes: 120, TailBytes: 30, PageBytes: 30}, nearly: true},
		"more than free pages": {
			room: Room{FreeBytes: 60, TailBytes: 60, PageBytes: 40},
			low:  true, nearly: true, is: true,
		},
	} {
		require.Equal(t, c.low, c.room.Low(mark), name)
		require.Equal(t, c.nearly, c.room.NearlyLow(mark), name)
		_, held := c.room.Held(mark, 0)
		require.Equal(t, c.is, held, name)
	}
}
