// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"fmt"
	"sync"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/queue"
)

// Liveness determines the messages of an extent that a subscription needs.
type Liveness struct {
	state *queue.State
	lock  sync.Locker // held during access to the state
}

// NewLiveness returns the Liveness of a state that is guarded by lock.
func NewLiveness(state *queue.State, lock sync.Locker) Liveness {
	return Liveness{state: state, lock: lock}
}

// Messages returns the number of messages that a subscription needs.
func (l *Liveness) Messages() uint64 {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.state.Messages()
}

// Applied returns the LSN of the last record applied to the state.
func (l *Liveness) Applied() uint64 {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.state.Applied()
}

// Holds reports whether another state has the same content.
func (l *Liveness) Holds(other *queue.State) bool {
	l.lock.Lock()
	defer l.lock.Unlock()
	return other.Digest() == l.state.Digest() && other.Messages() == l.state.Messages() &&
		other.Applied() == l.state.Applied()
}

type noLock struct{}

func (noLock) Lock()   {}
func (noLock) Unlock() {}

// AliveSet has a bit for each sequence of an extent that a subscription needs.
type AliveSet struct {
	first uint64
	bits  [queue.MaxRunSpan / 64]uint64
	n     uint64
}

// Count returns the number of sequences in the set.
func (a *AliveSet) Count() uint64 { return a.n }

// Has reports whether a sequence is in the set.
func (a *AliveSet) Has(seq uint64) bool {
	i := seq - a.first
	return i < queue.MaxRunSpan && a.bits[i/64]>>(i%64)&1 == 1
}

// Of sets a to the live messages of an extent. It returns ErrDataLoss if the index entry is invalid.
func (l *Liveness) Of(e *index.Entry, a *AliveSet) error {
	if e.Span > queue.MaxRunSpan {
		return fmt.Errorf("%w: queue %d, sequence %d: a range of %d sequences", index.ErrDataLoss, e.Queue, e.First,
			e.Span)
	}
	clear(a.bits[:(e.Span+63)/64])
	a.first, a.n = e.First, 0
	l.lock.Lock()
	defer l.lock.Unlock()
	q := l.state.Queue(e.Queue)
	if q == nil {
		return fmt.Errorf("%w: page %d belongs to missing queue %d", index.ErrDataLoss, e.Run.First,
			e.Queue)
	}
	end := min(e.First+e.Span, q.NextSequence())
	for seq := q.NextAlive(e.First); seq < end; seq = q.NextAlive(seq + 1) {
		a.bits[(seq-e.First)/64] |= 1 << ((seq - e.First) % 64)
		a.n++
	}
	return nil
}
