// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/identity"
	"github.com/lockstep-mq/lockstep/store/iolock"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// PrimaryConfig are the conditions under which a primary acknowledges. They follow from the pair's record.
type PrimaryConfig struct {
	// Config that every message to the standby carries (INV-1).
	Config uint64
	// RequireStandby: a transaction is committed only when it is durable here and on Standby (INV-2). False: durable
	// here is enough.
	RequireStandby bool
	// Standby whose acks are required; the zero Member means that nothing can be committed now.
	Standby Member
	// Requirement numbers the times at which acks began to be required; StandbySynced repeats it.
	Requirement uint64
	// Serve is false when no transaction may be acknowledged: new ones and those that wait fail, and the commit LSN
	// stays.
	Serve bool
	// Reason for the errors that callers get while Serve is false.
	Reason string
}

// PrimaryOptions say how to take up the active role.
type PrimaryOptions struct {
	// Store is recovered and only this role appends to it and applies from now on.
	Store *store.Store
	// Term that the log goes on under; never used before, by any node.
	Term uint64
	// Config are the conditions to begin with.
	Config PrimaryConfig
	// Events gets what the owner must know; nil ignores them.
	Events func(Event)
	// Logger gets what an operator should know; nil means none.
	Logger *zap.Logger
	// Meter is told how long things take; nil: nothing is.
	Meter Meter
	// Tracer makes the spans of transactions that are traced; nil: none is.
	Tracer Tracer
	Tuning
}

// Primary is the active role of one node for one term. Its methods may be called from any goroutine.
type Primary struct {
	o       PrimaryOptions
	log     *zap.Logger
	queue   *queue
	tail    *tail
	room    *semaphore.Weighted
	waiters sync.Pool
	events  *eventQueue
	io      ioClock

	// termStart is the LSN of the record that begins the term.
	termStart uint64
	commit    atomic.Uint64
	applied   atomic.Uint64
	applyWake chan struct{}
	// applyTurns is received from by goroutines in Await: one that receives has to apply.
	applyTurns chan struct{}
	// progress is signalled when something that Drain waits for may have happened.
	progress chan struct{}

	stop     context.CancelFunc
	stopped  chan struct{} // closed when Stop begins
	stopOnce sync.Once
	wg       sync.WaitGroup

	snapshots snapshotService

	commitMu    iolock.Mutex // is held while something is appended to the log; guards the two below
	commitEnded bool         // by a failure or by Stop
	batches     []batch

	applyMu    iolock.Mutex // is held while something is applied; guards the two below
	applyEnded bool         // by a failure or by Stop
	ready      bool         // ActiveReady was posted

	mu  sync.Mutex // guards all below; may be locked while one of the two above is held
	cfg PrimaryConfig
	// ended: the role is over, nothing is acknowledged any more.
	ended bool
	// durable is the last record that is durable here.
	durable uint64
	// standbyDurable is the last record that cfg.Standby acknowledged, in any of its sessions.
	standbyDurable uint64
	// syncTarget is the commit LSN at the moment when the acks of cfg.Standby became required.
	syncTarget uint64
	// session of the standby that is connected; nil: none is. peer is what that one has told.
	session *session
	peer    peer
	// toldAhead is the last standby that was refused because it has committed records that this node lacks.
	toldAhead StandbyAhead
	// absentSince is when the required standby was last there, and absentTold whether its absence was reported.
	absentSince time.Time
	absentTold  bool
	// awaited was told that it needs a snapshot and has not come for it since.
	awaited awaitedFetch
	// retained keeps the log for the standby whose session ended last, until retainedEnd; nil: there is none.
	retained    *wal.Hold
	retainedEnd *time.Timer
	// uncommitted batches, oldest first, if there is a meter; ends are samples of where the log ended, oldest first.
	uncommitted []underWay
	// foreign is never changed in place.
	foreign *ForeignNode
	ends    []reached
	// traces are the batches that are traced and not applied, oldest first; tracing tells, without mu, whether there are
	// any.
	traces  []traced
	tracing atomic.Bool
}

