// SPDX-License-Identifier: Apache-2.0

package query

import (
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/queue"
)

// Meta returns the applied value of an internal entry (queue.MetaEntry). The caller must not modify the value. ok is
// false if the entry does not exist.
func Meta(s *store.Store, key string) (value []byte, ok bool) {
	s.View(func(state *queue.State) { value, ok = state.Meta(key) })
	return value, ok
}

// MetaPrefix returns the applied internal entries with keys that begin with prefix, in key order. The caller must not
// modify the values.
func MetaPrefix(s *store.Store, prefix string) (entries []queue.MetaEntry) {
	s.View(func(state *queue.State) { entries = state.MetaPrefix(prefix) })
	return entries
}

// WatchMeta returns a channel that receives a value after a transaction has changed internal entries. Signals are
// coalesced. The caller must call cancel.
func WatchMeta(s *store.Store) (changed <-chan struct{}, cancel func()) {
	return s.Watch(queue.MetaQueue)
}

// Access returns the version and the entries of the applied access table. The version is the logical number of the
// last change, or 0. The entries are ordered by kind and name. The caller may retain the values, but must not modify
// them.
func Access(s *store.Store) (version uint64, entries []queue.AccessEntry) {
	s.View(func(state *queue.State) { version, entries = state.Access() })
	return version, entries
}

// WatchAccess is WatchMeta for the access table. The installation of a snapshot counts as a change.
func WatchAccess(s *store.Store) (changed <-chan struct{}, cancel func()) {
	return s.Watch(queue.AccessQueue)
}
