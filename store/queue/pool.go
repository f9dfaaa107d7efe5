// SPDX-License-Identifier: Apache-2.0

package queue

const maxPooled = 64

// pool keeps a few chunks for reuse, since many chunks live only for a few messages or acknowledgements.
type pool[T any] struct{ free []*T }

func (p *pool[T]) get() *T {
	n := len(p.free)
	if n == 0 {
		return new(T)
	}
	c := p.free[n-1]
	p.free = p.free[:n-1]
	return c
}

func (p *pool[T]) put(c *T) {
	if c == nil || len(p.free) >= maxPooled {
		return
	}
	*c = *new(T)
	p.free = append(p.free, c)
}
