// SPDX-License-Identifier: Apache-2.0

// Package queue implements the state machine that applies the log. The state consists of the queues with their
// subscriptions and acknowledgements, and of other replicated data, such as producers, policies and access rules. It
// is in memory, except for message IDs (see dedup.go) and the schedule index (see schedule.go), which are in the
// tree. The package does no I/O itself.
//
// # Determinism
//
// Two nodes that apply the same records have the same state. Apply depends only on the record and the state: it uses no
// clock, no random numbers and no map order. Local bookkeeping (which messages are still in memory, which entries were
// already collected) never influences a Result. All returns the same bytes on two nodes at the same LSN, regardless of
// their checkpoints.
//
// # Storage
//
// An applied message is in its queue's tail, in memory, until it is in a page or no subscription needs it. A message
// is dead once every subscription of its queue has acknowledged it. A dead message never becomes live again. After a
// restart, the state is loaded from the keys and values that Collect returned up to the last checkpoint (see keys.go),
// and the later log records are applied again. Messages in pages are not loaded.
//
// # Locking
//
// The package has no locks: its owner guards a State and everything reachable from it with one RWMutex. All methods
// that change the State, such as Apply, Collect, Flushed and TakeTouched, require the exclusive lock. All other
// methods require the shared lock. A *Queue, *Sub or *Prepared must not be kept after the lock is released. The
// caller of Collect owns the Batch and may use it without the lock until it calls Flushed. Record bytes never change,
// so they may be used without the lock. A Loader is not safe for concurrent use; its State is not shared before
// Finish.
package queue
