// SPDX-License-Identifier: Apache-2.0

// Package wal implements the write-ahead log.
//
// The log is a chain of frames, one for each record. A frame's checksum covers the checksum of the previous frame.
// Term, LSN and checksum, an lsn.Position, identify a record.
//
// One Append writes one block to preallocated space: a small header and the frames, verbatim. Sync makes the block
// durable with one fdatasync. Segments are prepared (filled with zeros, or recycled) in the background.
//
// # Recovery
//
// Open reads the log up to the first invalid block. The data after it is either a torn tail (the remains of writes that
// were not synced before a power failure) or corrupt durable records. A torn tail must be truncated; durable records
// must never be truncated. Each block header contains the LSN up to which the log was durable when it was written. If
// one of these LSNs covers a record that was not read, the log is corrupt and Open fails with a *CorruptError. To cover
// the last records of a busy period, an empty block (a seal) is written when the log becomes idle, and on Close.
//
// Each block header also contains the LSN up to which the log was known to be committed when it was written (INV-13,
// Log.Committed).
//
// # Goroutines and locks
//
// One goroutine appends. The same or another goroutine calls Sync. Readers do not block these goroutines or each
// other. A Log has two goroutines, from Open to Close: one prepares segments; one writes seals, syncs (SyncInterval),
// syncs the headers of new segments, recycles segments and reports a fatal error.
//
// The lock order is: trimMu, writeMu, syncMu, mu. Only Close accesses files under mu.
//
// A failed write or fdatasync leaves the log in an unknown state and is never retried. The Log then rejects appends,
// syncs and truncations with ErrFailed, and can only be read and closed (INV-7).
package wal
