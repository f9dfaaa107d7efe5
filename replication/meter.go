// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// Meter receives durations of batches. Its methods are called concurrently and with locks held: they must not block or
// call the role's methods.
type Meter interface {
	// Committed receives the time from the acceptance of a batch's first transaction until the commit.
	Committed(d time.Duration)
	// Acknowledged receives the time from sending a batch until the standby's ack.
	Acknowledged(d time.Duration)
	// Written receives the duration of a log write of one or more batches, including the sync if commits are synced.
	Written(d time.Duration)
}

const (
	// meanWeight is the inverse weight of a new duration in the moving average.
	meanWeight = 8
	meanAge    = 10 * time.Second
	// lagSamples is the number of samples of the log end, and the maximum reported lag in seconds.
	lagSamples = 600
)

type ioClock struct {
	base  time.Time    // monotonic reference of the times below
	since atomic.Int64 // start of the current write; 0 if none
	mean  atomic.Int64 // moving average of the write duration, in nanoseconds
	last  atomic.Int64 // end of the last write
	meter Meter        // may be nil
}

// now returns the nanoseconds since base, and never 0.
func (c *ioClock) now() int64 { return int64(time.Since(c.base)) + 1 }

func (c *ioClock) begin() { c.since.Store(c.now()) }

func (c *ioClock) end() {
	now := c.now()
	took := now - c.since.Swap(0)
	c.last.Store(now)
	mean := c.mean.Load() // single writer
	c.mean.Store(mean + (took-mean)/meanWeight)
	if c.meter != nil {
		c.meter.Written(time.Duration(took))
	}
}

func (c *ioClock) stalled(limit time.Duration) bool {
	since := c.since.Load()
	return since != 0 && c.now()-since > int64(limit)
}

func (c *ioClock) report(was bool, limit time.Duration, log *zap.Logger, events *eventQueue) (stalled bool) {
	stalled = c.stalled(limit)
	switch {
	case stalled && !was:
		log.Error("log disk stalled; heartbeats stopped", zap.Duration("for", limit))
		events.post(DiskStalled{})
	case !stalled && was:
		log.Info("log disk recovered")
		events.post(DiskRecovered{})
	}
	return stalled
}

// DiskStatus is the write performance of a node's log disk.
type DiskStatus struct {
	// Mean is the mean duration of recent writes, including the sync; 0 without recent writes.
	Mean time.Duration
	// Stalled reports whether a write exceeds Tuning.DiskStallTimeout.
	Stalled bool
}

func (c *ioClock) status(limit time.Duration) DiskStatus {
	st := DiskStatus{Stalled: c.stalled(limit)}
	if c.now()-c.last.Load() < int64(meanAge) {
		st.Mean = time.Duration(c.mean.Load())
	}
	return st
}

type pendingBatch struct {
	end   uint64
	since time.Time
}

// recordStarts records the start times of batches to be committed. mu is not held.
func (p *Primary) recordStarts(batches []batch) {
	if p.o.Meter == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range batches {
		p.uncommitted = append(p.uncommitted, pendingBatch{end: batches[i].end.LSN, since: batches[i].began})
	}
}

// measure reports the commit durations of the batches up to LSN n. mu is held.
func (p *Primary) measure(n uint64) {
	if len(p.uncommitted) == 0 {
		return
	}
	now := time.Now()
	done := 0
	for done < len(p.uncommitted) && p.uncommitted[done].end <= n {
		p.o.Meter.Committed(now.Sub(p.uncommitted[done].since))
		done++
	}
	p.uncommitted = append(p.uncommitted[:0], p.uncommitted[done:]...) // only a few remain
}

type endSample struct {
	lsn uint64
	at  time.Time
}

// sampleEnd records the log end once a second, to compute lag as time.
func (p *Primary) sampleEnd(now time.Time, end lsn.Position) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.ends); n > 0 && now.Sub(p.ends[n-1].at) < time.Second {
		return
	}
	if len(p.ends) == lagSamples {
		p.ends = append(p.ends[:0], p.ends[1:]...)
	}
	p.ends = append(p.ends, endSample{end.LSN, now})
}

// lagTime returns the age of the first record after LSN n, with a resolution of one second. mu is held.
func (p *Primary) lagTime(now time.Time, n, end uint64) time.Duration {
	if n >= end {
		return 0
	}
	for i := range p.ends {
		if p.ends[i].lsn > n {
			return now.Sub(p.ends[i].at)
		}
	}
	return 0 // appended within the last second
}

// lagBytes returns the size of the log after LSN n. Outside the memory tail, it is estimated from the mean record size.
func (p *Primary) lagBytes(n, end uint64) uint64 {
	if n >= end {
		return 0
	}
	if bytes, ok := p.tail.behind(n); ok {
		return uint64(max(bytes, 0))
	}
	st, err := p.o.Store.Stats()
	if err != nil || st.End.LSN < st.FirstLSN {
		return 0
	}
	return (end - n) * uint64(max(st.LogBytes, 0)) / (st.End.LSN - st.FirstLSN + 1)
}
