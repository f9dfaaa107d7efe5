// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"sync/atomic"
	"time"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// Meter is told how long things take: once for each batch, and so for many transactions at once when many come. Its
// methods are called under locks, by any goroutine: they must not block, wait or call back.
type Meter interface {
	// Committed: from when the first transaction of a batch was accepted until the batch was committed, on every node
	// that must have it.
	Committed(d time.Duration)
	// Acknowledged: from when a batch was given to the standby's connection until the standby has acknowledged it.
	Acknowledged(d time.Duration)
	// Written: to write a batch, or several that waited together, to this node's log, and to sync it if commits are
	// synced.
	Written(d time.Duration)
}

const (
	// writePace is how much of a new time is taken into the mean that Status tells: one part in so many.
	writePace = 8
	// meanAge is how long a mean says something after the last write.
	meanAge = 10 * time.Second
	// lagSamples are how many seconds a standby's lag can be told in.
	lagSamples = 600
)

// ioClock knows since when a write or sync of the log is under way, and how long they took lately.
type ioClock struct {
	base  time.Time    // that the times below are counted from: the clock on the wall may jump
	since atomic.Int64 // when the one that is under way began; 0 for none
	mean  atomic.Int64 // in nanoseconds
	last  atomic.Int64 // when the last one came back
	meter Meter        // nil for none
}

// now is the time since base, in nanoseconds, and never 0.
func (c *ioClock) now() int64 { return int64(time.Since(c.base)) + 1 }

func (c *ioClock) begin() { c.since.Store(c.now()) }

func (c *ioClock) end() {
	now := c.now()
	took := now - c.since.Swap(0)
	c.last.Store(now)
	mean := c.mean.Load() // one writer at a time
	c.mean.Store(mean + (took-mean)/writePace)
	if c.meter != nil {
		c.meter.Written(time.Duration(took))
	}
}

// stalled tells whether it has been under way for longer than limit.
func (c *ioClock) stalled(limit time.Duration) bool {
	since := c.since.Load()
	return since != 0 && c.now()-since > int64(limit)
}

// DiskStatus tells how a node's log takes what is written to it.
type DiskStatus struct {
	// Mean time of a write with its sync, of the last few; 0 if there was none for some time.
	Mean time.Duration
	// Stalled: one has not come back for longer than Tuning.DiskStallTimeout.
	Stalled bool
}

func (c *ioClock) status(limit time.Duration) DiskStatus {
	st := DiskStatus{Stalled: c.stalled(limit)}
	if c.now()-c.last.Load() < int64(meanAge) {
		st.Mean = time.Duration(c.mean.Load())
	}
	return st
}

// underWay is a batch that is not committed.
type underWay struct {
	end   uint64
	since time.Time
}

// began notes when batches were begun that are about to be committed. mu is not held.
func (p *Primary) began(batches []batch) {
	if p.o.Meter == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range batches {
		p.uncommitted = append(p.uncommitted, underWay{end: batches[i].end.LSN, since: batches[i].began})
	}
}

// measure tells how long the batches up to record n took. mu is held.
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
	p.uncommitted = append(p.uncommitted[:0], p.uncommitted[done:]...) // a few at most
}

// reached is where the log ended at some time.
type reached struct {
	lsn uint64
	at  time.Time
}

// sampleEnd notes, once a second, where the log ends, so that a lag can be told in time.
func (p *Primary) sampleEnd(now time.Time, end lsn.Position) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.ends); n > 0 && now.Sub(p.ends[n-1].at) < time.Second {
		return
	}
	if len(p.ends) == lagSamples {
		p.ends = append(p.ends[:0], p.ends[1:]...)
	}
	p.ends = append(p.ends, reached{end.LSN, now})
}

// lagTime is how long ago the log had, for the first time, a record that a standby at record n lacks, to the second. mu
// is held.
func (p *Primary) lagTime(now time.Time, n, end uint64) time.Duration {
	if n >= end {
		return 0
	}
	for i := range p.ends {
		if p.ends[i].lsn > n {
			return now.Sub(p.ends[i].at)
		}
	}
	return 0 // it came within the last second
}

// lagBytes is how much log a standby at record n lacks: what is in memory is counted, and otherwise it is told by the
// mean size of the records in the log.
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
