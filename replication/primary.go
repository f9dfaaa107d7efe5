// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"cmp"
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
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// PrimaryConfig configures when a primary acknowledges.
type PrimaryConfig struct {
	// Config is the number of the configuration, sent in every message to the standby (INV-1).
	Config uint64
	// RequireStandby reports whether a transaction is committed only when it is durable on this node and on Standby
	// (INV-2).
	RequireStandby bool
	// Standby is the member that must acknowledge, if RequireStandby is set. With the zero Member, nothing can then be
	// committed.
	Standby Member
	// Requirement identifies the period in which the acks of Standby are required. StandbySynced includes it.
	Requirement uint64
	// Serve permits commits. If it is false, new and pending transactions fail, and the commit LSN does not advance.
	Serve bool
	// Reason is part of errors while Serve is false.
	Reason string
}

// PrimaryOptions configures StartPrimary.
type PrimaryOptions struct {
	// Store is the recovered store of the node. While the role runs, only the role appends to the store and applies.
	Store *store.Store
	// Term is the term of new log records. It must never have been used before, by any node.
	Term   uint64
	Config PrimaryConfig
	// Events, Logger, Meter and Tracer are optional.
	Events func(Event)
	Logger *zap.Logger
	Meter  Meter
	Tracer Tracer
	Tuning
}

// Primary is the active role of one node for one term. Its methods are safe for concurrent use.
type Primary struct {
	o        PrimaryOptions
	log      *zap.Logger
	queue    *queue
	tail     *tail
	capacity *semaphore.Weighted
	waiters  sync.Pool
	events   *eventQueue
	io       ioClock

	termStart uint64
	commit    atomic.Uint64
	applied   atomic.Uint64
	// advanced wakes the callers of Advanced.
	advanced notifier
	// restricted, if not nil, is the error for transactions that are not marked with Item.Site.
	restricted atomic.Pointer[error]
	// held, if not nil, makes transactions wait, except those with Item.Site or Item.Exempt.
	held      atomic.Pointer[hold]
	applyWake chan struct{}
	// progress is signaled on events that may complete Drain or Settle.
	progress chan struct{}

	stop     context.CancelFunc
	stopped  chan struct{} // closed when Stop begins
	stopOnce sync.Once
	wg       sync.WaitGroup

	snapshots snapshotService

	ready bool // ActiveReady was posted; accessed only by the applier

	mu      sync.Mutex // guards the fields below
	cfg     PrimaryConfig
	ended   bool
	durable uint64
	// standbyDurable is the last LSN acknowledged by cfg.Standby during the current requirement, in any of its sessions.
	standbyDurable uint64
	// syncTarget is the commit LSN when the acks of cfg.Standby became required.
	syncTarget uint64
	session    *session
	peer       peer
	// aheadReported is the last logged StandbyAhead.
	aheadReported StandbyAhead
	// absentSince is the start of the absence of the required standby; absentReported is set when the absence was
	// reported.
	absentSince    time.Time
	absentReported bool
	// awaited is the standby that was redirected to a snapshot and has not requested it yet.
	awaited awaitedFetch
	// retained keeps the log for the standby that was lost last, until retainedEnd fires; nil if unused.
	retained    *wal.Hold
	retainedEnd *time.Timer
	// uncommitted are the batches to be reported to the meter, and ends are samples of the log end; oldest first.
	uncommitted []pendingBatch
	ends        []endSample
	// foreign is the last refused ForeignNode; nil if none. The value is immutable.
	foreign *ForeignNode
	// traces are the traced batches that are not applied, oldest first; tracing reports, without mu, whether any exist.
	traces  []traced
	tracing atomic.Bool
}

type peer struct {
	acked   lsn.Position
	applied uint64
	// caughtUp is set when StandbyCaughtUp was posted, synced when StandbySynced was posted for the current requirement.
	caughtUp, synced bool
}

