// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/tree"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// maxScheduleChanges is how many changes of the schedule there may be in memory before a checkpoint is due: some 10
// MiB.
const maxScheduleChanges = 1 << 18

// clock is what a store tells those who do what is due.
type clock struct {
	soonest atomic.Int64  // the earliest time that was added since it was last asked for
	alarm   atomic.Int64  // an earlier one is told
	early   chan struct{} // capacity 1

	mu    sync.Mutex // guards onDue
	onDue func([]queue.DueMessage)
	due   []queue.DueMessage // of Apply alone
}

func (c *clock) init() {
	c.soonest.Store(queue.NeverMS)
	c.early = make(chan struct{}, 1)
}

// note takes what was just applied from the state. Store.mu is held.
func (c *clock) note(state *queue.State) {
	c.due = state.TakeDue(c.due[:0])
	soonest := state.TakeSoonest()
	if soonest == queue.NeverMS {
		return
	}
	for before := c.soonest.Load(); soonest < before && !c.soonest.CompareAndSwap(before, soonest); {
		before = c.soonest.Load()
	}
	if soonest < c.alarm.Load() {
		select {
		case c.early <- struct{}{}:
		default: // a signal is waiting already
		}
	}
}

// tell passes on what became deliverable.
func (c *clock) tell() {
	if len(c.due) == 0 {
		return
	}
	c.mu.Lock()
	onDue := c.onDue
	c.mu.Unlock()
	if onDue != nil {
		onDue(c.due)
	}
}

// OnDue has fn called with the messages that have become deliverable because their time has come, after they can be
// read; nil ends that, though a call that is going on may not have ended. fn must return soon, and keep nothing.
func (s *Store) OnDue(fn func([]queue.DueMessage)) {
	s.clock.mu.Lock()
	defer s.clock.mu.Unlock()
	s.clock.onDue = fn
}

// Early receives after a time was added to the schedule that is before the one that SetAlarm was called with.
func (s *Store) Early() <-chan struct{} { return s.clock.early }

// SetAlarm says from which time on those that are added need not be told, in milliseconds since 1970.
func (s *Store) SetAlarm(ms int64) { s.clock.alarm.Store(ms) }

// SoonestAdded gives the earliest time that was added to the schedule since the last call; queue.NeverMS for none.
func (s *Store) SoonestAdded() int64 { return s.clock.soonest.Swap(queue.NeverMS) }

// Scheduled returns the first entries of the schedule, in order, at most limit, that come after one and are due by a
// time. next is the time of an entry that comes after those; queue.NeverMS if there is none. It may have been removed.
//
// What is in memory was added or removed since the last checkpoint, and is put together with what the tree has. It
// reads pages, and never holds up a transaction meanwhile. Errors: ErrClosed, ErrFailed, ErrIndexDamaged.
func (s *Store) Scheduled(after txn.Due, byMS int64, limit int) (entries []txn.Due, next int64, err error) {
	s.ioMu.RLock()
	defer s.ioMu.RUnlock()
	for {
		if err := s.usable(); err != nil {
			return nil, 0, err
		}
		view, guard, version := s.scheduleView()
		stored, beyond, err := readSchedule(view, after, byMS, limit)
		guard.Release()
		if err != nil {
			return nil, 0, s.indexError(err)
		}
		upTo := txn.Due{TimeMS: byMS, Queue: math.MaxUint64, Sequence: math.MaxUint64, Kind: math.MaxUint8}
		if len(stored) == limit {
			upTo = stored[limit-1]
		}
		s.mu.RLock()
		if s.state.ScheduleVersion() != version {
			s.mu.RUnlock()
			continue // entries went from memory into a newer tree
		}
		entries = s.state.Scheduled(after, upTo, stored, limit, nil)
		next = beyond
		if len(entries) == 0 {
			next = min(next, s.state.NextScheduled(upTo))
		}
		s.mu.RUnlock()
		if len(entries) > 0 || len(stored) < limit {
			return entries, next, nil
		}
		after = upTo // all of them were removed
	}
}

func (s *Store) scheduleView() (*tree.View, *page.Guard, uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	guard := s.file.ReadGuard() // before the view, so that nothing in it can be overwritten
	return s.index.View(), guard, s.state.ScheduleVersion()
}

// readSchedule reads the entries of the tree that come after one and are due by a time, and the time of the next one.
func readSchedule(view *tree.View, after txn.Due, byMS int64, limit int) (found []txn.Due, next int64, err error) {
	it := view.Scan(append(queue.ScheduleKey(nil, after), 0), queue.ScheduleKeys().To)
	for it.Next() {
		e, err := queue.ParseScheduleKey(it.Key())
		if err != nil {
			return nil, 0, fmt.Errorf("%w: schedule: %w", ErrIndexDamaged, err)
		}
		if e.TimeMS > byMS || len(found) == limit {
			return found, e.TimeMS, nil
		}
		found = append(found, e)
	}
	return found, queue.NeverMS, it.Err()
}
