// SPDX-License-Identifier: Apache-2.0

package store

// LaneBytes is what is kept for the reads of lower priorities.
func (s *Store) LaneBytes() int64 { return s.lanes.bytes.Load() }

// TailBytes is what the messages in memory take.
func (s *Store) TailBytes() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.state.TailBytes()
}
