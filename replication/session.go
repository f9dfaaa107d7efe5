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

	"github.com/lockstep-mq/lockstep/store/identity"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/mutate"
)

// session is one connection of a standby. It has three goroutines: the caller of Replicate watches timeouts, one
// receives, and one sends. Only the watcher returns to the transport, which then ends the stream.
type session struct {
	p      *Primary
	stream StandbyStream
	member Member
	// negotiated and applied are set by the handshake: the common protocol and features, and the standby's applied LSN at
	// its hello.
	negotiated Negotiation
	applied    uint64
	// wake is signaled when the sender may have work.
	wake chan struct{}
	// urgent makes the sender send a message immediately.
	urgent atomic.Bool
	// polls is set while the sender polls for a new commit LSN.
	polls atomic.Bool
	// sender is set by the handshake, unless the standby needs a snapshot.
	sender *sender
	// acked is the last LSN durable on the standby.
	acked    atomic.Uint64
	received atomic.Bool
	window   window

	endOnce sync.Once
	done    chan struct{}
	err     error // set before done is closed
}

// end ends the session with err; only the first call has an effect.
func (s *session) end(err error) {
	s.endOnce.Do(func() {
		s.err = err
		close(s.done)
	})
}

// announce makes the sender send the new configuration immediately.
func (s *session) announce() {
	s.urgent.Store(true)
	signal(s.wake)
}

// enter registers a call: Stop waits for it. It returns false after the role has ended.
func (p *Primary) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return false
	}
	p.wg.Add(1)
	return true
}

// Replicate serves one connection of a standby; see Service. A new connection of a node replaces the previous one. A
// standby is refused with ErrSecondStandby while another node, or another process of a required node, is connected,
// unless only the new standby is required.
func (p *Primary) Replicate(ctx context.Context, stream StandbyStream) error {
	if !p.enter() {
		return ErrNotActive
	}
	defer p.wg.Done()
	s := &session{p: p, stream: stream, wake: make(chan struct{}, 1), done: make(chan struct{})}
	first := make(chan *StandbyMessage, 1)
	p.wg.Add(1)
	go s.receive(first)

	helloResponse, err := s.handshake(ctx, first)
	if err != nil {
		p.recordForeign(err)
		s.end(err)
		return err
	}
	if helloResponse.SnapshotRequired {
		return s.sendToSnapshot(helloResponse)
	}
	if err := p.register(s, helloResponse.ResumeAfter); err != nil {
		s.sender.hold.Release()
		s.end(err)
		return err
	}
	p.log.Info("standby connected", zap.Stringer("standby", s.member),
		zap.Stringer("resumes_after", helloResponse.ResumeAfter),
		zap.Uint32("protocol", s.negotiated.Protocol), zap.String("note", helloResponse.Reason))
	p.wg.Add(1)
	go s.send(helloResponse)
	s.watch(ctx)
	s.window.endTraces(s.err)
	p.leave(s)
	return s.err
}

// ForeignNode is a node that was refused as a standby.
type ForeignNode struct {
	// At is the time of the node's last attempt.
	At time.Time
	// Err wraps ErrOtherPair or ErrProtocol. For a node with the identity of this node, it also wraps ErrSameNode.
	Err error
}

func (p *Primary) recordForeign(err error) {
	if !errors.Is(err, ErrOtherPair) && !errors.Is(err, ErrProtocol) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.foreign = &ForeignNode{At: time.Now(), Err: err}
}

