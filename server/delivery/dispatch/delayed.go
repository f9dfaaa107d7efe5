// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"container/heap"
	"time"
)

type delayQueue struct {
	at    map[uint64]time.Time // authoritative; the heap may contain removed or duplicate sequences
	heap  delayHeap
	timer *time.Timer // for the first one; nil if empty
}

type laterEntry struct {
	at       time.Time
	sequence uint64
}

// requeueDelayed requeues sequences after the delays requested by consumers, or else those of the queue's
// configuration.
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
	d.setLater(now)
}

func (d *dispatcher) setLater(now time.Time) {
	l := &d.delayed
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

func (d *dispatcher) isLater() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped != nil {
		return
	}
	now := time.Now()
	d.requeue(d.delayed.take(now))
	d.setLater(now)
}

func (l *delayQueue) add(sequence uint64, at time.Time) {
	if l.at == nil {
		l.at = make(map[uint64]time.Time)
	}
	l.at[sequence] = at
	heap.Push(&l.heap, laterEntry{at, sequence})
}

func (l *delayQueue) take(now time.Time) (due []uint64) {
	for len(l.heap) > 0 && !l.heap[0].at.After(now) {
		e, _ := heap.Pop(&l.heap).(laterEntry)
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

type delayHeap []laterEntry

func (h delayHeap) Len() int           { return len(h) }
func (h delayHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h delayHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *delayHeap) Push(x any)        { *h = append(*h, x.(laterEntry)) } // only add calls it
func (h *delayHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
