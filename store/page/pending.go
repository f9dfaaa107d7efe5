// SPDX-License-Identifier: Apache-2.0

package page

import (
	"sync"
	"sync/atomic"
)

// freed is a stretch of pages that nothing refers to any more, but that may still be looked at.
type freed struct {
	at, n uint64 // counted from 0
	born  uint64 // when the pages were allocated; 0: not known
	epoch uint64 // the checkpoint that was being built when they were freed
}

// pendingPages holds back freed pages until no reader can look at them:
//
//   - queue: a meta slot may still refer to them, because the older one is of a checkpoint before epoch;
//   - held: only a Pin or a Guard may.
//
// Protected by File.mu.
type pendingPages struct {
	queue []freed // by rising epoch
	held  []freed
	pages uint64
}

// add takes in pages. Neighbours with the same fate become one entry.
func (q *pendingPages) add(f freed) {
	q.pages += f.n
	if n := len(q.queue); n > 0 {
		last := &q.queue[n-1]
		if last.epoch == f.epoch && last.born == f.born && last.at+last.n == f.at {
			last.n += f.n
			return
		}
	}
	q.queue = append(q.queue, f)
}

// sweep lets go of the pages that no reader can look at any more. older is the number of the older of the two
// checkpoints in the meta slots.
func (q *pendingPages) sweep(older uint64, blocked func(freed) bool, release func(freed)) {
	held := q.held[:0]
	for _, f := range q.held {
		if blocked(f) {
			held = append(held, f)
			continue
		}
		q.pages -= f.n
		release(f)
	}
	q.held = held
	done := 0
	for _, f := range q.queue {
		if f.epoch > older {
			break
		}
		done++
		if blocked(f) {
			q.held = append(q.held, f)
			continue
		}
		q.pages -= f.n
		release(f)
	}
	if done > 0 {
		q.queue = append([]freed(nil), q.queue[done:]...) // lets go of the memory, too
	}
}

// readers counts the readers that may look at pages that are no longer referred to.
type readers struct {
	mu     sync.Mutex
	guards map[uint64]int // by the checkpoint that was being built when they began
	pins   map[uint64]int // by the checkpoint that they hold
	// left is set when a reader has gone: something may have become reusable.
	left atomic.Bool
}

// blocked returns a function that tells whether a reader may look at freed pages.
func (r *readers) blocked() func(freed) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left.Store(false)
	firstGuard := ^uint64(0)
	for epoch := range r.guards {
		firstGuard = min(firstGuard, epoch)
	}
	pins := make([]uint64, 0, len(r.pins))
	for checkpoint := range r.pins {
		pins = append(pins, checkpoint)
	}
	return func(f freed) bool {
		if f.epoch >= firstGuard {
			return true
		}
		for _, checkpoint := range pins {
			// What was allocated after the pinned checkpoint is not part of it.
			if f.born <= checkpoint && checkpoint < f.epoch {
				return true
			}
		}
		return false
	}
}

func (r *readers) add(m map[uint64]int, key func() uint64) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := key()
	m[k]++
	return k
}

func (r *readers) remove(m map[uint64]int, key uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m[key]--; m[key] == 0 {
		delete(m, key)
	}
	r.left.Store(true)
}

func (r *readers) count() (guards, pins int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.guards {
		guards += n
	}
	for _, n := range r.pins {
		pins += n
	}
	return guards, pins
}

// Guard keeps pages that are freed after it was taken from being overwritten, for as long as it is held. It is meant
// for one short read: take the guard first, then look up where to read (tree.View, index), read, release.
type Guard struct {
	file  *File
	epoch uint64
	done  atomic.Bool
}

// ReadGuard takes a guard. It costs a short lock and no I/O. It works on a closed file, too.
func (f *File) ReadGuard() *Guard {
	return &Guard{file: f, epoch: f.readers.add(f.readers.guards, f.building.Load)}
}

// Release ends the guard; further calls do nothing.
func (g *Guard) Release() {
	if g.done.CompareAndSwap(false, true) {
		g.file.readers.remove(g.file.readers.guards, g.epoch)
	}
}
