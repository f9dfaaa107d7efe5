// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"math"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/queue"
)

// CheckRunSpans compares the pager's span cache with the index: an extent must not be shorter than the cached span of
// each group that it overlaps.
func (s *Store) CheckRunSpans() error {
	s.pages.hold()
	defer s.pages.mu.Unlock()
	spans := s.pages.spans.in(s.pages.index)
	it := s.pages.index.View().Scan([]byte{index.Letter}, []byte{index.Letter + 1})
	for it.Next() {
		e, err := index.Decode(it.Key(), it.Value())
		if err != nil {
			return err
		}
		for seq := e.First; seq <= e.Last(); seq++ {
			g := spans.get(e.Queue, seq/queue.ChunkSize)
			if g == nil {
				continue
			}
			n := g[seq%queue.ChunkSize/queue.Group]
			if n == 0 || uint64(n) > min(e.Span, math.MaxUint8) {
				return fmt.Errorf("queue %d, run of %d from %d: its shortest neighbour is said to span %d",
					e.Queue, e.Span, e.First, n)
			}
		}
	}
	return it.Err()
}

// KnownChunks returns the number of chunks in the pager's span cache.
func (s *Store) KnownChunks() int {
	s.pages.hold()
	defer s.pages.mu.Unlock()
	return len(s.pages.spans.in(s.pages.index).chunks)
}

// ForgetRunSpans clears the pager's span cache, as a restart does.
func (s *Store) ForgetRunSpans() {
	s.pages.hold()
	defer s.pages.mu.Unlock()
	s.pages.spans.of = nil
}

// IndexLooks returns the number of the pager's index lookups for extents that lost their last message.
func (s *Store) IndexLooks() uint64 {
	s.pages.hold()
	defer s.pages.mu.Unlock()
	return s.pages.spans.looks
}
