// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	hraft "github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/internal/dupdetect"
	"github.com/lockstep-mq/lockstep/failover/coordinator/internal/latest"
)

const (
	transferPauseMin = time.Second
	transferPauseMax = time.Minute
	barrierPause     = 10 * time.Millisecond
)

// errNotLeader: the request had no effect, because this voter does not lead, or is not ready yet.
var errNotLeader = errors.New("this voter is not the leader")

type leadership struct {
	began time.Time
	term  uint64        // raft's
	ready chan struct{} // closed when everything committed before is applied
	gone  chan struct{} // closed when the period has ended
	live  *latest.Value[liveness]
}

// liveness contains the processes announced to this leader. They are hints, and therefore not in the log.
type liveness struct {
	runs []run // never changed in place
	seq  int64 // of the last announcement
	// settled is false until a new leader has had enough time to receive a renewal from every live process.
	settled bool
}

type run struct {
	live        failover.Live
	first, last int64 // sequence numbers of its announcements
	until       time.Time
}

func (v *Voter) followLeadership(ctx context.Context) {
	var done chan struct{}
	end := func() {
		if l := v.leading.Swap(nil); l != nil {
			close(l.gone)
			<-done
		}
	}
	defer end()
	for {
		select {
		case <-ctx.Done():
			return
		case leads := <-v.notify:
			end()
			if !leads {
				continue
			}
			l := &leadership{
				began: time.Now(), term: v.raft.CurrentTerm(), ready: make(chan struct{}), gone: make(chan struct{}),
				live: latest.New(liveness{}),
			}
			done = make(chan struct{})
			v.leading.Store(l)
			v.wg.Go(func() {
				defer close(done)
				v.lead(ctx, l)
			})
		}
	}
}

func (v *Voter) lead(ctx context.Context, l *leadership) {
	for {
		// Entries committed by a former leader may not have been applied here yet.
		if err := wait(ctx, v.raft.Barrier(0)); err == nil {
			break
		}
		select {
		case <-l.gone:
			return
		case <-ctx.Done():
			return
		case <-time.After(barrierPause):
		}
	}
	close(l.ready)
	tick := time.NewTicker(min(fastPollInterval, v.opts.LeaseTTL/8))
	defer tick.Stop()
	for {
		v.expire(l)
		v.preferWitness(ctx, l)
		select {
		case <-l.gone:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (v *Voter) expire(l *leadership) {
	now := time.Now()
	l.live.Update(func(s *liveness) bool {
		changed := false
		if !s.settled && now.Sub(l.began) >= v.opts.LeaseTTL/2 { // live processes renew three times per lease
			s.settled, changed = true, true
		}
		if slices.ContainsFunc(s.runs, func(r run) bool { return now.After(r.until) }) {
			s.runs = slices.DeleteFunc(slices.Clone(s.runs), func(r run) bool { return now.After(r.until) })
			changed = true
		}
		return changed
	})
}

func (s liveness) with(l failover.Live, until time.Time) liveness {
	s.seq++
	now := run{live: l, first: s.seq, last: s.seq, until: until}
	for _, r := range s.runs {
		if r.live.Node.ID == l.Node.ID && r.live.Process == l.Process {
			now.first = r.first
		}
	}
	s = s.without(l) // a copy of the slice
	s.runs = append(s.runs, now)
	return s
}

func (s liveness) without(l failover.Live) liveness {
	s.runs = slices.DeleteFunc(slices.Clone(s.runs), func(r run) bool {
		return r.live.Node.ID == l.Node.ID && r.live.Process == l.Process
	})
	return s
}

// lives returns the nodes, sorted. Of two processes under one ID, the one announced last wins.
func (s liveness) lives() []failover.Live {
	newest := make(map[uuid.UUID]run, len(s.runs))
	for _, r := range s.runs {
		if have, ok := newest[r.live.Node.ID]; !ok || r.first > have.first {
			newest[r.live.Node.ID] = r
		}
	}
	out := make([]failover.Live, 0, len(newest))
	for _, r := range newest {
		out = append(out, r.live)
	}
	return sorted(out)
}

func (s liveness) entries() []dupdetect.Entry {
	out := make([]dupdetect.Entry, 0, len(s.runs))
	for _, r := range s.runs {
		out = append(out, dupdetect.Entry{Live: r.live, Seq: r.last})
	}
	return out
}

func sorted(lives []failover.Live) []failover.Live {
	slices.SortFunc(lives, func(a, b failover.Live) int { return bytes.Compare(a.Node.ID[:], b.Node.ID[:]) })
	return lives
}

// preferWitness transfers the leadership to a healthy witness, so that the swap after the loss of a node does not have
// to wait for an election.
func (v *Voter) preferWitness(ctx context.Context, l *leadership) {
	if v.opts.Kind == KindWitness {
		return
	}
	to, ok := v.healthyWitness()
	if !ok {
		return
	}
	v.mu.Lock()
	t := &v.transfer
	if time.Since(t.last) > transferPauseMax { // the last transfer was stable
		t.pause = 0
	}
	due := time.Since(t.last) >= t.pause
	if due {
		t.last, t.pause = time.Now(), min(max(2*t.pause, transferPauseMin), transferPauseMax)
	}
	v.mu.Unlock()
	if !due {
		return
	}
	if err := wait(ctx, v.raft.LeadershipTransferToServer(to.ID, to.Address)); err != nil {
		v.log.Debug("witness does not take over leadership", zap.Error(err))
		return
	}
	select { // whether or not the witness became leader, this voter no longer is
	case <-l.gone:
	case <-ctx.Done():
	case <-time.After(v.opts.ElectionTimeout):
	}
}

func (v *Voter) healthyWitness() (hraft.Server, bool) {
	for _, s := range v.servers() {
		id := string(s.ID)
		if kindOf(id) != KindWitness || s.Suffrage != hraft.Voter ||
			time.Since(v.trans.lastContact(id)) > v.opts.ElectionTimeout {
			continue
		}
		v.mu.Lock()
		h, ok := v.heard[string(s.Address)]
		v.mu.Unlock()
		if ok && h.hello.Status.ID == id && !h.hello.Stalled && time.Since(h.at) < slowPollInterval+v.opts.RequestTimeout &&
			h.hello.Status.LastIndex+snapshotSlack >= v.raft.LastIndex() {
			return s, true
		}
	}
	return hraft.Server{}, false
}

// snapshotSlack is the number of entries that a witness may lack: raft sends them before the transfer.
const snapshotSlack = 32

// wait waits for a raft future, or until ctx ends. Futures do not support contexts; each ends at the latest when this
// voter loses the leadership, or stops.
func wait(ctx context.Context, f hraft.Future) error {
	done := make(chan error, 1)
	go func() { done <- f.Error() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
