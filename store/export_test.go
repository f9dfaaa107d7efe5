// SPDX-License-Identifier: Apache-2.0

package store

import "github.com/lockstep-mq/lockstep/store/pager"

// Pager returns the pager.
func (s *Store) Pager() *pager.Pager { return s.pages }

// Holds returns the number of holds, at which Apply stops.
func (s *Store) Holds() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.holds.list)
}

// LaneBytes returns the size of the lane cache in bytes.
func (s *Store) LaneBytes() int64 { return s.lanes.bytes.Load() }

// TailBytes returns the size of the messages in memory.
func (s *Store) TailBytes() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.state.TailBytes()
}
