// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/pager"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/tree"
	"github.com/lockstep-mq/lockstep/store/txn"
)

type clock struct {
	soonest atomic.Int64  // earliest time added since the last call of SoonestAdded
	alarm   atomic.Int64  // adding an earlier time sends a signal on early
	early   chan struct{} // capacity 1

	mu    sync.Mutex // guards onDue
	onDue func([]queue.DueMessage)
	due   []queue.DueMessage // used only by Apply
}

func (c *clock) init() {
	c.soonest.Store(queue.NeverMS)
	c.early = make(chan struct{}, 1)
}

// update takes the newly due messages and the earliest added time from state. If this time is before the alarm,
// update signals early. The caller must hold Store.mu.
func (c *clock) update(state *queue.State) {
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
		default: // a signal is already pending
		}
	}
}

func (c *clock) notify() {
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

// OnDue sets the function that Apply calls with delayed messages that have become deliverable. nil removes the
// function. A call of the previous function may still be in progress when OnDue returns. fn must return quickly and
// must not retain the slice.
func (s *Store) OnDue(fn func([]queue.DueMessage)) {
	s.clock.mu.Lock()
	defer s.clock.mu.Unlock()
	s.clock.onDue = fn
}

// Early returns a channel that receives a value after an entry with a time before the alarm (SetAlarm) was added to
// the schedule.
func (s *Store) Early() <-chan struct{} { return s.clock.early }

// SetAlarm sets the alarm, in milliseconds since 1970. Early signals only earlier times.
func (s *Store) SetAlarm(ms int64) { s.clock.alarm.Store(ms) }

// SoonestAdded returns the earliest time added to the schedule since the last call, in milliseconds since 1970, or
// queue.NeverMS if none was added.
func (s *Store) SoonestAdded() int64 { return s.clock.soonest.Swap(queue.NeverMS) }

// Scheduled returns the entries of the schedule that follow the given entry and are due by byMS. It returns at most
// limit entries, in order. If it returns no entry, next is the time of a later entry, which may already have been
// removed, or queue.NeverMS if no entry follows. Otherwise next ignores entries that are only in memory.
// Scheduled reads pages without blocking transactions. Errors include ErrClosed, ErrFailed and index.ErrCorrupt.
func (s *Store) Scheduled(after txn.Due, byMS int64, limit int) (entries []txn.Due, next int64, err error) {
	pages := s.pages.Acquire()
	defer s.pages.Release()
	for {
		if err := s.Usable(); err != nil {
			return nil, 0, err
		}
		view, guard, version := s.scheduleView(pages)
		stored, beyond, err := readSchedule(view, after, byMS, limit)
		guard.Release()
		if err != nil {
			return nil, 0, s.repair.IndexError(err)
		}
		upTo := txn.Due{TimeMS: byMS, Queue: math.MaxUint64, Sequence: math.MaxUint64, Kind: math.MaxUint8}
		if len(stored) == limit {
			upTo = stored[limit-1]
		}
		s.mu.RLock()
		if s.state.ScheduleVersion() != version {
			s.mu.RUnlock()
			continue // entries moved from memory to a newer tree
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
		after = upTo // the state has removed all entries that were read
	}
}

func (s *Store) scheduleView(pages pager.Pages) (*tree.View, *page.Guard, uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	guard := pages.File.ReadGuard() // acquired before the view, so that no page of the view is overwritten
	return pages.Index.View(), guard, s.state.ScheduleVersion()
}

// readSchedule returns at most limit entries in the tree that follow the given entry and are due by byMS. next is the
// time of the entry after the returned entries, or queue.NeverMS.
func readSchedule(view *tree.View, after txn.Due, byMS int64, limit int) (found []txn.Due, next int64, err error) {
	it := view.Scan(append(queue.ScheduleKey(nil, after), 0), queue.ScheduleKeys().To)
	for it.Next() {
		e, err := queue.ParseScheduleKey(it.Key())
		if err != nil {
			return nil, 0, fmt.Errorf("%w: schedule: %w", index.ErrCorrupt, err)
		}
		if e.TimeMS > byMS || len(found) == limit {
			return found, e.TimeMS, nil
		}
		found = append(found, e)
	}
	return found, queue.NeverMS, it.Err()
}
