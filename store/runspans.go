// SPDX-License-Identifier: Apache-2.0

package store

import (
	"maps"
	"math"
	"slices"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/tree"
)

// runSpans tells how short the runs of messages are, without a look into the index: of each group of 64 sequences the
// fewest sequences that a run spans which reaches into it. When messages are acknowledged in no order, each of them
// lies in another part of the index, and to look for the run that may have lost its last message would read a leaf for
// each. A run cannot have, though, where fewer messages next to each other are dead than it spans.
//
// It takes 64 bytes for each chunk of 4096 sequences that it knows. It knows a chunk when it has seen all runs of it:
// when the first of them was written while it was there, or when it was asked to learn them from the index. It is in
// memory only, and belongs to one tree: another page file has other runs.
type runSpans struct {
	of     *tree.Tree
	chunks map[spanKey]*groupSpans
	// looks is how often the index was looked at for runs of which the last message may have died.
	looks uint64
}

// spanKey names a chunk of a queue.
type spanKey struct{ queue, chunk uint64 }

// groupSpans has for each group of a chunk the fewest sequences that a run spans which reaches into it, and that is
// still there or was once; 0 if there was none. More than 255 are 255.
type groupSpans [queue.GroupsOfChunk]uint8

// in gives what is known of the runs of a tree.
func (s *runSpans) in(of *tree.Tree) *runSpans {
	if s.of != of {
		s.of, s.chunks = of, make(map[spanKey]*groupSpans)
	}
	return s
}

// get gives what is known of a chunk; nil if that is nothing.
func (s *runSpans) get(queueID, chunk uint64) *groupSpans { return s.chunks[spanKey{queueID, chunk}] }

// forget drops what is known of a chunk.
func (s *runSpans) forget(queueID, chunk uint64) { delete(s.chunks, spanKey{queueID, chunk}) }

// forgetQueues drops what is known of queues that are deleted.
func (s *runSpans) forgetQueues(ids []uint64) {
	if len(ids) > 0 {
		maps.DeleteFunc(s.chunks, func(key spanKey, _ *groupSpans) bool { return slices.Contains(ids, key.queue) })
	}
}

// wrote notes a run that has been written behind all others of its queue. If it is the first one that reaches into a
// chunk, that chunk is known from then on. A queue that stays in its first chunk takes no memory.
func (s *runSpans) wrote(e *index.Entry) {
	last := e.Last() / queue.ChunkSize
	if e.First%queue.ChunkSize == 0 || e.First/queue.ChunkSize != last {
		if key := (spanKey{e.Queue, last}); s.chunks[key] == nil {
			s.chunks[key] = new(groupSpans)
		}
	}
	s.note(e)
}

// note takes a run into account, in those chunks that are known.
func (s *runSpans) note(e *index.Entry) {
	for chunk := e.First / queue.ChunkSize; chunk <= e.Last()/queue.ChunkSize; chunk++ {
		if g := s.get(e.Queue, chunk); g != nil {
			g.note(chunk, e)
		}
	}
}

// note takes a run into account that reaches into the chunk.
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
