// SPDX-License-Identifier: Apache-2.0

package dispatch

import "container/heap"

type sequences struct {
	heap   sequenceHeap
	member map[uint64]struct{} // authoritative, because the heap may contain removed sequences
}

func newSequences() sequences { return sequences{member: make(map[uint64]struct{})} }

func (s *sequences) len() int { return len(s.member) }

func (s *sequences) has(sequence uint64) bool {
	_, there := s.member[sequence]
	return there
}

func (s *sequences) push(sequence uint64) {
	if _, there := s.member[sequence]; there {
		return
	}
	s.member[sequence] = struct{}{}
	heap.Push(&s.heap, sequence)
}

// pop removes and returns the lowest sequence. The set must not be empty.
func (s *sequences) pop() uint64 {
	for {
		sequence, _ := heap.Pop(&s.heap).(uint64)
		if _, there := s.member[sequence]; there {
			delete(s.member, sequence)
			return sequence
		}
	}
}

func (s *sequences) removeRange(r Range) {
	inRange(s.member, r, func(sequence uint64, _ struct{}) { delete(s.member, sequence) })
	if len(s.member) == 0 {
		s.heap = s.heap[:0]
	}
}

// inRange calls fn for the elements of a map that have keys in a range. fn may delete the element. The cost is
// proportional to the smaller of the range and the map.
func inRange[V any](m map[uint64]V, r Range, fn func(sequence uint64, v V)) {
	if r.Last-r.First < uint64(len(m)) {
		for i := range r.Last - r.First + 1 {
			if v, ok := m[r.First+i]; ok {
				fn(r.First+i, v)
			}
		}
		return
	}
	for sequence, v := range m {
		if r.First <= sequence && sequence <= r.Last {
			fn(sequence, v)
		}
	}
}

type sequenceHeap []uint64

func (h sequenceHeap) Len() int           { return len(h) }
func (h sequenceHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h sequenceHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *sequenceHeap) Push(x any)        { *h = append(*h, x.(uint64)) } // only push calls it
func (h *sequenceHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
