// SPDX-License-Identifier: Apache-2.0

// Package store implements the persistent message store of one node. A log makes transactions durable; a page file
// stores messages that remain unconsumed for a while.
//
// # Data flow
//
// Append writes encoded log frames, and Sync makes them durable, according to the sync mode. Apply runs the
// deterministic state machine of package queue on committed records (INV-5) and makes them visible to readers.
// Messages stay in memory in the tail of their queue, as slices of the appended frames. A background goroutine, the
// pager, writes old tail messages to free pages of page.db. It also writes checkpoints. A checkpoint is a
// copy-on-write tree with all applied changes; the write of a meta slot makes the checkpoint durable.
//
// A message is written to the log once. If it is not consumed before the pager reaches it, the pager also writes it
// to page.db.
//
// For a lagging consumer, the store reads page.db through the operating system's page cache if the cache contains the
// data. Otherwise it can read ahead in large pieces with direct I/O (readahead.go). Options.PageCache selects whether
// large writes bypass the cache.
//
// # Packages
//
//   - store opens the files, appends to the log, applies committed records, and reads messages.
//   - pager owns page.db and its tree: flush, checkpoints, replacement of the file.
//   - repair records corruption and repairs it.
//   - query implements read-only queries of the state; it imports store.
//   - datadir manages the other files of the data directory.
//
// pager, repair and rewrite access the store through small interfaces (engine.go).
//
// # Locks
//
// Store.mu guards the state and the messages in memory. Apply takes it for writing, for at most a few hundred records
// at a time. View and Read take it for reading and perform no I/O while they hold it. The locks of page.db, in
// package pager, are acquired before Store.mu.
package store
