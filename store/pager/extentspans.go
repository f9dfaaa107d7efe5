// SPDX-License-Identifier: Apache-2.0

package pager

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/tree"
)

// extentSpans avoids index lookups. For each group of 64 sequences, it caches the smallest span, in sequences, of the
// extents that overlap the group. An extent cannot be dead if its span exceeds the number of adjacent dead messages.
//
// The cache uses 64 bytes for each known chunk of 4096 sequences. A chunk is known if the extent that contains its
// first sequence was written while the cache existed, or if the spans were loaded from the index. The cache is valid
// for one tree.
type extentSpans struct {
	of      *tree.Tree
	chunks  map[spanKey]*groupSpans
	lookups uint64
}

type spanKey struct{ queue, chunk uint64 }

// groupSpans contains, for each group of a chunk, the smallest span of the extents that overlap or have overlapped
// it; 0 if none. Spans above 255 are stored as 255.
type groupSpans [queue.GroupsOfChunk]uint8

func (s *extentSpans) in(of *tree.Tree) *extentSpans {
	if s.of != of {
		s.of, s.chunks = of, make(map[spanKey]*groupSpans)
	}
	return s
}

func (s *extentSpans) get(queueID, chunk uint64) *groupSpans {
	return s.chunks[spanKey{queueID, chunk}]
}

func (s *extentSpans) remove(queueID, chunk uint64) { delete(s.chunks, spanKey{queueID, chunk}) }

func (s *extentSpans) removeQueues(ids []uint64) {
	if len(ids) > 0 {
		maps.DeleteFunc(s.chunks, func(key spanKey, _ *groupSpans) bool { return slices.Contains(ids, key.queue) })
	}
}

// wrote records an extent that was written at the end of its queue. An extent that contains the first sequence of a
// chunk makes the chunk known. Sequences begin at 1, so wrote never makes chunk 0 known.
func (s *extentSpans) wrote(e *index.Entry) {
	last := e.Last() / queue.ChunkSize
	if e.First%queue.ChunkSize == 0 || e.First/queue.ChunkSize != last {
		if key := (spanKey{e.Queue, last}); s.chunks[key] == nil {
			s.chunks[key] = new(groupSpans)
		}
	}
	s.note(e)
}

func (s *extentSpans) note(e *index.Entry) {
	for chunk := e.First / queue.ChunkSize; chunk <= e.Last()/queue.ChunkSize; chunk++ {
		if g := s.get(e.Queue, chunk); g != nil {
			g.note(chunk, e)
		}
	}
}

func (g *groupSpans) note(chunk uint64, e *index.Entry) {
	first := max(e.First, chunk*queue.ChunkSize) % queue.ChunkSize / queue.Group
	last := min(e.Last(), chunk*queue.ChunkSize+queue.ChunkSize-1) % queue.ChunkSize / queue.Group
	span := uint8(min(e.Span, math.MaxUint8))
	for w := first; w <= last; w++ {
		if g[w] == 0 || span < g[w] {
			g[w] = span
		}
	}
}

// CheckSpans verifies that no extent has a smaller span than the cached span of a group that it overlaps. It is for
// tests.
func (p *Pager) CheckSpans() error {
	p.hold()
	defer p.mu.Unlock()
	spans := p.spans.in(p.index)
	it := p.index.View().Scan([]byte{index.Letter}, []byte{index.Letter + 1})
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
			if n := g[seq%queue.ChunkSize/queue.Group]; n == 0 || uint64(n) > min(e.Span, math.MaxUint8) {
				return fmt.Errorf("queue %d: extent of %d sequences from %d has the cached span %d", e.Queue, e.Span,
					e.First, n)
			}
		}
	}
	return it.Err()
}

// SpanStats returns the number of chunks with cached spans, and the number of index lookups for extents that may be
// dead.
func (p *Pager) SpanStats() (chunks int, lookups uint64) {
	p.hold()
	defer p.mu.Unlock()
	spans := p.spans.in(p.index)
	return len(spans.chunks), spans.lookups
}
