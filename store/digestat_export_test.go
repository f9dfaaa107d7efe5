// SPDX-License-Identifier: Apache-2.0

package store

// Holds returns the number of records at which applying must stop.
func (s *Store) Holds() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.holds.list)
}