// StartPrimary starts the active role, which runs until Stop. It begins the term with a term-start record, and
// accepts standbys. The existing records of the log are committed together with that record, when Config allows it
// (event ActiveReady). StartPrimary returns ErrTermUsed or ErrFence if Config or Term is too low.
func StartPrimary(o PrimaryOptions) (*Primary, error) {
	o.Tuning = o.Tuning.withDefaults()
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	id, end := o.Store.Identity(), o.Store.End()
	if (identity.Fence{Config: o.Config.Config, Term: o.Term}).Less(id.Fence) {
		return nil, fmt.Errorf("%w: activation with config %d term %d, the fence is config %d term %d", ErrFence,
			o.Config.Config, o.Term, id.Fence.Config, id.Fence.Term)
	}
	if end.Term >= o.Term {
		return nil, fmt.Errorf("%w: activation in term %d, the log ends at %v", ErrTermUsed, o.Term, end)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Primary{
		o: o, log: o.Logger, queue: newQueue(o.Term, o.BatchBytes, end), tail: newTail(o.TailBytes, end),
		capacity: semaphore.NewWeighted(o.QueueBytes), events: startEventQueue(o.Events),
		termStart: end.LSN + 1, applyWake: make(chan struct{}, 1),
		progress: make(chan struct{}, 1),
		stop:     cancel, stopped: make(chan struct{}), cfg: o.Config, durable: o.Store.Durable().LSN,
	}
	p.io.base, p.io.meter, p.queue.timed = time.Now(), o.Meter, o.Meter != nil
	p.waiters.New = func() any { return newWaiter() }
	applied := o.Store.Applied().LSN
	p.commit.Store(applied)
	p.applied.Store(applied)
	p.syncTarget, p.absentSince = applied, time.Now()
	// No other goroutine has access to the queue yet.
	if err := p.queue.add(ctx, wal.KindTermStart, []Item{{Payload: id.NodeID[:]}}, 0); err != nil {
		cancel()
		p.events.close()
		return nil, err
	}
	if !o.Config.Serve {
		p.queue.block(blockedBy(o.Config.Reason))
	}
	p.wg.Go(func() { p.runCommitter(ctx) })
	p.wg.Go(func() { p.runApplier(ctx) })
	p.wg.Go(func() { p.runWatch(ctx) })
	p.log.Info("active role started", zap.Uint64("term", o.Term), zap.Uint64("config", o.Config.Config),
		zap.Stringer("log_end", end))
	return p, nil
}

func blockedBy(reason string) error {
	if reason == "" {
		return ErrBlocked
	}
	return fmt.Errorf("%w: %s", ErrBlocked, reason)
}

// Configure replaces the configuration. After it returns, the commit LSN no longer advances under the old
// configuration.
func (p *Primary) Configure(cfg PrimaryConfig) {
	p.mu.Lock()
	was := p.cfg
	p.cfg = cfg
	switch {
	case cfg.RequireStandby && (!was.RequireStandby || was.Standby != cfg.Standby ||
		was.Requirement != cfg.Requirement):
		p.require()
	case !cfg.RequireStandby && was.RequireStandby && p.session != nil && p.session.member == was.Standby:
		// The standby reconnects and catches up for a new requirement. A pending event for the old requirement must not
		// have an effect (INV-3).
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
		p.abandon(blocked, outcomeUnknown(blocked)) // queued transactions may still commit later
	case !was.Serve:
		p.queue.unblock()
	}
}

// require starts a requirement for the acks of cfg.Standby. mu is held.
func (p *Primary) require() {
	p.standbyDurable, p.syncTarget = 0, p.commit.Load()
	p.absentSince, p.absentReported = time.Now(), false
	if s := p.session; s != nil && s.member == p.cfg.Standby {
		p.peer.synced = false
		p.countAcks()
	}
}

// countAcks processes the acks of the connected standby, which must be the required one. mu is held.
func (p *Primary) countAcks() {
	p.standbyDurable = max(p.standbyDurable, p.peer.acked.LSN)
	if !p.peer.synced && p.standbyDurable >= p.syncTarget {
		p.peer.synced = true
		p.events.post(StandbySynced{Member: p.session.member, Requirement: p.cfg.Requirement})
	}
	p.advance()
}

// Stop ends the role. After it returns, nothing is appended, applied, acknowledged or sent. Pending transactions have
// failed with ErrOutcomeUnknown, or with ErrNotActive if they were not logged.
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
	p.abandon(ErrNotActive, ErrNotActive)
	p.endTraces(ErrNotActive)
	p.snapshots.close()
	p.events.close()
}

// Drain prepares a planned handover. It holds new transactions, and waits until all others are completed, and until
// all records are durable and applied on the required standby. It returns the end of the log; nothing is appended
// after it before Resume is called. If ctx ends first, Drain returns an error, and new transactions are held until
// Resume.
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
			return end, fmt.Errorf("drain: standby has not applied records up to %v: %w", end, ctx.Err())
		}
	}
}

