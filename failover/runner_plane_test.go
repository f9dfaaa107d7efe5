// SPDX-License-Identifier: Apache-2.0

package failover_test

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// hub is the network between planes.
type hub struct {
	mu     sync.Mutex // guards everything in the hub and in its planes
	planes map[string]*plane
	marks  bool // actives report their committed position
}

// plane is a data plane without data: connections, fences and roles are realistic, but logs have no records.
type plane struct {
	hub   *hub
	addr  string
	file  *os.File // the fence is synced, for realistic timing
	dead  bool
	drain error

	id       failover.Identity
	active   *failover.ActiveSpec
	follow   *failover.FollowSpec
	post     func(failover.DataEvent)
	peer     *plane // connected
	calls    []string
	started  time.Time // of the last StartActive
	lostPost time.Time // when FollowerLost{Refused} was posted
}

func (p *plane) addCall(call string) { p.calls = append(p.calls, call) }

func (p *plane) Identity() failover.Identity {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	return p.id
}

func (p *plane) JoinPair(_ context.Context, pair uuid.UUID) error {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	p.id.PairID = pair
	p.addCall("join")
	return nil
}

func (p *plane) SetFence(_ context.Context, f failover.Fence) error {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	if !p.id.Fence.Less(f) {
		return nil
	}
	p.id.Fence = f
	p.addCall("fence")
	if _, err := p.file.WriteAt([]byte(f.String()), 0); err != nil {
		return err
	}
	return p.file.Sync()
}

func (p *plane) ClearLoss(context.Context) error {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	p.id.MayHaveLost = false
	p.id.Incarnation++
	p.addCall("clear-loss")
	return nil
}

func (p *plane) MarkLoss(context.Context) error {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	p.id.MayHaveLost = true
	p.addCall("mark-loss")
	return nil
}

func (p *plane) ClaimGeneration(_ context.Context, named, run uuid.UUID) error {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	p.id.Generation, p.id.ClaimedGeneration = named, run
	return nil
}

func (p *plane) ConfirmGeneration(_ context.Context, run uuid.UUID) error {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	p.id.Generation, p.id.ClaimedGeneration = run, uuid.Nil
	return nil
}

func (p *plane) Committed() (lsn.Position, bool) {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	return p.id.End, p.hub.marks && p.active != nil
}

// Handshake implements failover.DataPlane. A killed plane does not listen.
func (p *plane) Handshake(_ context.Context, address string) (failover.Peer, error) {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	for _, o := range p.hub.planes {
		if o.addr == address && !o.dead {
			return failover.Peer{Node: o.id.Node, Store: o.id.Store, Process: "another", End: o.id.End}, nil
		}
	}
	return failover.Peer{}, failover.ErrGone
}

func (p *plane) StartActive(_ context.Context, spec failover.ActiveSpec, post func(failover.DataEvent)) error {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	p.active, p.post, p.started = &spec, post, time.Now()
	p.id.End = lsn.Position{Term: spec.Term, LSN: p.id.End.LSN + 1}
	p.addCall("start-active")
	post(failover.ActiveReady{})
	p.hub.connectAll()
	return nil
}

func (p *plane) ConfigureActive(_ context.Context, cfg failover.ActiveConfig) error {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	if p.dead {
		return nil // killed, but the runner has not ended yet
	}
	p.active.ActiveConfig = cfg
	if f := (failover.Fence{Config: cfg.Config, Term: p.active.Term}); p.peer != nil && p.peer.id.Fence.Less(f) {
		p.peer.id.Fence = f // with the next heartbeat
	}
	if p.peer != nil && cfg.RequireStandby && cfg.Standby == p.peer.id.Member() {
		p.post(failover.StandbySynced{Member: cfg.Standby, Requirement: cfg.Requirement})
	}
	return nil
}

func (p *plane) StopActive(context.Context, failover.NodeInfo) error {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	p.addCall("stop-active")
	p.hub.disconnect(p, failover.LostReset)
	p.active, p.post = nil, nil
	p.hub.connectAll()
	return nil
}

func (p *plane) StartFollower(_ context.Context, spec failover.FollowSpec, post func(failover.DataEvent)) error {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	p.follow, p.post = &spec, post
	p.addCall("start-follower")
	p.hub.connectAll()
	return nil
}

func (p *plane) StopFollower(context.Context) error {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	p.addCall("stop-follower")
	p.hub.disconnect(p, failover.LostReset)
	p.follow, p.post = nil, nil
	return nil
}

func (p *plane) Drain(ctx context.Context) (lsn.Position, error) {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	p.addCall("drain")
	if p.drain != nil {
		return lsn.Position{}, p.drain
	}
	return p.id.End, ctx.Err()
}

func (p *plane) Resume(context.Context) error {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	p.addCall("resume")
	return nil
}

// connectAll connects followers to actives, and reports the reason to those that cannot connect. mu is held, here and
// in the functions below.
func (h *hub) connectAll() {
	for _, f := range h.planes {
		if f.follow == nil || f.peer != nil || f.dead {
			continue
		}
		a := h.planes[f.follow.Active.Address]
		switch {
		case a == nil || a.dead:
			f.lost(failover.LostRefused)
		case a.active == nil || a.peer != nil || !f.id.Fence.Admits(a.active.Config, a.active.Term):
			f.lost(failover.LostRejected)
		default:
			f.peer, a.peer = a, f
			f.id.End = a.id.End
			f.id.Fence = failover.Fence{Config: a.active.Config, Term: a.active.Term}
			f.post(failover.FollowerConnected{Config: a.active.Config, Term: a.active.Term})
			a.post(failover.StandbyConnected{Member: f.id.Member()})
			a.post(failover.StandbyCaughtUp{Member: f.id.Member()})
		}
	}
}

func (p *plane) lost(cause failover.LostCause) {
	if cause == failover.LostRefused {
		p.lostPost = time.Now()
	}
	p.post(failover.FollowerLost{Cause: cause})
}

// disconnect ends p's connection and notifies both sides, unless they were killed.
func (h *hub) disconnect(p *plane, cause failover.LostCause) {
	o := p.peer
	if o == nil {
		return
	}
	p.peer, o.peer = nil, nil
	for _, x := range []*plane{p, o} {
		switch {
		case x.dead || x.post == nil:
		case x.follow != nil:
			x.lost(cause)
		default:
			other := o
			if x == o {
				other = p
			}
			x.post(failover.StandbyLost{Node: other.id.Node, Cause: cause})
		}
	}
}

// config returns the active's configuration.
func (p *plane) config() (failover.ActiveConfig, bool) {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	if p.active == nil {
		return failover.ActiveConfig{}, false
	}
	return p.active.ActiveConfig, true
}