// handshake waits for the hello and decides how the standby catches up.
func (s *session) handshake(ctx context.Context, first <-chan *StandbyMessage) (HelloResponse, error) {
	p := s.p
	t := time.NewTimer(p.o.StandbyTimeout)
	defer t.Stop()
	var m *StandbyMessage
	select {
	case m = <-first:
	case <-t.C:
		return HelloResponse{}, fmt.Errorf("%w: no hello received", ErrSilent)
	case <-s.done:
		return HelloResponse{}, s.err
	case <-p.stopped:
		return HelloResponse{}, ErrNotActive
	case <-ctx.Done():
		return HelloResponse{}, fmt.Errorf("handshake: %w", ctx.Err())
	}
	id := p.o.Store.Identity()
	switch h := m.Hello; {
	case h == nil:
		return HelloResponse{}, fmt.Errorf("%w: first message is not a hello", ErrProtocol)
	case h.Pair != id.PairID:
		return HelloResponse{}, fmt.Errorf("%w: standby %s has pair %s, this node has pair %s", ErrOtherPair, h.Member,
			h.Pair, id.PairID)
	case h.Member.Node == id.NodeID:
		return HelloResponse{}, fmt.Errorf("%w: %w: %s; a data directory must not be copied to a second node",
			ErrProtocol, ErrSameNode, id.NodeID)
	}
	var err error
	if s.negotiated, err = negotiate(m.Hello.Protocol, m.Hello.OldestProtocol, m.Hello.Features); err != nil {
		return HelloResponse{}, err
	}
	s.member = m.Hello.Member
	if err := p.refuseAhead(s.member, m.Config, m.Term); err != nil {
		return HelloResponse{}, err
	}
	s.applied = m.Hello.Applied.LSN
	// A batch is sent while it is written. The standby may have received records over an earlier connection that are
	// not yet in this node's log. These records must not be reported as missing.
	select {
	case <-p.tail.loggedSignal():
	case <-s.done:
		return HelloResponse{}, s.err
	case <-p.stopped:
		return HelloResponse{}, ErrNotActive
	case <-ctx.Done():
		return HelloResponse{}, fmt.Errorf("handshake: %w", ctx.Err())
	}
	if err := p.refuseBehind(m.Hello); err != nil {
		return HelloResponse{}, err
	}
	hold := p.o.Store.HoldLog(1)
	helloResponse := matchLogs(p.o.Store, m.Hello)
	if helloResponse.SnapshotRequired {
		hold.Release()
		return helloResponse, nil
	}
	hold.Advance(helloResponse.ResumeAfter.LSN + 1)
	s.acked.Store(helloResponse.ResumeAfter.LSN)
	s.sender = &sender{s: s, p: p, hold: hold, cursor: helloResponse.ResumeAfter, released: helloResponse.ResumeAfter.LSN}
	return helloResponse, nil
}

// refuseBehind refuses and reports a standby if records that it knows to be committed are missing on this node
// (INV-13).
func (p *Primary) refuseBehind(h *Hello) error {
	if _, missing := holdsDurable(p.o.Store, h); !missing {
		return nil
	}
	err := p.checkBehind(h.Committed)
	if err == nil {
		return nil
	}
	ahead := StandbyAhead{Member: h.Member, End: h.LogEnd, Committed: h.Committed.LSN}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return err
	}
	p.events.post(ahead)
	if p.aheadReported != ahead { // the standby retries periodically
		p.aheadReported = ahead
		p.log.Error("committed records of the standby are missing on this node; its data directory was probably restored "+
			"from an older copy", zap.Stringer("standby", h.Member), zap.Stringer("standby_log_end", h.LogEnd),
			zap.Stringer("standby_committed", h.Committed), zap.Stringer("log_end", p.o.Store.End()))
	}
	return err
}

// checkBehind returns ErrBehind if a committed record is certainly missing from this node's log (INV-13).
func (p *Primary) checkBehind(committed lsn.Position) error {
	if _, missing := holdsCommitted(p.o.Store, committed); !missing || mutate.Off("INV-13-active-accepts-standby-ahead") {
		return nil
	}
	return fmt.Errorf("%w: %v is committed, the active's log ends at %v", ErrBehind, committed, p.o.Store.End())
}

// refuseAhead refuses and reports a standby with a fence above this active's configuration and term (INV-1).
func (p *Primary) refuseAhead(m Member, config, term uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.checkAhead(config, term)
	if err != nil && !p.ended {
		p.events.post(StandbyLost{Member: m, Cause: LostAhead, Err: err})
	}
	return err
}

