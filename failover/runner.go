// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
)

// Options configures a Runner.
type Options struct {
	// Coordinator is closed by the caller after Run has returned.
	Coordinator Coordinator
	Data        DataPlane
	// Self describes this node. Its ID is the node ID of the store. Its field Preferred is replaced by that of Settings.
	Self     NodeInfo
	Settings Settings
	// Logger receives log entries; nil discards them.
	Logger *zap.Logger
}

// Runner drives the machine of one node.
type Runner struct {
	opts    Options
	log     *zap.Logger
	process string
	began   time.Time // origin of the machine's clock

	signal  chan struct{} // capacity 1; signals a non-empty queue
	stopped chan struct{} // closed when Run has returned

	mu              sync.Mutex // guards the fields below
	queue           []Event
	status          Status
	changed         chan struct{}
	waiters         map[string]chan Effect // by request ID
	running         bool
	failbackBlocked string
}

// New returns a Runner, which is started with Run.
func New(o Options) (*Runner, error) {
	switch {
	case o.Coordinator == nil || o.Data == nil:
		return nil, errors.New("failover requires a coordinator and a data plane")
	case o.Self.ID == uuid.Nil:
		return nil, errors.New("failover requires the ID of this node")
	case o.Self.Address == "":
		return nil, errors.New("failover requires the advertised address of this node")
	case o.Settings.MinInSync < 0 || o.Settings.MinInSync > 2:
		return nil, fmt.Errorf("min_in_sync is %d; must be 1 (continue alone) or 2 (reject writes while alone)",
			o.Settings.MinInSync)
	}
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	o.Self.Preferred = o.Settings.Preferred
	r := &Runner{
		opts: o, log: o.Logger.Named("failover"), process: uuid.NewString(), began: time.Now(),
		signal: make(chan struct{}, 1), stopped: make(chan struct{}), changed: make(chan struct{}),
		waiters: make(map[string]chan Effect),
	}
	r.status = Status{
		Role: RoleRecovering, Reason: "starting", Since: r.began, Self: o.Self, Coordinator: o.Coordinator.Name(),
	}
	return r, nil
}

// Run runs the node as a member of its pair until ctx ends. Then it stops the role, and returns nil unless this
// fails. Run also ends, with an error, if the node must not continue: ErrOtherPair, ErrRecordVersion,
// ErrRecordInvalid, ErrFailed, or an error of the data plane. When Run returns, no role is running, and the liveness
// key was removed or will expire. Run may only be called once.
func (r *Runner) Run(ctx context.Context) error {
	r.mu.Lock()
	if r.running {
		r.mu.Unlock()
		return errors.New("failover is already running")
	}
	r.running = true
	r.mu.Unlock()

	l := newLoop(r)
	err := l.run(ctx)
	close(r.stopped)
	if err != nil {
		return fmt.Errorf("failover: %w", err)
	}
	return nil
}

// Process returns an ID that distinguishes this process from other processes of the node.
func (r *Runner) Process() string { return r.process }

// ReportDuplicate records that another process with this node's identity has contacted this process.
func (r *Runner) ReportDuplicate(other Live) { r.post(DuplicateReported{Live: other}) }

// Post reports an event that does not belong to a role; only Failed has an effect. It never blocks.
func (r *Runner) Post(ev DataEvent) { r.post(Reported{Event: ev}) }

// Status returns the current status.
func (r *Runner) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// Changed returns a channel that is closed at the next change of Status. To miss no change, call it before Status.
func (r *Runner) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// Notify closes the channel of Changed although Status has not changed.
func (r *Runner) Notify() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.changed)
	r.changed = make(chan struct{})
}

// addressPoll is the retry interval of a switchover that failed for a transient reason.
const addressPoll = 20 * time.Millisecond

// coordinatorCheck is how long the coordinator may take to respond before a switchover.
const coordinatorCheck = time.Second

// SwitchoverResult is the outcome of a planned switchover.
type SwitchoverResult struct {
	Active NodeInfo
	Term   uint64
	// Pause is how long no new transaction could be acknowledged; if requested on the standby, the time since the
	// request.
	Pause time.Duration
	// Already reports whether the requested node was active before.
	Already bool
}

// Switchover transfers the active role to the node that is not active. Both nodes accept the request. Switchover
// returns when that node is active, or with ErrSwitchover or ErrStopped. If ctx ends first, the returned error wraps
// the context's error, and the role may still be transferred.
func (r *Runner) Switchover(ctx context.Context) (SwitchoverResult, error) {
	return r.SwitchoverTo(ctx, uuid.Nil)
}

// SwitchoverTo is like Switchover, but activates the given node. It is idempotent: it also succeeds if the node is
// already active, or becomes active through another switchover. With uuid.Nil it is equivalent to Switchover.
func (r *Runner) SwitchoverTo(ctx context.Context, to uuid.UUID) (SwitchoverResult, error) {
	if err := r.checkCoordinator(ctx); err != nil {
		return SwitchoverResult{}, err
	}
	for {
		e, err := r.requestSwitchover(ctx, to)
		switch {
		case err != nil:
			return SwitchoverResult{}, err
		case e.Failure == reasonBusy && to != uuid.Nil && r.waitRetry(ctx):
			continue // possibly an earlier attempt of this request
		case e.Failure == reasonNoAddress && r.waitRetry(ctx):
			continue
		case e.Failure != "":
			return SwitchoverResult{}, fmt.Errorf("%w: %s", ErrSwitchover, e.Failure)
		}
		st := r.Status()
		active, _ := st.ActiveNode()
		res := SwitchoverResult{Active: active, Pause: e.Pause, Already: e.Already}
		if st.Record != nil {
			res.Term = st.Record.Term
		}
		return res, nil
	}
}

