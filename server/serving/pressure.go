// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// lookEvery is how often it is looked whether there is pressure, at most: often enough to see a burst of publishes.
	lookEvery = time.Millisecond
	// lookWeight is what part of the opinion the last look is, highPressure from what part on of the looks goroutines
	// had to wait, and lowPressure below which part: less, since deliveries that hold back leave fewer to wait.
	lookWeight, highPressure, lowPressure = 1.0 / 16, 0.25, 0.05
	// quiet is for how long others must have committed nothing to be thought idle: it is many times what one waits on a
	// busy machine.
	quiet = 250 * time.Millisecond
	// runnable is the number of goroutines that could go on if there were a processor for them.
	runnable = "/sched/goroutines/runnable:goroutines"
)

// pressure tells whether publishers want the processors that deliveries use. They do when others than consumers have
// transactions committed, and goroutines wait for a processor: a publisher that waits for the disk or for its
// answer leaves the processors to the consumers.
type pressure struct {
	committed func() uint64 // the last LSN
	waiting   func() uint64 // the goroutines that wait for a processor
	settling  atomic.Int64  // transactions of consumers, those under way as well
	is        atomic.Bool   // the last opinion
	next      atomic.Int64  // when the next look is due, in nanoseconds since begin
	begin     time.Time

	mu     sync.Mutex // guards what is below; a caller that finds it locked takes the last opinion
	others int64      // the most transactions of others that were found
	active time.Time  // when they became more
	waits  float64    // part of the looks that found goroutines waiting, the latest counting most
}

func newPressure(committed func() uint64) *pressure {
	sample := []metrics.Sample{{Name: runnable}}
	return &pressure{committed: committed, begin: time.Now(), waiting: func() uint64 {
		metrics.Read(sample)
		if sample[0].Value.Kind() != metrics.KindUint64 {
			return 0 // a later Go does not know it any more
		}
		return sample[0].Value.Uint64()
	}}
}

// Busy tells it; it is cheap.
func (p *pressure) Busy() bool {
	now := time.Now()
	if due := p.next.Load(); int64(now.Sub(p.begin)) >= due && p.mu.TryLock() {
		p.look(now)
		p.next.Store(int64(now.Sub(p.begin) + lookEvery))
		p.mu.Unlock()
	}
	return p.is.Load()
}

// look forms an opinion. mu is held.
func (p *pressure) look(now time.Time) {
	// While consumers' transactions are under way it is too low, by never more than there are dispatchers.
	if others := int64(p.committed()) - p.settling.Load(); others > p.others {
		p.others, p.active = others, now
	}
	found := 0.0
	if p.waiting() > 0 {
		found = 1
	}
	p.waits += (found - p.waits) * lookWeight
	from := highPressure
	if p.is.Load() {
		from = lowPressure
	}
	p.is.Store(p.waits >= from && now.Sub(p.active) < quiet)
}
