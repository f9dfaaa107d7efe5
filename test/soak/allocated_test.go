// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package soak

import (
	"io/fs"
	"syscall"
)

// blockBytes is the unit of Stat_t.Blocks, regardless of the filesystem's block size.
const blockBytes = 512

// allocated returns the disk space of a file in bytes. Log segments are preallocated, so their size is not their disk
// space.
func allocated(info fs.FileInfo) float64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return float64(st.Blocks) * blockBytes
	}
	return float64(info.Size())
}
