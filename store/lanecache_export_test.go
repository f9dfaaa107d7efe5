// SPDX-License-Identifier: Apache-2.0

package store

// LaneBytes returns the bytes cached for reads of lower priorities.
func (s *Store) LaneBytes() int64 { return s.lanes.bytes.Load() }

// TailBytes returns the size of the messages in memory.
func (s *Store) TailBytes() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.state.TailBytes()
}
