// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

const stopLimit = 10 * time.Second

// loop is the state of a running Runner. Its fields are owned by the goroutine of Run.
type loop struct {
	r        *Runner
	state    State
	identity Identity
	running  mode

	background context.Context //nolint:containedctx // ends with the loop
	wg         sync.WaitGroup
	drain      chan struct{} // closed when the drain has returned; nil without a drain
	cancel     context.CancelFunc
	err        error
	halted     bool
}

func newLoop(r *Runner) *loop {
	return &loop{
		r: r, state: NewState(r.opts.Settings, r.opts.Self, r.process, uuid.New()), identity: r.opts.Data.Identity(),
	}
}

func (l *loop) run(ctx context.Context) error {
	background, stop := context.WithCancel(ctx)
	defer l.wg.Wait()
	defer stop()
	l.background = background
	l.runMarkLoop(background)
	watch := l.r.opts.Coordinator.Watch(background)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()

	l.r.logStart(l.identity.End.LSN)
	l.apply(ctx, Started{Identity: l.identity})
	for !l.halted {
		next := time.Hour
		if at, ok := l.state.Deadline(); ok {
			next = max(at-l.now(), 0)
		}
		timer.Reset(next)
		select {
		case <-ctx.Done():
			l.halted = true
		case o, ok := <-watch:
			if !ok {
				watch = nil // ctx ended
				continue
			}
			l.step(ctx, l.observed(o))
		case <-l.r.signal:
			for _, ev := range l.r.take() {
				l.step(ctx, ev)
			}
		case <-timer.C:
			l.step(ctx, Ticked{})
		}
	}
	return errors.Join(l.err, l.stopRole(ctx))
}

func (l *loop) now() time.Duration { return time.Since(l.r.began) }

func (l *loop) observed(o Observation) Observed {
	ev := Observed{Observation: o}
	if !o.LeaseUntil.IsZero() {
		ev.LeaseUntil = o.LeaseUntil.Sub(l.r.began)
	}
	return ev
}

func (l *loop) step(ctx context.Context, ev Event) {
	l.refresh(ctx)
	l.apply(ctx, ev)
	l.refresh(ctx)
}

func (l *loop) refresh(ctx context.Context) {
	id := l.r.opts.Data.Identity()
	now := id
	// End and Committed change constantly, and only their values at the start matter.
	now.End, now.Committed = l.identity.End, l.identity.Committed
	if now != l.identity {
		l.identity = id
		l.apply(ctx, IdentityChanged{Identity: id})
	}
}

func (l *loop) apply(ctx context.Context, ev Event) {
	if l.halted {
		return
	}
	state, effects := Step(l.state, l.now(), ev)
	l.state = state
	for _, e := range effects {
		if err := l.execute(ctx, e); err != nil {
			l.halted = true
			if ctx.Err() == nil {
				l.err = err
			}
			break
		}
	}
	l.r.publish(&l.state)
}

func (l *loop) execute(ctx context.Context, e Effect) error {
	switch e := e.(type) {
	case LoadRecord:
		l.loadRecord(ctx)
	case SwapRecord:
		l.swapRecord(ctx, e)
	case Announce:
		l.announce(l.background) //nolint:contextcheck // runs until the loop ends
	case WriteMark:
		l.writeMark(ctx, e)
	case Handshake:
		l.handshake(ctx, e)
	case BeginDrain:
		l.beginDrain(ctx, e)
	case SwitchoverEnded:
		l.respond(e.ID, e)
	case AdoptEnded:
		l.respond(e.ID, e)
	case ForceEnded:
		l.respond(e.ID, e)
	case Warn:
		l.r.log.Warn(e.Text)
	case Halt:
		return e.Err
	default:
		return l.executeData(ctx, e)
	}
	return nil
}

func (l *loop) respond(id string, e Effect) {
	l.r.publish(&l.state) // the caller reads the status after the response
	l.r.respond(id, e)
}

func (l *loop) executeData(ctx context.Context, e Effect) error {
	data := l.r.opts.Data
	var err error
	switch e := e.(type) {
	case JoinPair:
		err = data.JoinPair(ctx, e.Pair)
	case SetFence:
		err = data.SetFence(ctx, e.Fence)
	case ClearLoss:
		err = data.ClearLoss(ctx)
	case MarkLoss:
		err = data.MarkLoss(ctx)
	case ClaimGeneration:
		err = data.ClaimGeneration(ctx, e.Listed, e.Claimed)
	case ConfirmGeneration:
		err = data.ConfirmGeneration(ctx, e.Listed)
	case StartActive:
		l.running = modeAct
		err = data.StartActive(ctx, e.Spec, l.poster(e.Epoch))
	case ConfigureActive:
		err = data.ConfigureActive(ctx, e.Config)
	case StopActive:
		l.endDrain()
		l.running = modeIdle
		err = data.StopActive(ctx, e.Next)
	case StartFollower:
		l.running = modeFollow
		err = data.StartFollower(ctx, e.Spec, l.poster(e.Epoch))
	case StopFollower:
		l.running = modeIdle
		err = data.StopFollower(ctx)
	case Resume:
		l.endDrain()
		err = data.Resume(ctx)
	default:
		err = errors.New("unknown effect")
	}
	if err != nil {
		return fmt.Errorf("%T: %w", e, err)
	}
	return nil
}

