// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"bytes"
	"context"
	"errors"
	"reflect"
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

// errNotLeader is returned if a request had no effect: this voter does not lead, or is not ready yet.
var errNotLeader = errors.New("this voter is not the leader")

type leadership struct {
	began time.Time
	term  uint64        // raft term
	ready chan struct{} // closed when all earlier entries are applied
	gone  chan struct{} // closed when the leadership has ended
	live  *latest.Value[liveness]
}

// liveness contains the processes announced to this leader. It is not in the log.
type liveness struct {
	processes []announced // never changed in place
	seq       int64       // of the last announcement
	// settled is false until every live process has had time to renew its lease at a new leader.
	settled bool
}

type announced struct {
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
		// Entries committed by a former leader may not be applied yet.
		if err := v.wait(ctx, v.raft.Barrier(0)); err == nil {
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
		if slices.ContainsFunc(s.processes, func(r announced) bool { return now.After(r.until) }) {
			s.processes = slices.DeleteFunc(slices.Clone(s.processes), func(r announced) bool { return now.After(r.until) })
			changed = true
		}
		return changed
	})
}

func (s liveness) with(l failover.Live, until time.Time) liveness {
	s.seq++
	now := announced{live: l, first: s.seq, last: s.seq, until: until}
	for _, r := range s.processes {
		if r.live.Node.ID == l.Node.ID && r.live.Process == l.Process {
			now.first = r.first
		}
	}
	s = s.without(l) // a copy of the slice
	s.processes = append(s.processes, now)
	return s
}

func (s liveness) without(l failover.Live) liveness {
	s.processes = slices.DeleteFunc(slices.Clone(s.processes), func(r announced) bool {
		return r.live.Node.ID == l.Node.ID && r.live.Process == l.Process
	})
	return s
}

// lives returns the announced nodes, sorted by ID. If two processes share a node ID, the result contains the process
// announced last.
func (s liveness) lives() []failover.Live {
	newest := make(map[uuid.UUID]announced, len(s.processes))
	for _, r := range s.processes {
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
	out := make([]dupdetect.Entry, 0, len(s.processes))
	for _, r := range s.processes {
		out = append(out, dupdetect.Entry{Live: r.live, Seq: r.last})
	}
	return out
}

func sorted(lives []failover.Live) []failover.Live {
	slices.SortFunc(lives, func(a, b failover.Live) int { return bytes.Compare(a.Node.ID[:], b.Node.ID[:]) })
	return lives
}

// preferWitness transfers the leadership to a healthy witness.
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
	if err := v.wait(ctx, v.raft.LeadershipTransferToServer(to.ID, to.Address)); err != nil {
		v.log.Debug("leadership transfer to the witness failed", zap.Error(err))
		return
	}
	select { // in any case, this voter no longer leads
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
		h, ok := v.hellos[string(s.Address)]
		v.mu.Unlock()
		if ok && h.hello.Status.ID == id && !h.hello.Stalled && time.Since(h.at) < slowPollInterval+v.opts.RequestTimeout &&
			h.hello.Status.LastIndex+snapshotSlack >= v.raft.LastIndex() {
			return s, true
		}
	}
	return hraft.Server{}, false
}

// snapshotSlack is the number of entries that may be missing on a healthy voter: raft sends them before a transfer.
const snapshotSlack = 32

// wait waits for a raft future, or until ctx ends. The future completes at the latest when this voter loses the
// leadership, or stops.
func (v *Voter) wait(ctx context.Context, f hraft.Future) error {
	endWith(f, v.ended)
	done := make(chan error, 1)
	go func() { done <- f.Error() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// endWith makes f.Error return hraft.ErrRaftShutdown when ended is closed, if f has no result by then. It must be
// called before f.Error. At its shutdown, the library does not complete the futures of queued requests and of
// committed entries that it has not applied. It sets this exported field only in its own futures.
func endWith(f hraft.Future, ended chan struct{}) {
	v := reflect.ValueOf(f)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return // an error that is already known
	}
	if field := v.Elem().FieldByName("ShutdownCh"); field.IsValid() && field.CanSet() {
		field.Set(reflect.ValueOf(ended))
	}
}
