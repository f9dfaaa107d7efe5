// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package vfs

// Sync uses os.File.Sync, which on macOS flushes the disk's cache.
func (f *osFile) Sync() error { return f.f.Sync() }

func (f *osFile) SyncRange(_, _ int64) error { return f.Sync() }

func (f *osFile) WriteVec(offset int64, bufs ...[]byte) (int, error) {
	return f.writeEach(offset, bufs, 0)
}

func (f *osFile) Allocate(offset, length int64) error { return f.extend(offset + length) }