func (l *loop) poster(epoch uint64) func(DataEvent) {
	return func(ev DataEvent) { l.r.post(Reported{Epoch: epoch, Event: ev}) }
}

func (l *loop) announce(ctx context.Context) {
	l.wg.Go(func() {
		if err := l.r.opts.Coordinator.Announce(ctx, Live{Node: l.r.opts.Self, Process: l.r.process}); err != nil &&
			ctx.Err() == nil {
			l.r.post(Reported{Event: Failed{Err: fmt.Errorf("announce this node: %w", err)}})
		}
	})
}

func (l *loop) loadRecord(ctx context.Context) {
	limit := l.state.set.CoordinatorTimeout
	l.wg.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		mark, err := l.r.opts.Coordinator.LoadMark(ctx)
		if errors.Is(err, ErrRecordInvalid) {
			l.r.log.Warn("invalid high-water mark in the coordinator; ignored until the active rewrites it", zap.Error(err))
			mark, err = Mark{}, nil
		}
		if err != nil {
			l.r.post(Loaded{Err: err})
			return
		}
		rec, rev, err := l.r.opts.Coordinator.Load(ctx)
		l.r.post(Loaded{Record: rec, Revision: rev, Mark: mark, Err: err}) // the mark is also valid without a record
	})
}

// markInterval is the interval at which the active writes its committed position to the coordinator.
const markInterval = time.Second

func (l *loop) runMarkLoop(ctx context.Context) {
	l.wg.Go(func() {
		tick := time.NewTicker(markInterval)
		defer tick.Stop()
		var last lsn.Position
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if now, ok := l.r.opts.Data.Committed(); ok && now != last {
				last = now
				l.r.post(Committed{Term: now.Term, LSN: now.LSN})
			}
		}
	})
}

// writeMark writes the mark to the coordinator. It ignores failures: the next write includes the position, and an
// unreachable coordinator is detected elsewhere.
func (l *loop) writeMark(ctx context.Context, e WriteMark) {
	limit := l.state.set.CoordinatorTimeout
	l.wg.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		if before, err := l.r.opts.Coordinator.WriteMark(ctx, e.Mark); err == nil {
			l.r.post(MarkWritten{Before: before})
		}
	})
}

// lastMarkLimit limits how long a stop waits for the coordinator.
const lastMarkLimit = 300 * time.Millisecond

func (l *loop) lastMark(ctx context.Context, mark Mark) {
	ctx, cancel := context.WithTimeout(ctx, lastMarkLimit)
	defer cancel()
	_, _ = l.r.opts.Coordinator.WriteMark(ctx, mark) // on failure, the mark is up to a second old
}

const handshakeTimeout = 300 * time.Millisecond

func (l *loop) handshake(ctx context.Context, e Handshake) {
	l.wg.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
		defer cancel()
		peer, err := l.r.opts.Data.Handshake(ctx, e.Address)
		l.r.post(HandshakeDone{Address: e.Address, Peer: peer, Gone: errors.Is(err, ErrGone), Err: err})
	})
}

func (l *loop) swapRecord(ctx context.Context, e SwapRecord) {
	limit := l.state.set.CoordinatorTimeout
	l.wg.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		rev, err := l.r.opts.Coordinator.Swap(ctx, e.Expect, e.Next)
		l.r.post(Swapped{OpID: e.Next.OpID, Revision: rev, Err: err})
	})
}

func (l *loop) beginDrain(ctx context.Context, e BeginDrain) {
	ctx, cancel := context.WithTimeout(ctx, e.Limit)
	done := make(chan struct{})
	l.drain, l.cancel = done, cancel
	l.wg.Go(func() {
		defer close(done)
		_, err := l.r.opts.Data.Drain(ctx)
		l.r.post(DrainEnded{Drain: e.Drain, Err: err})
	})
}

func (l *loop) endDrain() {
	if l.drain == nil {
		return
	}
	l.cancel()
	<-l.drain
	l.drain, l.cancel = nil, nil
}

func (l *loop) stopRole(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	l.endDrain()
	var err error
	switch l.running {
	case modeAct:
		at, ok := l.r.opts.Data.Committed()
		err = l.r.opts.Data.StopActive(ctx, NodeInfo{})
		if ok && l.state.known { // to detect copies of this directory taken in the last second
			l.lastMark(ctx, Mark{Pair: l.state.rec.PairID, By: at.Term, Term: at.Term, LSN: at.LSN})
		}
	case modeFollow:
		err = l.r.opts.Data.StopFollower(ctx)
	case modeIdle:
	}
	l.running = modeIdle
	if err != nil {
		return fmt.Errorf("stop role: %w", err)
	}
	return nil
}
