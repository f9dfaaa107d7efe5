// SPDX-License-Identifier: Apache-2.0

package client

// fifo is a queue in a ring buffer that grows on demand. The zero value is empty.
type fifo[T any] struct {
	ring []T // length is 0 or a power of two
	head int
	n    int
}

func (f *fifo[T]) len() int { return f.n }

// at returns a pointer to the i-th element, 0 being the oldest. The pointer is valid until the next change of the
// fifo.
func (f *fifo[T]) at(i int) *T { return &f.ring[(f.head+i)&(len(f.ring)-1)] }

func (f *fifo[T]) push(v T) {
	f.grow()
	f.n++
	*f.at(f.n - 1) = v
}

func (f *fifo[T]) pushFirst(v T) {
	f.grow()
	f.head = (f.head - 1) & (len(f.ring) - 1)
	f.n++
	*f.at(0) = v
}

func (f *fifo[T]) grow() {
	if f.n < len(f.ring) {
		return
	}
	ring := make([]T, max(16, 2*len(f.ring)))
	for i := range f.n {
		ring[i] = *f.at(i)
	}
	f.ring, f.head = ring, 0
}

func (f *fifo[T]) pop() T {
	p := f.at(0)
	v := *p
	var zero T
	*p = zero // releases its references
	f.head = (f.head + 1) & (len(f.ring) - 1)
	f.n--
	return v
}

func (f *fifo[T]) popLast() T {
	p := f.at(f.n - 1)
	v := *p
	var zero T
	*p = zero
	f.n--
	return v
}

func (f *fifo[T]) clear() { *f = fifo[T]{} }