// checkAhead returns ErrAhead if a standby's fence is above this active's configuration and term (INV-1). mu is held.
func (p *Primary) checkAhead(config, term uint64) error {
	own, theirs := identity.Fence{Config: p.cfg.Config, Term: p.o.Term}, identity.Fence{Config: config, Term: term}
	if !own.Less(theirs) || mutate.Off("INV-1-active-ignores-higher-fence") {
		return nil
	}
	return fmt.Errorf("%w: the fence is config %d term %d, the active has config %d term %d", ErrAhead, config, term,
		own.Config, own.Term)
}

// sendToSnapshot sends the response that redirects the standby to a snapshot.
func (s *session) sendToSnapshot(w HelloResponse) error {
	p := s.p
	p.mu.Lock()
	if err := p.refuseSecond(s); err != nil {
		p.mu.Unlock()
		s.end(err)
		return err
	}
	p.log.Warn("standby needs a snapshot", zap.Stringer("standby", s.member), zap.String("reason", w.Reason))
	config := p.cfg.Config
	p.events.post(StandbyConnected{Member: s.member, Snapshot: true})
	p.awaited = awaitedFetch{member: s.member, since: time.Now()}
	if p.requires(s) && !p.ended {
		// The standby is connected but cannot acknowledge: no transaction may wait for it.
		err := fmt.Errorf("%w: %s", ErrLostRecords, w.Reason)
		p.events.post(StandbyLost{Member: s.member, Cause: LostRejected, Err: err})
	}
	p.mu.Unlock()
	err := s.stream.Send(&ActiveMessage{Config: config, Term: p.o.Term, HelloResponse: &w})
	s.end(err)
	return err
}

// refuseSecond refuses s while another node is the connected standby. As an exception, a required standby replaces a
// node that is not required. A second process of a required node is also refused. mu is held.
func (p *Primary) refuseSecond(s *session) error {
	current := p.session
	switch {
	case current == nil || p.requires(s) && !p.requires(current):
		return nil
	case current.member.Node == s.member.Node && current.member.Generation != s.member.Generation && p.requires(current):
		return fmt.Errorf("%w: process generation %s of node %s (INV-11); stop one of the two", ErrSecondStandby,
			current.member.Generation, s.member.Node)
	case current.member.Node == s.member.Node:
		return nil
	}
	return fmt.Errorf("%w: %s; stop it if %s should replace it", ErrSecondStandby, current.member, s.member)
}

// register makes s the current session and ends the previous one, unless s must be refused.
func (p *Primary) register(s *session, resumeAfter lsn.Position) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return ErrNotActive
	}
	if p.requires(s) && resumeAfter.LSN < p.standbyDurable {
		err := fmt.Errorf("%w: it acknowledged LSN %d, its log matches up to %v; it must leave in_sync before it catches up",
			ErrLostRecords, p.standbyDurable, resumeAfter)
		p.events.post(StandbyLost{Member: s.member, Cause: LostRejected, Err: err})
		return err
	}
	if err := p.refuseSecond(s); err != nil {
		return err
	}
	if was := p.session; was != nil {
		was.end(ErrReplaced)
		if was.member.Node != s.member.Node {
			p.events.post(StandbyLost{Member: was.member, Cause: LostReset, Err: ErrReplaced})
		}
	}
	p.session, p.peer = s, peer{acked: resumeAfter, applied: s.applied}
	p.snapshots.releaseUpTo(resumeAfter, s.member.Node)
	p.releaseRetained()
	p.events.post(StandbyConnected{Member: s.member})
	p.awaited = awaitedFetch{}
	if p.requires(s) {
		p.countAcks()
	}
	return nil
}

