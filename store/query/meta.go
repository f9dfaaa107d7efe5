// SPDX-License-Identifier: Apache-2.0

package query

import (
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/queue"
)

// Meta returns the applied value of a metadata entry of the pair. The caller must not modify the value. Entries change
// only through transactions (txn.OpPutMeta, txn.OpDeleteMeta), so both nodes have the same.
func Meta(s *store.Store, key string) (value []byte, ok bool) {
	s.View(func(state *queue.State) { value, ok = state.Meta(key) })
	return value, ok
}

// MetaPrefix returns the applied metadata entries of the pair whose keys begin with prefix, in key order.
func MetaPrefix(s *store.Store, prefix string) (entries []queue.MetaEntry) {
	s.View(func(state *queue.State) { entries = state.MetaPrefix(prefix) })
	return entries
}

// WatchMeta returns a channel that receives, coalesced, after metadata entries changed. The caller must call cancel.
func WatchMeta(s *store.Store) (changed <-chan struct{}, cancel func()) {
	return s.Watch(queue.MetaQueue)
}

// Access returns the applied access table, by kind and name, and its version: the LSN of the record that last changed
// it, or 0. The table changes only through transactions (txn.OpAccess), so both nodes have the same. The caller may
// keep the values, but must not modify them.
func Access(s *store.Store) (version uint64, entries []queue.AccessEntry) {
	s.View(func(state *queue.State) { version, entries = state.Access() })
	return version, entries
}

// WatchAccess is like WatchMeta, for the access table. Installing a snapshot counts as a change.
func WatchAccess(s *store.Store) (changed <-chan struct{}, cancel func()) {
	return s.Watch(queue.AccessQueue)
}
