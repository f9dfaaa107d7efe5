// SPDX-License-Identifier: Apache-2.0

package store

import "github.com/lockstep-mq/lockstep/store/queue"

// Access gives the access table as it is applied, by kind and name, and its version: the LSN of the record that changed
// it last, 0 if none ever did. It changes through transactions only (txn.OpAccess), so that both nodes have the same.
// The values are not to be changed, and may be kept.
func (s *Store) Access() (version uint64, entries []queue.AccessEntry) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.state.Access()
}

// AccessVersion gives the version of the access table alone.
func (s *Store) AccessVersion() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.state.AccessVersion()
}

// WatchAccess is Watch for the access table. The installation of a snapshot counts as a change.
func (s *Store) WatchAccess() (changed <-chan struct{}, cancel func()) {
	return s.Watch(queue.AccessQueue)
}
