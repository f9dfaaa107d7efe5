// SPDX-License-Identifier: Apache-2.0

// Package queue is the state machine behind the log: queues, subscriptions, acknowledgements and producers, kept in
// memory and changed by applying transactions, in the order of the log. It does no I/O.
//
// # Determinism
//
// Two nodes that apply the same records hold the same state: Apply looks at the record and at the state, and at nothing
// else; no clock, no random number, no order of a map. What a node keeps for itself (which messages are still in
// memory, which entries were already handed to the page file) never influences a Result. All gives the whole state as
// keys and values; on two nodes at the same LSN it gives the same bytes, whenever and however often each of them made
// checkpoints.
//
// # Where things are
//
// A message that was applied stands in its queue's tail, in memory, until it is in a page or no subscription needs it
// any more.
// A message is dead once every subscription of its queue has acknowledged it; it never comes to life again. What
// survives a restart are the keys and values that Collect hands out (see keys.go) and, through the same call, the
// messages.
//
// # Locking
//
// The package has no locks: its owner guards a State and everything reached through it with one RWMutex. Apply,
// Advance, Collect, Flushed, TakeTouched and the use of a Loader need it exclusively. Everything else only reads, and
// needs it shared. A *Queue or *Sub must not be kept beyond the lock; its number may. A Batch belongs to the caller of
// Collect, which uses it without the lock, until the Flushed calls for it are made. Record bytes are never changed, so
// that they may be used after the lock is gone.
package queue
