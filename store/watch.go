// SPDX-License-Identifier: Apache-2.0

package store

import "sync"

// watchers wakes the dispatchers that wait for a queue to change. A signal is a hint: the receiver must check the
// queue.
type watchers struct {
	mu      sync.Mutex
	byQueue map[uint64]map[chan struct{}]struct{}
}

// Watch returns a channel that receives after messages were published to, released on or purged from the queue, or the
// queue was deleted. Signals are coalesced. The caller must call cancel.
func (s *Store) Watch(queue uint64) (changed <-chan struct{}, cancel func()) {
	w := &s.watch
	ch := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byQueue == nil {
		w.byQueue = make(map[uint64]map[chan struct{}]struct{})
	}
	if w.byQueue[queue] == nil {
		w.byQueue[queue] = make(map[chan struct{}]struct{})
	}
	w.byQueue[queue][ch] = struct{}{}
	return ch, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.byQueue[queue], ch)
		if len(w.byQueue[queue]) == 0 {
			delete(w.byQueue, queue)
		}
	}
}

func (w *watchers) wake(queues []uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range queues {
		for ch := range w.byQueue[q] {
			select {
			case ch <- struct{}{}:
			default: // a signal is already pending
			}
		}
	}
}
