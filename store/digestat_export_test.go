// SPDX-License-Identifier: Apache-2.0

package store

// Holds counts the records at which applying is to stop.
func (s *Store) Holds() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.holds.list)
}