// peer is what a connected standby has told.
type peer struct {
	// acked is the last record that it has durable, applied the last one that it applied.
	acked   lsn.Position
	applied uint64
	// caughtUp: StandbyCaughtUp was posted. synced: StandbySynced was posted for the present requirement.
	caughtUp, synced bool
}

// StartPrimary takes up the active role: it begins the term with a term-start record and lets standbys in. What the log
// already has is committed together with that record, when Config allows it (event ActiveReady).
//
// It returns ErrTermUsed or ErrFence for a term or configuration that this node must not act under. The caller must
// call Stop.
func StartPrimary(o PrimaryOptions) (*Primary, error) {
	o.Tuning = o.Tuning.withDefaults()
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	id, end := o.Store.Identity(), o.Store.End()
	if (identity.Fence{Config: o.Config.Config, Term: o.Term}).Less(id.Fence) {
		return nil, fmt.Errorf("%w: asked to be active under config %d term %d, promised to obey config %d term %d",
			ErrFence, o.Config.Config, o.Term, id.Fence.Config, id.Fence.Term)
	}
	if end.Term >= o.Term {
		return nil, fmt.Errorf("%w: asked for term %d, and the log ends at %v", ErrTermUsed, o.Term, end)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Primary{
		o: o, log: o.Logger, queue: newQueue(o.Term, o.BatchBytes, end), tail: newTail(o.TailBytes, end),
		room: semaphore.NewWeighted(o.QueueBytes), events: startEventQueue(o.Events),
		termStart: end.LSN + 1, applyWake: make(chan struct{}, 1), applyTurns: make(chan struct{}),
		progress: make(chan struct{}, 1),
		stop:     cancel, stopped: make(chan struct{}), cfg: o.Config, durable: o.Store.Durable().LSN,
	}
	p.io.base, p.io.meter, p.queue.timed = time.Now(), o.Meter, o.Meter != nil
	p.waiters.New = func() any { return newWaiter() }
	applied := o.Store.Applied().LSN
	p.commit.Store(applied)
	p.applied.Store(applied)
	p.syncTarget, p.absentSince = applied, time.Now()
	// No other goroutine has the queue yet, so that the term-start record is the first of its term.
	if _, err := p.queue.add(ctx, wal.KindTermStart, []Item{{Payload: id.NodeID[:]}}, 0, false); err != nil {
		cancel()
		p.events.close()
		return nil, err
	}
	if !o.Config.Serve {
		p.queue.block(blockedBy(o.Config.Reason))
	}
	p.wg.Add(3)
	go p.runCommitter(ctx)
	go p.runApplier(ctx)
	go p.runWatch(ctx)
	p.log.Info("active", zap.Uint64("term", o.Term), zap.Uint64("config", o.Config.Config),
		zap.Stringer("log_end", end))
	return p, nil
}

func blockedBy(reason string) error {
	if reason == "" {
		return ErrBlocked
	}
	return fmt.Errorf("%w: %s", ErrBlocked, reason)
}

// Configure changes the conditions. When it returns, the commit LSN does not move under the old ones any more.
func (p *Primary) Configure(cfg PrimaryConfig) {
	p.mu.Lock()
	was := p.cfg
	p.cfg = cfg
	switch {
	case cfg.RequireStandby && (!was.RequireStandby || was.Standby != cfg.Standby ||
		was.Requirement != cfg.Requirement):
		p.require()
	case !cfg.RequireStandby && was.RequireStandby && p.session != nil && p.session.member == was.Standby:
		// It connects again and catches up under a new requirement. What it had achieved under the old one must not
		// count: an event about that may be under way to the owner of the role, which would then add it to in_sync
		// (INV-3).
		p.session.end(ErrDropped)
	}
	p.advance()
	if p.session != nil {
		p.session.announce()
	}
	p.mu.Unlock()
	switch {
	case !cfg.Serve:
		blocked := blockedBy(cfg.Reason)
		p.abandon(blocked, outcomeUnknown(blocked)) // what waits stays in the queue and may commit later
	case !was.Serve:
		p.queue.unblock()
	}
}

// require begins to count the acks of cfg.Standby. mu is held.
func (p *Primary) require() {
	p.standbyDurable, p.syncTarget = 0, p.commit.Load()
	p.absentSince, p.absentTold = time.Now(), false
	if s := p.session; s != nil && s.member == p.cfg.Standby {
		p.peer.synced = false
		p.count()
	}
}

// count takes what the connected standby, the required one, has acknowledged. mu is held.
func (p *Primary) count() {
	p.standbyDurable = max(p.standbyDurable, p.peer.acked.LSN)
	if !p.peer.synced && p.standbyDurable >= p.syncTarget {
		p.peer.synced = true
		p.events.post(StandbySynced{Member: p.session.member, Requirement: p.cfg.Requirement})
	}
	p.advance()
}

// Stop ends the role. When it returns nothing more is appended, applied, acknowledged or sent, and every caller that
// waited has an answer: ErrOutcomeUnknown, or ErrNotActive if the transaction was not logged.
func (p *Primary) Stop() {
	p.stopOnce.Do(func() {
		p.mu.Lock()
		p.ended = true
		if p.session != nil {
			p.session.end(errStopped)
		}
		p.releaseRetained()
		p.mu.Unlock()
		close(p.stopped)
		p.queue.mu.Lock()
		p.queue.refuse = ErrNotActive
		p.queue.mu.Unlock()
		p.stop()
	})
	p.wg.Wait()
	p.commitMu.Lock() // a caller may be in commitHere
	p.commitEnded = true
	p.commitMu.Unlock()
	p.applyMu.Lock() // or in takeApplyTurn
	p.applyEnded = true
	p.applyMu.Unlock()
	p.abandon(ErrNotActive, ErrNotActive)
	p.endTraces(ErrNotActive)
	p.snapshots.close()
	p.events.close()
}

// Drain prepares a planned hand-over: new transactions wait, those under way are answered, and the required standby is
// durable and has applied everything. When it returns nil nothing is appended until Resume or Stop. Position is the end
// of the log.
//
// When ctx ends first it returns an error, and transactions go on waiting until Resume.
func (p *Primary) Drain(ctx context.Context) (lsn.Position, error) {
	p.queue.hold()
	for {
		empty, end := p.queue.empty()
		if empty && p.standbyHas(end) {
			return end, nil
		}
		select {
		case <-p.progress:
		case <-p.queue.idle:
		case <-p.stopped:
			return end, ErrNotActive
		case <-ctx.Done():
			return end, fmt.Errorf("drain: the standby has not applied everything up to %v in time: %w", end, ctx.Err())
		}
	}
}

// Settle prepares the end of the role without a successor: new transactions wait until Stop, which refuses them, and
// those under way are answered. It returns when they are, when they are refused because the node may not acknowledge,
// or when ctx ends.
func (p *Primary) Settle(ctx context.Context) {
	p.queue.hold()
	for {
		if empty, _ := p.queue.empty(); empty || p.queue.refused() != nil {
			return
		}
		select {
		case <-p.progress: // it may be refused by now
		case <-p.queue.idle:
		case <-p.stopped:
			return
		case <-ctx.Done():
			return
		}
	}
}

// standbyHas tells whether the required standby is durable and applied up to end.
func (p *Primary) standbyHas(end lsn.Position) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.session
	return s != nil && p.cfg.RequireStandby && s.member == p.cfg.Standby && p.peer.acked.LSN >= end.LSN &&
		p.peer.applied >= end.LSN
}

