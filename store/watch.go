// SPDX-License-Identifier: Apache-2.0

package store

import (
	"slices"
	"sync"
)

// watchers signals that a queue may have changed. A signal is a hint: the receiver must check the queue.
type watchers struct {
	mu      sync.Mutex
	byQueue map[uint64][]chan struct{}
}

// Watch returns a channel that receives a value after the queue was touched (queue.State.TakeTouched). Signals are
// coalesced. The caller must call cancel.
func (s *Store) Watch(queue uint64) (changed <-chan struct{}, cancel func()) {
	w := &s.watch
	ch := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byQueue == nil {
		w.byQueue = make(map[uint64][]chan struct{})
	}
	w.byQueue[queue] = append(w.byQueue[queue], ch)
	return ch, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.byQueue[queue] = slices.DeleteFunc(w.byQueue[queue], func(c chan struct{}) bool { return c == ch })
		if len(w.byQueue[queue]) == 0 {
			delete(w.byQueue, queue)
		}
	}
}

func (w *watchers) wake(queues []uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range queues {
		for _, ch := range w.byQueue[q] {
			select {
			case ch <- struct{}{}:
			default: // a signal is already pending
			}
		}
	}
}
