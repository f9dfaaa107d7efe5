// SPDX-License-Identifier: Apache-2.0

// Package store is one node's persistent message store: a log that makes transactions durable, and a page file where
// messages live once they have been around for a while.
//
// # How data flows
//
// Append writes encoded log frames and Sync makes them durable. Nothing is visible yet: the replicator of the store
// (package replication) decides which records are committed, and calls Apply up to that LSN (INV-5). Apply runs the
// deterministic state machine of package queue; messages stay in memory in the tail of their queue, as slices of the
// very frames that were appended. A background goroutine, the pager, writes old tail messages to free pages of page.db
// and, now and then, a checkpoint: one copy-on-write tree with everything that Apply changed, made durable by flipping
// a meta slot. Then the log before the checkpoint can be recycled.
//
// A message is written to the log once and, if it is still wanted when the pager comes by, to page.db once. One that
// was consumed before that never reaches page.db.
//
// A consumer that is behind reads from page.db, through the system's page cache as far as that holds what it wants.
// What it does not hold is read past it, in large pieces and ahead of the consumer (readahead.go); so are walks of the
// whole file (a scan, a backup, a snapshot), which would drive out what others need. Large writes go past it where that
// is faster, or on a standby, where no consumer reads (Options.PageCache).
//
// # Locks
//
//   - Store.mu guards state, the tail and the published tree view. Apply takes it for writing, a few hundred records
//     at a time; queries take it for reading and never do I/O under it.
//   - Store.ioMu is held for reading during page I/O by queries and for writing while a snapshot replaces page.db.
//     What takes long (a check, a digest, the copying of a snapshot) does not hold it all the time; it pins a
//     checkpoint, and ends with an error when the file is replaced or closed.
//   - pager.mu is held by what edits the tree and writes checkpoints: the pager goroutine, Close, and
//     Install.Commit. While a checkpoint is on its way to the disk only the pager goroutine takes it, to write more
//     messages; the others wait (pager.hold).
//
// Order: pager.mu, ioMu, mu.
package store
