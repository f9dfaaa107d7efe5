// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"fmt"
	"sync"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/queue"
)

// Liveness tells which messages of a run some subscription wants.
type Liveness struct {
	state *queue.State
	lock  sync.Locker // held while the state is looked at
}

// NewLiveness makes one of a state that must not be looked at without the lock.
func NewLiveness(state *queue.State, lock sync.Locker) Liveness {
	return Liveness{state: state, lock: lock}
}

// Messages is how many messages some subscription wants.
func (l *Liveness) Messages() uint64 {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.state.Messages()
}

// Applied is the LSN of the last record that the state holds.
func (l *Liveness) Applied() uint64 {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.state.Applied()
}

// Holds tells whether another state holds the same.
func (l *Liveness) Holds(other *queue.State) bool {
	l.lock.Lock()
	defer l.lock.Unlock()
	return other.Digest() == l.state.Digest() && other.Messages() == l.state.Messages() &&
		other.Applied() == l.state.Applied()
}

type noLock struct{}

func (noLock) Lock()   {}
func (noLock) Unlock() {}

// AliveSet has a bit for each sequence of a run that some subscription wants.
type AliveSet struct {
	first uint64
	bits  [queue.MaxRunSpan / 64]uint64
	n     uint64
}

// Count is how many they are.
func (a *AliveSet) Count() uint64 { return a.n }

// Has tells whether a sequence is among them.
func (a *AliveSet) Has(seq uint64) bool {
	i := seq - a.first
	return i < queue.MaxRunSpan && a.bits[i/64]>>(i%64)&1 == 1
}

// Of fills in a for a run. It returns ErrDataLoss if the index has what cannot be.
func (l *Liveness) Of(e *index.Entry, a *AliveSet) error {
	if e.Span > queue.MaxRunSpan {
		return fmt.Errorf("%w: queue %d, sequence %d: a run of %d sequences", index.ErrDataLoss, e.Queue, e.First,
			e.Span)
	}
	clear(a.bits[:(e.Span+63)/64])
	a.first, a.n = e.First, 0
	l.lock.Lock()
	defer l.lock.Unlock()
	q := l.state.Queue(e.Queue)
	if q == nil {
		return fmt.Errorf("%w: page %d belongs to queue %d, which is not there", index.ErrDataLoss, e.Run.First,
			e.Queue)
	}
	end := min(e.First+e.Span, q.NextSequence())
	for seq := q.NextAlive(e.First); seq < end; seq = q.NextAlive(seq + 1) {
		a.bits[(seq-e.First)/64] |= 1 << ((seq - e.First) % 64)
		a.n++
	}
	return nil
}
