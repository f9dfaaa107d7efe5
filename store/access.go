// SPDX-License-Identifier: Apache-2.0

package store

import "github.com/lockstep-mq/lockstep/store/queue"

// Access returns the applied access table, by kind and name, and its version. The version is the LSN of the record
// that last changed the table, or 0. The table changes only through transactions (txn.OpAccess), so both nodes have
// the same one. The caller must not modify the values, but may keep them.
func (s *Store) Access() (version uint64, entries []queue.AccessEntry) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.state.Access()
}

// AccessVersion returns the version of the access table.
func (s *Store) AccessVersion() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.state.AccessVersion()
}

// WatchAccess is like Watch, for the access table. Installing a snapshot counts as a change.
func (s *Store) WatchAccess() (changed <-chan struct{}, cancel func()) {
	return s.Watch(queue.AccessQueue)
}
