// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/internal/dupdetect"
)

var errUncertain = errors.New("outcome is unknown")

// service is the leader's interface. The leader's process calls it directly, the other voters call it through the API.
// errNotLeader means that the request had no effect and must be sent to another voter.
type service interface {
	load(ctx context.Context) (state, error)
	swap(ctx context.Context, c command) (int64, error)
	mark(ctx context.Context, m failover.Mark) (before failover.Mark, err error)
	renew(ctx context.Context, l failover.Live) (time.Duration, error)
	withdraw(ctx context.Context, l failover.Live) error
	watch(ctx context.Context, see func(watchMessage)) error
	members(ctx context.Context) ([]Member, error)
	changeMembers(ctx context.Context, c change) (Member, error)
}

type watchMessage struct {
	Revision int64           `json:"revision"`
	Record   json.RawMessage `json:"record,omitempty"` // nil: no record
	Live     []failover.Live `json:"live"`
	// Processes are all announced processes; nil from a leader of 0.1.0. Their sequence numbers are only comparable within
	// the same LeaderEpoch.
	Processes   []dupdetect.Entry `json:"runs"`
	LeaderEpoch uint64            `json:"reign"`
	// Settled reports whether every live process has had time to announce itself to a new leader.
	Settled bool `json:"settled"`
}

var _ service = (*Voter)(nil)

func (v *Voter) readyToLead(ctx context.Context) (*leadership, error) {
	l := v.leading.Load()
	if l == nil {
		return nil, errNotLeader
	}
	select {
	case <-l.ready:
		return l, nil
	case <-l.gone:
		return nil, errNotLeader
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: not ready: %w", errNotLeader, context.Cause(ctx))
	}
}

// confirmed waits until a majority has confirmed this voter's leadership by accepting messages sent after the call.
func (v *Voter) confirmed(ctx context.Context) (*leadership, error) {
	l, err := v.readyToLead(ctx)
	if err != nil {
		return nil, err
	}
	err = v.awaitMajority(ctx, l, "")
	switch {
	case errors.Is(err, errTooFew):
		return nil, fmt.Errorf("%w: %w", errNotLeader, err)
	case err != nil:
		return nil, err
	default:
		return l, nil
	}
}

var errTooFew = errors.New("no majority responds")

// awaitMajority waits until a majority of the voters has accepted a message that was sent after the call. The leader
// counts as one; a voter with the ID `without` does not count. It returns errTooFew if ctx ends first or the disk of
// the leader is stalled, and errNotLeader if the leadership ends.
//
// When it returns nil, no newer leader had committed an entry when the call began. The library's VerifyLeader does
// not prove this.
func (v *Voter) awaitMajority(ctx context.Context, l *leadership, without string) error {
	if v.stalled() { // nothing is sent, and the library does not accept a call
		return fmt.Errorf("%w: %w", errTooFew, errDiskStalled)
	}
	after := v.trans.lastBegun()
	v.raft.VerifyLeader() // sends heartbeats immediately
	for {
		ids, more := v.trans.acceptedAfter(l.term, after)
		well, all := 0, 0
		for _, s := range v.servers() {
			if string(s.ID) == without || s.Suffrage != hraft.Voter {
				continue
			}
			all++
			if ids[s.ID] || string(s.ID) == v.disk.id {
				well++
			}
		}
		if well > all/2 {
			return nil
		}
		select {
		case <-more:
		case <-l.gone:
			return errNotLeader
		case <-ctx.Done():
			return fmt.Errorf("%w: %d of %d voters: %w", errTooFew, well, all, context.Cause(ctx))
		}
	}
}

func (v *Voter) load(ctx context.Context) (state, error) {
	if _, err := v.confirmed(ctx); err != nil {
		return state{}, err
	}
	// This state includes every result that was returned to a client before this call: this leader responds only after
	// it has applied an entry, and its barrier covers earlier leaders.
	return v.fsm.now.Get(), nil
}

func (v *Voter) swap(ctx context.Context, c command) (int64, error) {
	if _, err := v.readyToLead(ctx); err != nil {
		return 0, err
	}
	out, err := v.apply(ctx, c)
	switch {
	case err != nil:
		return 0, err
	case out.conflict:
		return 0, failover.ErrConflict
	default:
		return out.revision, nil
	}
}

// featureMark is the feature name for commands with a mark, sent in hellos.
const featureMark = "mark"

