// SPDX-License-Identifier: Apache-2.0

package replication

import "sync"

// eventQueue hands events to a function in order, from a goroutine of its own, so that a poster never waits
// and may hold locks.
type eventQueue struct {
	to   func(Event)
	mu   sync.Mutex // guards the two below
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

// post never blocks. After close it does nothing.
func (q *eventQueue) post(e Event) {
	q.mu.Lock()
	if !q.stop {
		q.todo = append(q.todo, e)
	}
	q.mu.Unlock()
	signal(q.wake)
}

// close drops what was not delivered yet and waits for the delivery under way.
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

// signal wakes the receiver of a channel of capacity one, if it is not awake already.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default: // a signal is waiting already
	}
}
