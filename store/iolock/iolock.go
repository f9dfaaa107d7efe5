// SPDX-License-Identifier: Apache-2.0

// Package iolock implements a mutex for locks that are held during disk or network I/O.
package iolock

import "sync"

// Mutex is a mutex for locks that are held during I/O. The zero Mutex is unlocked.
type Mutex struct {
	mu   sync.Mutex // guards the fields below
	free sync.Cond
	held bool
}

// Lock locks the mutex, and blocks until it is available.
func (m *Mutex) Lock() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.free.L = &m.mu
	for m.held {
		m.free.Wait()
	}
	m.held = true
}

// TryLock locks the mutex if it is unlocked, and reports whether it did.
func (m *Mutex) TryLock() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held {
		return false
	}
	m.held = true
	return true
}

// Unlock unlocks the mutex and wakes one waiting goroutine. It panics if the mutex is unlocked.
func (m *Mutex) Unlock() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.held {
		panic("iolock: unlock of an unlocked Mutex")
	}
	m.held = false
	m.free.Signal()
}