// mark implements service. A voter of an older release ignores an entry with a mark. The first mark is therefore
// rejected until all voters have announced support. A mark in the log proves that all voters support marks, even
// while one of them is not running.
func (v *Voter) mark(ctx context.Context, m failover.Mark) (failover.Mark, error) {
	if _, err := v.readyToLead(ctx); err != nil {
		return failover.Mark{}, err
	}
	now := v.fsm.now.Get()
	if now.Mark != nil && !now.Mark.Less(m) {
		return *now.Mark, nil // an applied mark is committed, and therefore durable
	}
	if now.Mark == nil {
		if err := v.checkFeature(featureMark); err != nil {
			return failover.Mark{}, err
		}
	}
	out, err := v.apply(ctx, command{Mark: &m})
	return out.before, err
}

func (v *Voter) checkFeature(feature string) error {
	servers := v.servers()
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range servers {
		if string(s.ID) == v.disk.id {
			continue
		}
		h, ok := v.hellos[string(s.Address)]
		switch {
		case !ok || h.hello.Status.ID != string(s.ID):
			return fmt.Errorf("%w: voter at %s has not announced its features yet", failover.ErrRefused,
				s.Address)
		case !slices.Contains(h.hello.Features, feature):
			return fmt.Errorf("%w: voter at %s has an older release: upgrade it", failover.ErrRefused, s.Address)
		}
	}
	return nil
}

func (v *Voter) apply(ctx context.Context, c command) (swapped, error) {
	entry, err := json.Marshal(c)
	if err != nil {
		return swapped{}, fmt.Errorf("encode log entry: %w", err)
	}
	f := v.raft.Apply(entry, v.opts.RequestTimeout)
	err = v.wait(ctx, f)
	switch {
	case errors.Is(err, hraft.ErrNotLeader), errors.Is(err, hraft.ErrLeadershipTransferInProgress),
		errors.Is(err, hraft.ErrEnqueueTimeout):
		return swapped{}, fmt.Errorf("%w: %w", errNotLeader, err) // raft has not accepted the entry
	case err != nil:
		return swapped{}, fmt.Errorf("%w: %w", errUncertain, err)
	}
	out, ok := f.Response().(swapped)
	switch {
	case !ok:
		return swapped{}, fmt.Errorf("%w: unexpected raft response %T", errUncertain, f.Response())
	case out.err != nil:
		return swapped{}, fmt.Errorf("%w: %w", failover.ErrRefused, out.err)
	default:
		return out, nil
	}
}

// renew implements service. A majority must confirm this leader before the lease is renewed.
func (v *Voter) renew(ctx context.Context, live failover.Live) (time.Duration, error) {
	l, err := v.confirmed(ctx)
	if err != nil {
		return 0, err
	}
	until := time.Now().Add(v.opts.LeaseTTL)
	l.live.Update(func(s *liveness) bool {
		before := s.lives()
		processes := len(s.processes)
		*s = s.with(live, until)
		return len(s.processes) != processes || !slices.Equal(before, s.lives())
	})
	return v.opts.LeaseTTL, nil
}

func (v *Voter) withdraw(ctx context.Context, live failover.Live) error {
	l, err := v.readyToLead(ctx)
	if err != nil {
		return err
	}
	l.live.Update(func(s *liveness) bool {
		*s = s.without(live)
		return true
	})
	return nil
}

// watch implements service. It ends with errNotLeader when the leadership ends. Messages are repeated as heartbeats.
func (v *Voter) watch(ctx context.Context, see func(watchMessage)) error {
	l, err := v.confirmed(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	records, lives := v.fsm.now.Watch(ctx), l.live.Watch(ctx)
	alive := time.NewTicker(v.opts.RequestTimeout / 4)
	defer alive.Stop()
	for {
		s, live := v.fsm.now.Get(), l.live.Get()
		see(watchMessage{
			Revision: s.at(), Record: s.Record, Live: live.lives(), Processes: live.entries(), LeaderEpoch: l.term,
			Settled: live.settled,
		})
		select {
		case <-records:
		case <-lives:
		case <-alive.C:
		case <-l.gone:
			return errNotLeader
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (v *Voter) members(ctx context.Context) ([]Member, error) {
	if _, err := v.confirmed(ctx); err != nil {
		return nil, err
	}
	return v.Status().Voters, nil
}
