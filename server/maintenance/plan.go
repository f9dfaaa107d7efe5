// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/page"
)

// PlanKind says what a plan does on each node.
type PlanKind string

// The kinds of plans.
const (
	// PlanResize rewrites with another page size.
	PlanResize PlanKind = "resize"
	// PlanCompact rewrites with the page size that each node has.
	PlanCompact PlanKind = "compact"
	// PlanRestart restarts the processes: for a new version of the program, or new settings.
	PlanRestart PlanKind = "restart"
)

// PlanState says where a plan is. It is for people: what is done next follows from Plan.Done and from the nodes' roles.
type PlanState string

// The states of a plan. Done, failed and cancelled are ends.
const (
	PlanWaiting    PlanState = "waiting"
	PlanRewriting  PlanState = "rewriting"
	PlanCatchingUp PlanState = "catching-up"
	PlanSwitching  PlanState = "switching"
	PlanDone       PlanState = "done"
	PlanFailed     PlanState = "failed"
	PlanCancelled  PlanState = "cancelled"
	PlanRestarting PlanState = "restarting"
)

// Ended tells whether nothing more will be done.
func (s PlanState) Ended() bool { return s == PlanDone || s == PlanFailed || s == PlanCancelled }

// Plan is a rolling operation on the pair, as it is kept.
type Plan struct {
	ID   string   `json:"id"`
	Kind PlanKind `json:"kind"`
	// PageSize to be reached, in bytes; 0 for a compaction or restart.
	PageSize int `json:"page_size,omitempty"`
	// SwitchBack: give the role back to FirstActive at the end.
	SwitchBack bool `json:"switch_back,omitempty"`
	// Pair that it was started on. In another one, that a backup was restored to, it is ended at once.
	Pair        uuid.UUID `json:"pair"`
	FirstActive uuid.UUID `json:"first_active"`
	State       PlanState `json:"state"`
	// Reason for State, in words.
	Reason string `json:"reason,omitempty"`
	// Done are the stores whose page file was rewritten, or whose node has restarted, one for each node at most: all
	// that a new active needs to know. A store that was replaced since, by a snapshot of the other node for instance,
	// is another one, and not done.
	Done []failover.Member `json:"done,omitempty"`
	// Node that is worked on.
	Node      uuid.UUID `json:"node"`
	StartedAt time.Time `json:"started_at"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
	// Retries counts steps that had to be begun again.
	Retries int `json:"retries,omitempty"`

	// Progress of the present step, as far as this node knows. Not kept.
	Progress *checkpoint.Progress `json:"-"`
}

func (p *Plan) has(store failover.Member) bool { return slices.Contains(p.Done, store) }

// did notes that a store is done, in the place of a former one of its node.
func (p *Plan) did(store failover.Member) {
	p.Done = slices.DeleteFunc(p.Done, func(m failover.Member) bool { return m.Node == store.Node })
	p.Done = append(p.Done, store)
}

// outdated tells that one of these stores, as the record names them, is not the one of its node that is done.
func (p *Plan) outdated(stores ...failover.Member) bool {
	return slices.ContainsFunc(p.Done, func(d failover.Member) bool { return replaced(d, stores) })
}

// forgetOutdated makes the parts of such nodes undone.
func (p *Plan) forgetOutdated(stores ...failover.Member) {
	p.Done = slices.DeleteFunc(p.Done, func(d failover.Member) bool { return replaced(d, stores) })
}

// replaced tells whether one of the stores is another one of the same node.
func replaced(done failover.Member, stores []failover.Member) bool {
	return slices.ContainsFunc(stores, func(s failover.Member) bool { return s.Node == done.Node && s != done })
}

// errPlanEnded is why a step is given up when the plan was cancelled.
var errPlanEnded = errors.New("the plan was cancelled")

// Plan gives the last plan as this node knows it; nil if there never was one.
func (m *Manager) Plan() (*Plan, error) {
	p, ok, err := read[Plan](m, keyPlan)
	if err != nil || !ok {
		return nil, err
	}
	if a, ok := m.Activity(); ok && a.PlanID == p.ID {
		// This node does it, and applies nothing meanwhile: what it has read may be a little old.
		p.State, p.Node, p.Progress = PlanRewriting, m.node.Pair().Self.ID, &a.Progress
	} else if p.State == PlanRewriting {
		p.Progress = m.progress.Load()
	}
	return &p, nil
}

// WatchPlan calls fn with the plan now and after each change, also of its progress, until it has ended, ctx ends, or fn
// returns an error.
func (m *Manager) WatchPlan(ctx context.Context, fn func(*Plan) error) error {
	entries, unwatch := m.store.WatchMeta()
	defer unwatch()
	for {
		p, err := m.Plan()
		if err != nil {
			return err
		}
		if err := fn(p); err != nil {
			return err
		}
		if p == nil || p.State.Ended() {
			return nil
		}
		if !m.wait(ctx, nil, entries, m.o.Tick) {
			return ctx.Err()
		}
	}
}

// AwaitPlan waits, for a moment at most, until this node has applied a plan that the active has begun or ended.
func (m *Manager) AwaitPlan(ctx context.Context, id string) { m.awaitPlan(ctx, id) }

// StartPlan begins a plan. pageSize is for PlanResize; 0 means the recommended one. Only on the active of a pair.
// ErrPlanRuns, ErrNoRecommendation, ErrRole (a node alone), ErrSetting (the page size, or a node that would not start
// again).
func (m *Manager) StartPlan(ctx context.Context, kind PlanKind, pageSize int, switchBack bool) (*Plan, error) {
	if m.node.Alone() {
		return nil, fmt.Errorf("start a plan: %w: this node runs alone; set resize-on-startup or compact-on-startup "+
			"and start it again", ErrRole)
	}
	switch {
	case kind != PlanResize && kind != PlanCompact && kind != PlanRestart:
		return nil, fmt.Errorf("start a plan: %w: %q is no kind of plan", ErrSetting, kind)
	case kind != PlanResize:
		pageSize = 0
	case pageSize != 0:
		if err := page.CheckPageSize(pageSize); err != nil {
			return nil, fmt.Errorf("start a plan: %w: %w", ErrSetting, err)
		}
	}
	settings, err := m.Settings()
	if err != nil {
		return nil, err
	}
	if kind == PlanRestart { // the other node checks its own when it is its turn, which is first
		if err := m.checkRestart(ctx); err != nil {
			return nil, fmt.Errorf("start a plan: %w", err)
		}
	}
	p, err := change(ctx, m, keyPlan, func(p *Plan) error {
		if p.ID != "" && !p.State.Ended() {
			return fmt.Errorf("%w: plan %s (%s, %s)", ErrPlanRuns, p.ID, p.Kind, p.State)
		}
		if kind == PlanResize && pageSize == 0 {
			if pageSize = settings.PageSizeRecommended; pageSize == 0 {
				return ErrNoRecommendation
			}
		}
		*p = Plan{
			ID: uuid.NewString(), Pair: m.pair(), Kind: kind, PageSize: pageSize, SwitchBack: switchBack,
			FirstActive: m.node.Pair().Self.ID,
			State:       PlanWaiting, Reason: "begins", StartedAt: m.o.Now(),
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("start a plan: %w", err)
	}
	return &p, nil
}

// CancelPlan ends the plan: a rewrite that is under way is dropped, a switchover that has begun is not undone. Only on
// the active. ErrNoPlan when none is under way.
func (m *Manager) CancelPlan(ctx context.Context) (*Plan, error) {
	p, err := change(ctx, m, keyPlan, func(p *Plan) error {
		if p.ID == "" || p.State.Ended() {
			return ErrNoPlan
		}
		p.end(PlanCancelled, fmt.Sprintf("cancelled while %s; %d of %d nodes were done", p.State, len(p.Done),
			pairSize), m.o.Now())
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cancel the plan: %w", err)
	}
	return &p, nil
}

func (p *Plan) end(state PlanState, reason string, now time.Time) {
	p.State, p.Reason, p.EndedAt, p.Node = state, reason, now, uuid.Nil
}

// advance changes a plan that has not ended meanwhile. fn gives errUnchanged for nothing to do.
func (m *Manager) advance(ctx context.Context, id string, fn func(*Plan) error) error {
	_, err := change(ctx, m, keyPlan, func(p *Plan) error {
		if p.ID != id || p.State.Ended() {
			return errPlanEnded
		}
		return fn(p)
	})
	return err
}

// enter notes where the plan is, if that is new.
func (m *Manager) enter(ctx context.Context, id string, state PlanState, node uuid.UUID, reason string) error {
	return m.advance(ctx, id, func(p *Plan) error {
		if p.State == state && p.Node == node && p.Reason == reason {
			return errUnchanged
		}
		p.State, p.Node, p.Reason = state, node, reason
		return nil
	})
}
