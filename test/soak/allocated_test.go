// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package soak

import (
	"io/fs"
	"syscall"
)

// blockBytes is the unit of Stat_t.Blocks, whatever the filesystem's blocks are.
const blockBytes = 512

// allocated is how much of the disk a file takes: log segments are longer than what is in them.
func allocated(info fs.FileInfo) float64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return float64(st.Blocks) * blockBytes
	}
	return float64(info.Size())
}
