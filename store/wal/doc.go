// SPDX-License-Identifier: Apache-2.0

// Package wal is the log: the place where a transaction becomes durable, and what the two nodes of a pair exchange.
//
// The log is a chain of frames, one for each record. A frame's checksum covers the checksum of the frame before it, so
// that the checksum of the last frame speaks for the whole history, and (term, LSN, checksum), an lsn.Position, names a
// record for good. Frames travel to the standby as they are.
//
// One Append writes one block: a small header and the frames, verbatim, in one write into space that is already there.
// Sync makes it durable with one fdatasync that has no metadata to write, because segments are prepared (filled with
// zeros, or recycled) in the background before they are needed.
//
// # Recovery
//
// Open reads the log up to the first byte that is not right. What follows there is either a torn tail, the remains of
// writes that no Sync had covered when the power went, or damage in the middle of what was promised to be safe. The
// difference matters: a torn tail must be cut, a damaged middle must never be. Each block header says how far the log
// was durable when it was written; if such a promise reaches beyond the bad byte, the byte is damage and Open fails
// with a *DamagedError. So that the last records before a quiet time are covered too, an empty block, a seal, is
// written when nothing happened for a moment, and on Close.
//
// Each block header also says how far the log was known to be committed when it was written, and so does a seal. So a
// node knows after its start, before another node has answered, which of its records it must never cut (INV-13,
// Log.Committed).
//
// # Goroutines and locks
//
// One goroutine appends. Sync may run in the same or in another one. Readers are independent of both and of each other.
// Two goroutines belong to a Log, from Open to Close: one prepares segments; one seals, syncs (SyncInterval) and
// reports a fatal error.
//
// The locks, in the order in which they are taken: trimMu, writeMu, syncMu, mu. No disk access happens under mu.
//
// A write or an fdatasync that failed leaves the log in an unknown state. It is never tried again: the Log
// refuses everything from then on with ErrFailed, and a new Open finds out what is there (INV-7).
package wal
