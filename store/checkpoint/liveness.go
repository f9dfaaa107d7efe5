// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"fmt"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/queue"
)

// Liveness determines the messages of an extent that at least one subscription needs.
type Liveness struct {
	view func(fn func(*queue.State))
}

// NewLiveness returns the Liveness of a state. view calls its argument with the state, which does not change during the
// call.
func NewLiveness(view func(fn func(*queue.State))) Liveness {
	return Liveness{view: view}
}

// Messages returns the number of messages that at least one subscription needs.
func (l *Liveness) Messages() (n uint64) {
	l.view(func(state *queue.State) { n = state.Messages() })
	return n
}

// Applied returns the LSN of the last record applied to the state.
func (l *Liveness) Applied() (n uint64) {
	l.view(func(state *queue.State) { n = state.Applied() })
	return n
}

// Holds reports whether other has the same digest, number of messages and applied LSN as the state of l.
func (l *Liveness) Holds(other *queue.State) (same bool) {
	l.view(func(state *queue.State) {
		same = other.Digest() == state.Digest() && other.Messages() == state.Messages() &&
			other.Applied() == state.Applied()
	})
	return same
}

// AliveSet is the set of the sequences of an extent that at least one subscription needs.
type AliveSet struct {
	first uint64
	bits  [queue.MaxExtentSpan / 64]uint64
	n     uint64

	entry *index.Entry
	err   error
	fill  func(*queue.State) // AliveSet.fillFrom, created once because a method value is an allocation
}

// Count returns the number of sequences in the set.
func (a *AliveSet) Count() uint64 { return a.n }

// Has reports whether a sequence is in the set.
func (a *AliveSet) Has(seq uint64) bool {
	i := seq - a.first
	return i < queue.MaxExtentSpan && a.bits[i/64]>>(i%64)&1 == 1
}

// Of sets a to the sequences of an extent that at least one subscription needs. It returns index.ErrDataLoss if the
// index entry is invalid or its queue does not exist.
func (l *Liveness) Of(e *index.Entry, a *AliveSet) error {
	if e.Span > queue.MaxExtentSpan {
		return fmt.Errorf("%w: queue %d, sequence %d: extent spans %d sequences", index.ErrDataLoss, e.Queue, e.First,
			e.Span)
	}
	if a.fill == nil {
		a.fill = a.fillFrom
	}
	clear(a.bits[:(e.Span+63)/64])
	a.first, a.n, a.entry, a.err = e.First, 0, e, nil
	l.view(a.fill)
	a.entry = nil
	return a.err
}

func (a *AliveSet) fillFrom(state *queue.State) {
	e := a.entry
	q := state.Queue(e.Queue)
	if q == nil {
		a.err = fmt.Errorf("%w: page %d belongs to missing queue %d", index.ErrDataLoss, e.Extent.First, e.Queue)
		return
	}
	end := min(e.First+e.Span, q.NextSequence())
	for seq := q.NextAlive(e.First); seq < end; seq = q.NextAlive(seq + 1) {
		a.bits[(seq-e.First)/64] |= 1 << ((seq - e.First) % 64)
		a.n++
	}
}