// Resume undoes Drain.
func (p *Primary) Resume() { p.queue.resume() }

// PrimaryStatus is a snapshot of what a primary does.
type PrimaryStatus struct {
	Term      uint64
	Config    PrimaryConfig
	End       lsn.Position
	CommitLSN uint64
	// AppliedLSN follows CommitLSN closely.
	AppliedLSN uint64
	// Standby is the one that is connected, nil if none is.
	Standby *StandbyStatus
	// Disk of the log.
	Disk DiskStatus
	// ForeignNode is the last node that was refused because it is none of this pair; nil if there was none.
	ForeignNode *ForeignNode
}

// StandbyStatus is a snapshot of a connected standby.
type StandbyStatus struct {
	Member Member
	// Durable and AppliedLSN are what the standby told last.
	Durable    lsn.Position
	AppliedLSN uint64
	// InFlightBytes were sent and are not acknowledged.
	InFlightBytes int
	// LagBytes of log are not durable there, about if it is far behind; LagTime is how old the oldest of them is, to
	// the second, and ten minutes at most.
	LagBytes uint64
	LagTime  time.Duration
	// CaughtUp: it is within the window. Required: transactions wait for its acks.
	CaughtUp, Required bool
	// Agreed is what both nodes' releases can do.
	Agreed Agreement
}

