// SPDX-License-Identifier: Apache-2.0

// Package iolock has a mutex for locks that are held while a disk or a network is waited for.
package iolock

import "sync"

// Mutex is a mutex for locks that are held during I/O. A goroutine that waits for it is parked on a condition, and so
// counts as idle in a simulation (testing/synctest) in which the I/O takes simulated time: a goroutine that waits for a
// sync.Mutex would stop the clock that the I/O waits for. Two uncontended locks more are nothing beside a write. The
// zero Mutex is unlocked.
type Mutex struct {
	mu   sync.Mutex // guards what follows
	free sync.Cond
	held bool
}

// Lock waits until the mutex is free, and holds it.
func (m *Mutex) Lock() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.free.L = &m.mu
	for m.held {
		m.free.Wait()
	}
	m.held = true
}

// TryLock locks it if it is free, and tells whether it has.
func (m *Mutex) TryLock() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held {
		return false
	}
	m.held = true
	return true
}

// Unlock lets the next one in.
func (m *Mutex) Unlock() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.held {
		panic("iolock: unlock of an unlocked Mutex")
	}
	m.held = false
	m.free.Signal()
}