// checkCoordinator checks that the coordinator is reachable.
func (r *Runner) checkCoordinator(ctx context.Context) error {
	select {
	case <-r.stopped:
		return ErrStopped
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, coordinatorCheck)
	defer cancel()
	_, _, err := r.opts.Coordinator.Load(ctx)
	if errors.Is(err, ErrUnreachable) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrSwitchover, err)
	}
	return nil // the machine handles any other problem
}

func (r *Runner) waitRetry(ctx context.Context) bool {
	timer := time.NewTimer(addressPoll)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.stopped:
		return true // requestSwitchover returns ErrStopped
	case <-ctx.Done():
		return false
	}
}

func (r *Runner) requestSwitchover(ctx context.Context, to uuid.UUID) (SwitchoverEnded, error) {
	id := uuid.NewString()
	e, err := request[SwitchoverEnded](ctx, r, id, SwitchoverRequested{ID: id, To: to})
	if err != nil && !errors.Is(err, ErrStopped) {
		err = fmt.Errorf("switchover: outcome is unknown: %w", err)
	}
	return e, err
}

// request posts an event and waits for the effect with the given ID. It returns ErrStopped or the context's error. If
// Run returns after the event was posted, the error also wraps ErrUnknownOutcome.
func request[E Effect](ctx context.Context, r *Runner, id string, ev Event) (none E, err error) {
	select {
	case <-r.stopped:
		return none, ErrStopped
	default:
	}
	done := make(chan Effect, 1)
	r.mu.Lock()
	r.waiters[id] = done
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.waiters, id)
		r.mu.Unlock()
	}()
	r.post(ev)
	select {
	case e := <-done:
		return e.(E), nil //nolint:forcetypeassert // IDs are unique
	case <-r.stopped:
		return none, fmt.Errorf("%w: %w", ErrUnknownOutcome, ErrStopped)
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// respond passes an effect to the caller of request that waits for the ID.
func (r *Runner) respond(id string, e Effect) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if done, ok := r.waiters[id]; ok {
		done <- e // capacity 1, sent once
		delete(r.waiters, id)
	}
}

func (r *Runner) post(ev Event) {
	r.mu.Lock()
	r.queue = append(r.queue, ev)
	r.mu.Unlock()
	select {
	case r.signal <- struct{}{}:
	default: // the loop is already signaled
	}
}

func (r *Runner) take() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queue
	r.queue = nil
	return q
}

func (r *Runner) publish(s *State) {
	st := Status{
		Role: s.Role(), Reason: s.Reason(), Self: s.self, Revision: s.rev, Coordinator: r.opts.Coordinator.Name(),
		CoordinatorReachable: s.reachable, Live: s.live,
		Serve:   s.mode == modeAct && s.act.sent.Serve,
		Deliver: s.mode == modeAct && s.act.sent.Deliver,
		Standby: s.act.member.Node,
		Refused: s.refused, Problem: s.problem, CoordinatorRefuses: s.refusal, MayHaveLost: s.ident.MayHaveLost,
		Superseded: s.proc.superseded != "" && s.proc.copyOf == "", RolledBack: s.proc.rolledBack, Ahead: s.ahead(),
		Duplicate:  s.duplicate(),
		Conditions: s.coordinatorConditions,
	}
	if s.mode == modeAct && s.act.transferAt != never {
		st.FailbackAt = r.began.Add(s.act.transferAt)
	}
	if s.known {
		rec := s.rec.Clone()
		st.Record = &rec
	}
	end := r.opts.Data.Identity().End
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.status
	st.Since = old.Since
	if st.Role != old.Role {
		st.Since = time.Now()
	}
	r.logChange(s, old, st, end.LSN)
	if sameStatus(old, st) {
		return
	}
	r.status = st
	close(r.changed)
	r.changed = make(chan struct{})
}

func sameStatus(a, b Status) bool {
	if (a.Record == nil) != (b.Record == nil) || a.Record != nil &&
		(a.Record.Config != b.Record.Config || a.Record.OpID != b.Record.OpID) {
		return false
	}
	return a.Superseded == b.Superseded && a.RolledBack == b.RolledBack && a.Ahead == b.Ahead &&
		(a.Duplicate == nil) == (b.Duplicate == nil) &&
		a.Role == b.Role && a.Reason == b.Reason && a.Revision == b.Revision &&
		a.CoordinatorReachable == b.CoordinatorReachable &&
		a.Serve == b.Serve && a.Deliver == b.Deliver && a.Standby == b.Standby && a.FailbackAt.Equal(b.FailbackAt) &&
		a.Problem == b.Problem && a.CoordinatorRefuses == b.CoordinatorRefuses && a.MayHaveLost == b.MayHaveLost &&
		slices.Equal(a.Live, b.Live) && slices.Equal(a.Conditions, b.Conditions)
}
