// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/progress"
)

const sampleEvery = 20 * time.Millisecond

// copies measures the time in which the active reports fewer than two nodes in sync, and therefore acknowledges
// messages with fewer than two copies. The time between two samples is attributed to the state of the later one.
type copies struct {
	mu       sync.Mutex // guards all fields below
	last     time.Time
	excepted bool          // set from a kill until the pair is in sync again
	ended    time.Time     // end of the last excepted period: a sample that began earlier may show the previous state
	planned  time.Duration // with fewer than two copies, outside excepted periods
	killed   time.Duration // the same, during excepted periods
	samples  int
	snapshot progress.Snapshot
	changed  chan struct{} // closed and replaced on each sample
}

func newCopies() *copies { return &copies{last: time.Now(), changed: make(chan struct{})} }

func (s *copies) watch(ctx context.Context, c *client.Client, addresses []string) {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for ctx.Err() == nil {
		start := time.Now()
		if snap := progress.Poll(ctx, c, addresses); ctx.Err() == nil {
			s.observeSince(start, snap)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// observeSince adds a sample. start is the time at which the nodes were queried.
func (s *copies) observeSince(start time.Time, snap progress.Snapshot) {
	inSync := 0
	for _, n := range snap.Nodes[snap.Active].GetPair().GetNodes() {
		if n.GetInSync() {
			inSync++
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	since := snap.At.Sub(s.last)
	s.last, s.snapshot = snap.At, snap
	s.samples++
	// Without an active node, no messages are acknowledged.
	if snap.Active != "" && inSync < 2 {
		if s.excepted || start.Before(s.ended) {
			s.killed += since
		} else {
			s.planned += since
		}
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *copies) except(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.excepted = on
	if !on {
		s.ended = time.Now()
	}
}

// now returns the last sample, and a channel that is closed on the next sample.
func (s *copies) now() (progress.Snapshot, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshot, s.changed
}

func (s *copies) totals() (planned, killed time.Duration, samples int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.planned, s.killed, s.samples
}
