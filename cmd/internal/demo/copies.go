// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/rolling"
)

// sampleEvery is how often the nodes are asked how many copies there are.
const sampleEvery = 20 * time.Millisecond

// copies adds up the time in which the active acknowledged with fewer than two copies: when it says that fewer than two
// nodes are in sync. Between two samples it was as the later one says.
type copies struct {
	mu       sync.Mutex // guards all below
	last     time.Time
	excepted bool          // since a kill, until the pair is in sync again
	ended    time.Time     // when that was over last: a sample that was begun before may tell of what was before
	planned  time.Duration // with fewer than two copies, in time that is not excepted
	killed   time.Duration // the same in time that is
	samples  int
	snapshot rolling.Snapshot
	changed  chan struct{} // closed and replaced with each sample
}

func newCopies() *copies { return &copies{last: time.Now(), changed: make(chan struct{})} }

// watch samples until ctx ends.
func (s *copies) watch(ctx context.Context, c *client.Client, addresses []string) {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for ctx.Err() == nil {
		began := time.Now()
		if snap := rolling.Look(ctx, c, addresses); ctx.Err() == nil {
			s.observeSince(began, snap)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// observe takes a sample into account that was taken in no time.
func (s *copies) observe(snap rolling.Snapshot) { s.observeSince(snap.At, snap) }

// observeSince takes a sample into account: the nodes were asked from a time on.
func (s *copies) observeSince(began time.Time, snap rolling.Snapshot) {
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
	// While no node is active nothing is acknowledged.
	if snap.Active != "" && inSync < 2 {
		if s.excepted || began.Before(s.ended) {
			s.killed += since
		} else {
			s.planned += since
		}
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// except begins, or ends, the time that is counted apart.
func (s *copies) except(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.excepted = on
	if !on {
		s.ended = time.Now()
	}
}

// now returns the last sample, and a channel that is closed with the next one.
func (s *copies) now() (rolling.Snapshot, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshot, s.changed
}

// totals of the time with fewer than two copies.
func (s *copies) totals() (planned, killed time.Duration, samples int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.planned, s.killed, s.samples
}
