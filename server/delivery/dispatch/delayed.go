// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"container/heap"
	"time"
)

type delayQueue struct {
	at    map[uint64]time.Time // authoritative, because the heap may contain removed or duplicate entries
	heap  delayHeap
	timer *time.Timer // for the first entry; nil before the first use
}

type delayedEntry struct {
	at       time.Time
	sequence uint64
}

// requeueDelayed requeues sequences. Each sequence is requeued after the delay that a consumer requested (in asked),
// or else after the redelivery delay of the subscription.
func (d *dispatcher) requeueDelayed(sequences []uint64, asked map[uint64]time.Duration) {
	if len(sequences) == 0 {
		return
	}
	delays := d.registry.source.RedeliveryDelays(d.key, sequences)
	if delays == nil && len(asked) == 0 {
		d.requeue(sequences)
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
		d.delayed.add(sequence, now.Add(delay))
	}
	d.requeue(atOnce)
	d.setDelayTimer(now)
}

func (d *dispatcher) setDelayTimer(now time.Time) {
	l := &d.delayed
	if len(l.heap) == 0 || d.stopped != nil {
		return
	}
	wait := l.heap[0].at.Sub(now)
	if l.timer == nil {
		l.timer = time.AfterFunc(wait, d.delayPassed)
		return
	}
	l.timer.Reset(wait)
}

func (d *dispatcher) delayPassed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped != nil {
		return
	}
	now := time.Now()
	d.requeue(d.delayed.take(now))
	d.setDelayTimer(now)
}

func (l *delayQueue) add(sequence uint64, at time.Time) {
	if l.at == nil {
		l.at = make(map[uint64]time.Time)
	}
	l.at[sequence] = at
	heap.Push(&l.heap, delayedEntry{at, sequence})
}

func (l *delayQueue) take(now time.Time) (due []uint64) {
	for len(l.heap) > 0 && !l.heap[0].at.After(now) {
		e, _ := heap.Pop(&l.heap).(delayedEntry)
		if l.at[e.sequence].Equal(e.at) {
			delete(l.at, e.sequence)
			due = append(due, e.sequence)
		}
	}
	return due
}

func (l *delayQueue) removeRange(r Range) {
	inRange(l.at, r, func(sequence uint64, _ time.Time) { delete(l.at, sequence) })
	if len(l.at) == 0 {
		l.heap = nil
	}
}

func (l *delayQueue) stop() {
	if l.timer != nil {
		l.timer.Stop()
	}
}

type delayHeap []delayedEntry

func (h delayHeap) Len() int           { return len(h) }
func (h delayHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h delayHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *delayHeap) Push(x any)        { *h = append(*h, x.(delayedEntry)) } // only add calls it
func (h *delayHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