// Settle holds new transactions until Stop, which rejects them. It returns when all other transactions are completed,
// when new transactions are rejected anyway, when Stop is called, or when ctx ends.
func (p *Primary) Settle(ctx context.Context) {
	p.queue.hold()
	for {
		if empty, _ := p.queue.empty(); empty || p.queue.refused() != nil {
			return
		}
		select {
		case <-p.progress: // the queue may have been blocked
		case <-p.queue.idle:
		case <-p.stopped:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (p *Primary) standbyHas(end lsn.Position) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.session
	return s != nil && p.cfg.RequireStandby && s.member == p.cfg.Standby && p.peer.acked.LSN >= end.LSN &&
		p.peer.applied >= end.LSN
}

// Resume releases the transactions held by Drain.
func (p *Primary) Resume() { p.queue.resume() }

// PrimaryStatus is the status of a primary.
type PrimaryStatus struct {
	Term      uint64
	Config    PrimaryConfig
	End       lsn.Position
	CommitLSN uint64
	// AppliedLSN is the LSN of the last applied record. It is at most CommitLSN.
	AppliedLSN uint64
	Standby    *StandbyStatus
	Disk       DiskStatus
	// ForeignNode describes the last node that was refused as foreign; nil if none.
	ForeignNode *ForeignNode
}

// StandbyStatus is the status of a connected standby.
type StandbyStatus struct {
	Member        Member
	Durable       lsn.Position
	AppliedLSN    uint64
	InFlightBytes int
	// LagBytes is the size of the log that is not durable on the standby; approximate if the standby is far behind.
	// LagTime is the age of the oldest such record, with a resolution of one second, and at most ten minutes.
	LagBytes uint64
	LagTime  time.Duration
	// CaughtUp reports whether StandbyCaughtUp was posted for this connection. Required reports whether transactions
	// wait for its acks.
	CaughtUp, Required bool
	Agreed             Negotiation
}

// Status returns the current status.
func (p *Primary) Status() PrimaryStatus {
	_, end := p.queue.empty()
	st := p.status(end)
	if s := st.Standby; s != nil {
		s.LagBytes = p.lagBytes(s.Durable.LSN, end.LSN) // may wait for the store, so called without the lock
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
			CaughtUp: p.peer.caughtUp, Required: p.requires(s), Agreed: s.negotiated,
			LagTime: p.lagTime(time.Now(), p.peer.acked.LSN, end.LSN),
		}
	}
	return st
}

// requires reports whether transactions wait for the acks of s. mu is held.
func (p *Primary) requires(s *session) bool { return p.cfg.RequireStandby && p.cfg.Standby == s.member }

// Committed returns the position of the last committed record of this term, without its checksum; false if none.
func (p *Primary) Committed() (lsn.Position, bool) {
	at := lsn.Position{Term: p.o.Term, LSN: p.commit.Load()}
	return at, at.LSN >= p.termStart
}

// CommitLSN returns the LSN of the last committed record.
func (p *Primary) CommitLSN() uint64 { return p.commit.Load() }

func (p *Primary) enqueueForStandby(batches []batch) {
	p.mu.Lock()
	s := p.session
	p.mu.Unlock()
	if s != nil && !s.sender.sendNow(batches) {
		signal(s.wake)
	}
}

func (p *Primary) isStopped() bool {
	select {
	case <-p.stopped:
		return true
	default:
		return false
	}
}

// runWatch detects conditions that no message reports: a stalled disk, a required standby that does not connect, and a
// standby that does not request its snapshot. It also samples the log end.
func (p *Primary) runWatch(ctx context.Context) {
	t := time.NewTicker(p.o.Heartbeat)
	defer t.Stop()
	stalled := false
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			stalled = p.io.report(stalled, p.o.DiskStallTimeout, p.log, p.events)
			p.checkAbsent(now)
			p.checkFetch(now)
			_, end := p.queue.empty()
			p.sampleEnd(now, end)
		}
	}
}

// checkAbsent reports once that the required standby was not connected within the timeout.
func (p *Primary) checkAbsent(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	present := p.session != nil && p.requires(p.session)
	if present || !p.cfg.RequireStandby || p.absentReported || now.Sub(p.absentSince) < p.o.StandbyTimeout {
		return
	}
	p.absentReported = true
	p.events.post(StandbyLost{
		Member: p.cfg.Standby, Cause: LostSilence,
		Err: errors.New("required standby is not connected"),
	})
}
