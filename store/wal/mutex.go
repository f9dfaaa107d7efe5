package wal

import "sync"

// ioMutex is a mutex for locks that are held during disk access. Whoever waits for it is parked on a condition, and so counts as idle in a
// simulation (testing/synctest) in which the disk takes simulated time: a goroutine that waits for a sync.Mutex would stop the clock
// that the disk waits for. Two uncontended locks more are nothing beside a write.
type ioMutex struct {
	mu   sync.Mutex // guards what follows
	free sync.Cond
	held bool
}

// Lock waits until nobody holds it.
func (m *ioMutex) Lock() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.free.L = &m.mu
	for m.held {
		m.free.Wait()
	}
	m.held = true
}

// Unlock lets the next one in.
func (m *ioMutex) Unlock() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.held {
		panic("wal: unlock of an unlocked ioMutex")
	}
	m.held = false
	m.free.Signal()
}
