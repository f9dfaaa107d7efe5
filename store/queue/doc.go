// SPDX-License-Identifier: Apache-2.0

// Package queue implements the state machine that applies the log: queues, subscriptions, acknowledgements and
// producers. The state is in memory, except for message IDs (see dedup.go) and the schedule index (see schedule.go),
// which are in the tree. The package does no I/O itself.
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
// An applied message is in its queue's tail, in memory, until it is in a page or no subscription needs it. A message is
// dead once every subscription of its queue has acknowledged it. A dead message never becomes live again. A restart
// loads the keys, values and messages returned by Collect (see keys.go), and applies the log after them again.
//
// # Locking
//
// The package has no locks: its owner guards a State and everything reachable from it with one RWMutex. A Loader and
// all methods that change the State, such as Apply, Collect, Flushed and TakeTouched, require the exclusive lock. All
// other calls require the shared lock. A *Queue or *Sub must not be kept after the lock is released. The caller of
// Collect owns the Batch and may use it without the lock until it calls Flushed. Record bytes never change, so they may
// be used without the lock.
package queue