// leave removes s and reports its loss, unless another session replaced it.
func (p *Primary) leave(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session != s {
		return
	}
	p.session = nil
	if p.requires(s) {
		p.absentSince, p.absentReported = time.Now(), true
	}
	if p.ended {
		return
	}
	p.log.Warn("standby lost", zap.Stringer("standby", s.member), zap.Error(s.err))
	p.events.post(StandbyLost{Member: s.member, Cause: causeOf(s.err), Err: s.err})
}

// retain keeps the log held by s for the time in which the standby should reconnect.
func (p *Primary) retain(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	hold := s.sender.hold
	if p.ended || p.session != nil && p.session != s {
		hold.Release()
		return
	}
	p.releaseRetained()
	p.retained = hold
	p.retainedEnd = time.AfterFunc(fetchTimeouts*p.o.StandbyTimeout, hold.Release)
}

// releaseRetained ends the hold started by retain. mu is held.
func (p *Primary) releaseRetained() {
	if p.retained != nil {
		p.retainedEnd.Stop()
		p.retained.Release()
		p.retained, p.retainedEnd = nil, nil
	}
}

func causeOf(err error) LostCause {
	switch {
	case errors.Is(err, ErrRefused):
		return LostRefused
	case errors.Is(err, ErrSilent):
		return LostSilence
	case errors.Is(err, ErrSlow):
		return LostSlow
	case errors.Is(err, ErrAhead):
		return LostAhead
	case errors.Is(err, ErrNoSpace):
		return LostNoSpace
	case errors.Is(err, ErrBehind):
		return LostBehind
	case errors.Is(err, ErrNotActive), errors.Is(err, ErrOtherPair), errors.Is(err, ErrStale),
		errors.Is(err, ErrNotPeer),
		errors.Is(err, ErrProtocol),
		errors.Is(err, ErrLostRecords), errors.Is(err, ErrSecondStandby):
		return LostRejected
	default:
		return LostReset
	}
}

// watch ends the session if the standby is silent or slow, and returns when the session has ended.
func (s *session) watch(ctx context.Context) {
	standby := newDetector(s.p.log, s.p.o.StandbyTimeout)
	step := standby.tick()
	t := time.NewTicker(step)
	defer t.Stop()
	var slow silence
	for {
		select {
		case <-s.done:
			return
		case <-ctx.Done():
			s.end(fmt.Errorf("standby connection: %w", ctx.Err()))
			return
		case now := <-t.C:
			if err := standby.step(now, s.received.Swap(false)); err != nil {
				s.end(err)
				return
			}
			if d := slow.step(now, step, s.window.progressed(now.Add(-2*step))); d >= s.p.o.AckTimeout {
				s.end(fmt.Errorf("%w: no ack for %v", ErrSlow, d))
				return
			}
		}
	}
}

func (s *session) receive(first chan<- *StandbyMessage) {
	defer s.p.wg.Done()
	for {
		m, err := s.stream.Recv()
		if err != nil {
			s.end(fmt.Errorf("receive from standby: %w", err))
			return
		}
		s.received.Store(true)
		if first != nil {
			first <- m
			first = nil
			continue
		}
		if err := s.p.acknowledge(s, m); err != nil {
			s.end(err)
			return
		}
	}
}

// acknowledge processes a message of the standby: it records the applied and the durable position, which may advance
// the commit LSN (INV-2).
func (p *Primary) acknowledge(s *session, m *StandbyMessage) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.checkAhead(m.Config, m.Term); err != nil {
		return err
	}
	if p.ended || p.session != s {
		return ErrReplaced
	}
	p.peer.applied = max(p.peer.applied, m.AppliedLSN)
	if m.Durable.LSN > p.peer.acked.LSN {
		awaited, err := s.window.acknowledge(m.Durable, p.o.Meter)
		if err != nil {
			return err
		}
		p.peer.acked = m.Durable
		s.acked.Store(m.Durable.LSN)
		if p.requires(s) {
			p.countAcks()
		}
		if awaited || !p.peer.caughtUp {
			signal(s.wake)
		}
	}
	signal(p.progress)
	return nil
}
