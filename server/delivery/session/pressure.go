// SPDX-License-Identifier: Apache-2.0

package session

import (
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// sampleInterval is the minimum time between samples.
	sampleInterval = time.Millisecond
	// sampleWeight is the weight of the newest sample. Pressure starts when the fraction of samples with waiting
	// goroutines reaches highPressure, and ends when it falls below lowPressure.
	sampleWeight, highPressure, lowPressure = 1.0 / 16, 0.25, 0.05
	// idleTime is the time after which publishers count as idle if they commit no transactions.
	idleTime = 250 * time.Millisecond
	// runnable is the number of goroutines that are ready to run and wait for a CPU.
	runnable = "/sched/goroutines/runnable:goroutines"
)

// pressure detects whether publishers need the CPU that deliveries use. They need it if clients other than consumers
// commit transactions and goroutines wait for a CPU.
type pressure struct {
	committed func() uint64 // returns the LSN of the last committed record
	waiting   func() uint64 // returns the number of goroutines that wait for a CPU
	settling  atomic.Int64  // number of transactions of consumers, including uncommitted ones
	is        atomic.Bool   // last result
	next      atomic.Int64  // time of the next sample, in nanoseconds since begin
	begin     time.Time

	mu     sync.Mutex // guards the fields below; while it is locked, other callers use the last result
	others int64      // highest observed number of transactions of other clients
	active time.Time  // last time at which others increased
	waits  float64    // fraction of samples with waiting goroutines, weighted towards the latest
}

func newPressure(committed func() uint64) *pressure {
	sample := []metrics.Sample{{Name: runnable}}
	return &pressure{committed: committed, begin: time.Now(), waiting: func() uint64 {
		metrics.Read(sample)
		if sample[0].Value.Kind() != metrics.KindUint64 {
			return 0 // this Go version does not have the metric
		}
		return sample[0].Value.Uint64()
	}}
}

func (p *pressure) Busy() bool {
	now := time.Now()
	if due := p.next.Load(); int64(now.Sub(p.begin)) >= due && p.mu.TryLock() {
		p.sample(now)
		p.next.Store(int64(now.Sub(p.begin) + sampleInterval))
		p.mu.Unlock()
	}
	return p.is.Load()
}

func (p *pressure) sample(now time.Time) {
	// While transactions of consumers are uncommitted, the difference is too low by at most the number of
	// dispatchers.
	if others := int64(p.committed()) - p.settling.Load(); others > p.others {
		p.others, p.active = others, now
	}
	found := 0.0
	if p.waiting() > 0 {
		found = 1
	}
	p.waits += (found - p.waits) * sampleWeight
	from := highPressure
	if p.is.Load() {
		from = lowPressure
	}
	p.is.Store(p.waits >= from && now.Sub(p.active) < idleTime)
}