// Status tells what the primary does now.
func (p *Primary) Status() PrimaryStatus {
	_, end := p.queue.empty()
	st := p.status(end)
	if s := st.Standby; s != nil {
		s.LagBytes = p.lagBytes(s.Durable.LSN, end.LSN) // it may wait for the store, so without the lock
	}
	return st
}

func (p *Primary) status(end lsn.Position) PrimaryStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := PrimaryStatus{
		Term: p.o.Term, Config: p.cfg, End: end, CommitLSN: p.commit.Load(), AppliedLSN: p.applied.Load(),
		Disk: p.io.status(p.o.DiskStallTimeout), ForeignNode: p.foreign,
	}
	if s := p.session; s != nil {
		st.Standby = &StandbyStatus{
			Member: s.member, Durable: p.peer.acked, AppliedLSN: p.peer.applied, InFlightBytes: s.window.inFlight(),
			CaughtUp: p.peer.caughtUp, Required: p.requires(s), Agreed: s.agreed,
			LagTime: p.lagTime(time.Now(), p.peer.acked.LSN, end.LSN),
		}
	}
	return st
}

// requires tells whether transactions wait for the acks of s. mu is held.
func (p *Primary) requires(s *session) bool { return p.cfg.RequireStandby && p.cfg.Standby == s.member }

// Committed is the last committed record of this term; false while there is none. Its checksum is left out.
func (p *Primary) Committed() (lsn.Position, bool) {
	at := lsn.Position{Term: p.o.Term, LSN: p.commit.Load()}
	return at, at.LSN >= p.termStart
}

// CommitLSN is the last committed record.
func (p *Primary) CommitLSN() uint64 { return p.commit.Load() }

// passOn has batches sent that were just published.
func (p *Primary) passOn(batches []batch) {
	p.mu.Lock()
	s := p.session
	p.mu.Unlock()
	if s != nil && !s.sender.sendNow(batches) {
		signal(s.wake)
	}
}

// isStopped tells whether Stop was called.
func (p *Primary) isStopped() bool {
	select {
	case <-p.stopped:
		return true
	default:
		return false
	}
}

// runWatch looks after what no message tells: a stalled disk, and a required standby that does not come.
func (p *Primary) runWatch(ctx context.Context) {
	defer p.wg.Done()
	t := time.NewTicker(p.o.Heartbeat)
	defer t.Stop()
	stalled := false
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			if s := p.io.stalled(p.o.DiskStallTimeout); s != stalled {
				if stalled = s; s {
					p.log.Error("the log's disk does not answer; heartbeats are stopped",
						zap.Duration("for", p.o.DiskStallTimeout))
					p.events.post(DiskStalled{})
				} else {
					p.log.Info("the log's disk answers again")
					p.events.post(DiskBack{})
				}
			}
			p.checkAbsent(now)
			p.checkFetch(now)
			_, end := p.queue.empty()
			p.sampleEnd(now, end)
		}
	}
}

// checkAbsent tells once that the required standby has not been connected for the timeout.
func (p *Primary) checkAbsent(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	present := p.session != nil && p.requires(p.session)
	if present || !p.cfg.RequireStandby || p.absentTold || now.Sub(p.absentSince) < p.o.StandbyTimeout {
		return
	}
	p.absentTold = true
	p.events.post(StandbyLost{
		Member: p.cfg.Standby, Cause: LostSilence,
		Err: errors.New("the required standby is not connected"),
	})
}
