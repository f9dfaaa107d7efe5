// SPDX-License-Identifier: Apache-2.0

package replication

import "sync"

// eventQueue delivers events in order from a separate goroutine. post never blocks and may be called with locks held.
type eventQueue struct {
	to   func(Event)
	mu   sync.Mutex // guards todo and stop
	todo []Event
	stop bool
	wake chan struct{}
	done chan struct{}
}

func startEventQueue(to func(Event)) *eventQueue {
	q := &eventQueue{to: to, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go q.run()
	return q
}

// post queues an event for delivery and never blocks. After close it has no effect.
func (q *eventQueue) post(e Event) {
	q.mu.Lock()
	if !q.stop {
		q.todo = append(q.todo, e)
	}
	q.mu.Unlock()
	signal(q.wake)
}

// close drops undelivered events, and waits for the delivery in progress, if any.
func (q *eventQueue) close() {
	q.mu.Lock()
	q.stop, q.todo = true, nil
	q.mu.Unlock()
	signal(q.wake)
	<-q.done
}

func (q *eventQueue) run() {
	defer close(q.done)
	for range q.wake {
		for {
			q.mu.Lock()
			if q.stop {
				q.mu.Unlock()
				return
			}
			if len(q.todo) == 0 {
				q.mu.Unlock()
				break
			}
			e := q.todo[0]
			q.todo = q.todo[1:]
			q.mu.Unlock()
			if q.to != nil {
				q.to(e)
			}
		}
	}
}

// signal wakes the receiver of a channel of capacity one.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default: // a signal is already pending
	}
}
