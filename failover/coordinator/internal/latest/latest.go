// SPDX-License-Identifier: Apache-2.0

// Package latest distributes the newest version of a value to any number of readers. A slow reader skips versions, and
// does not block the writer.
package latest

import (
	"context"
	"sync"
)

// Value is a value with watchers.
type Value[T any] struct {
	mu      sync.Mutex // guards the fields below
	v       T
	changed chan struct{}
}

// New returns a Value that contains v.
func New[T any](v T) *Value[T] { return &Value[T]{v: v, changed: make(chan struct{})} }

// Get returns the current value. Its slices, maps and pointers are shared, and their data must not be modified.
func (l *Value[T]) Get() T {
	v, _ := l.get()
	return v
}

func (l *Value[T]) get() (T, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.v, l.changed
}

// Update calls f with the lock held, and wakes the watchers if f returns true. f must not block, must not call methods
// of l, and must replace slices, maps and pointers instead of modifying their data.
func (l *Value[T]) Update(f func(*T) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f(&l.v) {
		close(l.changed)
		l.changed = make(chan struct{})
	}
}

// Watch returns a channel that receives the current value, and the latest one after each change. The channel is closed
// when ctx ends.
func (l *Value[T]) Watch(ctx context.Context) <-chan T {
	out := make(chan T)
	go func() {
		defer close(out)
		for {
			v, changed := l.get()
			select {
			case out <- v:
				select {
				case <-changed:
				case <-ctx.Done():
					return
				}
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}
