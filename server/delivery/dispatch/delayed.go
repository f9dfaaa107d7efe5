// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"container/heap"
	"time"
)

// later contains requeued messages with a delay. Guarded by dispatcher.mu.
type later struct {
	at    map[uint64]time.Time // authoritative; the heap may contain removed or duplicate sequences
	heap  laterHeap
	timer *time.Timer // for the first one; nil if empty
}

type laterEntry struct {
	at       time.Time
	sequence uint64
}

// giveBackLater requeues sequences, each after the delay that a consumer requested, or else that of the queue's
// configuration. The dispatcher's lock is held.
func (d *dispatcher) giveBackLater(sequences []uint64, asked map[uint64]time.Duration) {
	if len(sequences) == 0 {
		return
	}
	delays := d.registry.source.RedeliveryDelays(d.key, sequences)
	if delays == nil && len(asked) == 0 {
		d.giveBack(sequences)
		return
	}
	now := time.Now()
	var atOnce []uint64
	for i, sequence := range sequences {
		delay, ok := asked[sequence]
		if !ok && delays != nil {
			delay = delays[i]
		}
		if delay <= 0 {
			atOnce = append(atOnce, sequence)
			continue
		}
		d.later.add(sequence, now.Add(delay))
	}
	d.giveBack(atOnce)
	d.setLater(now)
}

// setLater sets the timer for the first message. The dispatcher's lock is held.
func (d *dispatcher) setLater(now time.Time) {
	l := &d.later
	if len(l.heap) == 0 || d.stopped != nil {
		return
	}
	wait := l.heap[0].at.Sub(now)
	if l.timer == nil {
		l.timer = time.AfterFunc(wait, d.isLater)
		return
	}
	l.timer.Reset(wait)
}

// isLater requeues the messages that are due.
func (d *dispatcher) isLater() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped != nil {
		return
	}
	now := time.Now()
	d.giveBack(d.later.take(now))
	d.setLater(now)
}

func (l *later) add(sequence uint64, at time.Time) {
	if l.at == nil {
		l.at = make(map[uint64]time.Time)
	}
	l.at[sequence] = at
	heap.Push(&l.heap, laterEntry{at, sequence})
}

// take removes and returns the messages that are due.
func (l *later) take(now time.Time) (due []uint64) {
	for len(l.heap) > 0 && !l.heap[0].at.After(now) {
		e, _ := heap.Pop(&l.heap).(laterEntry)
		if l.at[e.sequence].Equal(e.at) {
			delete(l.at, e.sequence)
			due = append(due, e.sequence)
		}
	}
	return due
}

// removeRange removes a range. The cost is the smaller of the range and the set.
func (l *later) removeRange(r Range) {
	if r.Last-r.First < uint64(len(l.at)) {
		for i := range r.Last - r.First + 1 {
			delete(l.at, r.First+i)
		}
	} else {
		for sequence := range l.at {
			if r.First <= sequence && sequence <= r.Last {
				delete(l.at, sequence)
			}
		}
	}
	if len(l.at) == 0 {
		l.heap = nil
	}
}

func (l *later) stop() {
	if l.timer != nil {
		l.timer.Stop()
	}
}

type laterHeap []laterEntry

func (h laterHeap) Len() int           { return len(h) }
func (h laterHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h laterHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *laterHeap) Push(x any)        { *h = append(*h, x.(laterEntry)) } // only add calls it
func (h *laterHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
