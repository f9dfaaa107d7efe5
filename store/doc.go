// SPDX-License-Identifier: Apache-2.0

// Package store implements the persistent message store of one node. A log makes transactions durable; a page file
// stores messages that are not consumed soon.
//
// # Data flow
//
// Append writes encoded log frames, and Sync makes them durable. They are not visible yet: the replicator (package
// replication) decides which records are committed, and calls Apply up to that LSN (INV-5). Apply runs the
// deterministic state machine of package queue. Messages stay in memory in the tail of their queue, as slices of the
// appended frames. A background goroutine, the pager, writes old tail messages to free pages of page.db. From time to
// time it writes a checkpoint: one copy-on-write tree with all changes made by Apply, made durable by flipping a meta
// slot. The log before the checkpoint can then be recycled.
//
// A message is written to the log once. If it is still needed when the pager reaches it, it is written to page.db
// once. A message consumed before that never reaches page.db.
//
// A consumer that lags reads from page.db, through the system's page cache if the cache holds the data. Other data is
// read with direct I/O, in large pieces and ahead of the consumer (readahead.go). Walks of the whole file (scan,
// backup, snapshot) also use direct I/O, since they would evict useful pages. Large writes bypass the cache where
// that is faster, or on a standby, which has no consumers (Options.PageCache).
//
// # Locks
//
//   - Store.mu guards the state, the tail and the published tree view. Apply takes it for writing, a few hundred
//     records at a time. Queries take it for reading and never do I/O under it.
//   - Store.ioMu is held for reading during page I/O by queries, and for writing while a snapshot replaces page.db.
//     Long operations (check, digest, copying a snapshot) do not hold it throughout. They pin a checkpoint, and fail
//     if the file is replaced or closed.
//   - pager.mu is held by code that edits the tree and writes checkpoints: the pager goroutine, Close, and
//     Install.Commit. While a checkpoint is being synced, only the pager goroutine takes it, to write more messages.
//     The others wait (pager.hold).
//
// Order: pager.mu, ioMu, mu.
package store
