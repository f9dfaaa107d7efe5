// SPDX-License-Identifier: Apache-2.0

package page

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// freed is a range of unreferenced pages that readers may still read. born is the checkpoint being built when the
// pages were allocated (0: unknown), and epoch the checkpoint being built when they were freed.
type freed struct {
	at, n uint64
	born  uint64
	epoch uint64
}

// pendingPages holds freed pages until no reader can read them:
//
//   - queue: a meta slot may still refer to them, because the older slot has a checkpoint before epoch;
//   - held: only a Pin or a Guard may still read them.
//
// It is protected by File.mu.
type pendingPages struct {
	queue []freed // in order of epoch
	held  []freed
	pages uint64
}

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

// releaseFreed releases the pages that no reader can read. older is the older checkpoint in the meta slots.
func (q *pendingPages) releaseFreed(older uint64, blocked func(freed) bool, release func(freed)) {
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
		q.queue = slices.Clone(q.queue[done:]) // free the memory of the released entries
	}
}

// readers counts the readers that may read unreferenced pages: guards by the checkpoint being built at their start,
// pins by their checkpoint.
type readers struct {
	mu     sync.Mutex
	guards map[uint64]int
	pins   map[uint64]int
	// left reports whether a reader was released since the last check.
	left atomic.Bool
}

func (r *readers) blocked() func(freed) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left.Store(false)
	firstGuard := ^uint64(0)
	for epoch := range r.guards {
		firstGuard = min(firstGuard, epoch)
	}
	pins := slices.Collect(maps.Keys(r.pins))
	return func(f freed) bool {
		if f.epoch >= firstGuard {
			return true
		}
		for _, checkpoint := range pins {
			// Pages allocated after the pinned checkpoint are not part of it.
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

// Guard prevents the overwriting of pages that are freed while it is held. It is intended for one short read: acquire
// the guard, look up the position (tree.View, index), read, release.
type Guard struct {
	file  *File
	epoch uint64
	done  atomic.Bool
}

// ReadGuard returns a new Guard, without I/O. It also works on a closed file.
func (f *File) ReadGuard() *Guard {
	return &Guard{file: f, epoch: f.readers.add(f.readers.guards, f.building.Load)}
}

// Release releases the guard. It is idempotent.
func (g *Guard) Release() {
	if g.done.CompareAndSwap(false, true) {
		g.file.readers.remove(g.file.readers.guards, g.epoch)
	}
}
