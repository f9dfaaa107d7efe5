// SPDX-License-Identifier: Apache-2.0

// Package store implements the persistent message store of one node. A log makes transactions durable; a page file
// stores messages that are not consumed soon.
//
// # Data flow
//
// Append writes encoded log frames, and Sync makes them durable. They become visible when the replicator (package
// replication) calls Apply up to an LSN that it knows to be committed (INV-5). Apply runs the deterministic state
// machine of package queue. Messages stay in memory in the tail of their queue, as slices of the appended frames. A
// background goroutine, the pager, writes old tail messages to free pages of page.db. It also writes checkpoints: a
// copy-on-write tree with all applied changes, made durable by flipping a meta slot. The log before a checkpoint can be
// recycled.
//
// A message is written to the log once. If the pager reaches it before it is consumed, it is also written to page.db
// once.
//
// A consumer that lags reads from page.db through the system's page cache if the cache holds the data, and otherwise
// with direct I/O, in large pieces and ahead of the consumer (readahead.go). Walks of the whole file (scan, backup,
// snapshot) also use direct I/O, since they would evict useful pages. Large writes bypass the cache where that is
// faster, or on a standby, which has no consumers (Options.PageCache).
//
// # Packages
//
//   - store opens the files, appends to the log, applies committed records, and reads messages.
//   - pager owns page.db and its tree: flush, checkpoints, replacement of the file.
//   - repair records corruption and repairs it.
//   - query answers read-only questions about the state; it is above store.
//   - datadir has the data directory's other files.
//
// pager and repair reach the state through small interfaces that type engine implements.
//
// # Locks
//
// Store.mu guards the state and the messages in memory. Apply takes it for writing, a few hundred records at a time.
// View and Read take it for reading and never do I/O under it. The locks of page.db are in package pager and are
// taken before Store.mu.
package store
