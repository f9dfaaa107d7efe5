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
	"github.com/lockstep-mq/lockstep/store/query"
)

// PlanKind is the operation that a plan executes on each node.
type PlanKind string

// The kinds of plans.
const (
	PlanResize  PlanKind = "resize"  // changes the page size
	PlanCompact PlanKind = "compact" // keeps each node's current page size
	// PlanRestart restarts the processes, to use a new version of the program or new settings.
	PlanRestart PlanKind = "restart"
)

// PlanState is the state of a plan, for display. Plan.Done and the roles of the nodes determine the next step.
type PlanState string

// The states of a plan. PlanDone, PlanFailed and PlanCancelled are final.
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

// Ended reports whether the state is final.
func (s PlanState) Ended() bool { return s == PlanDone || s == PlanFailed || s == PlanCancelled }

// Plan is a rolling operation on the pair, as stored.
type Plan struct {
	ID   string   `json:"id"`
	Kind PlanKind `json:"kind"`
	// PageSize is the new page size in bytes. It is 0 for a compaction or a restart.
	PageSize int `json:"page_size,omitempty"`
	// SwitchBack requests that FirstActive is active again at the end.
	SwitchBack bool `json:"switch_back,omitempty"`
	// Pair is the ID of the pair on which the plan was started. If the plan is restored from a backup on another pair,
	// the active of that pair cancels it.
	Pair        uuid.UUID `json:"pair"`
	FirstActive uuid.UUID `json:"first_active"`
	State       PlanState `json:"state"`
	// Reason explains State to operators.
	Reason string `json:"reason,omitempty"`
	// Done contains the stores for which the operation was completed, at most one for each node. If a store is
	// replaced, for example by a snapshot of the other node, it no longer counts as done.
	Done      []failover.Member `json:"done,omitempty"`
	Node      uuid.UUID         `json:"node"`
	StartedAt time.Time         `json:"started_at"`
	EndedAt   time.Time         `json:"ended_at,omitzero"`
	Retries   int               `json:"retries,omitempty"`

	// Progress is the progress of the current step, if known to this node. It is not stored.
	Progress *checkpoint.Progress `json:"-"`
}

func (p *Plan) has(store failover.Member) bool { return slices.Contains(p.Done, store) }

// storeDone adds a store to Done, and removes the entry of an earlier store of the same node.
func (p *Plan) storeDone(store failover.Member) {
	p.Done = slices.DeleteFunc(p.Done, func(m failover.Member) bool { return m.Node == store.Node })
	p.Done = append(p.Done, store)
}

func (p *Plan) outdated(stores ...failover.Member) bool {
	return slices.ContainsFunc(p.Done, func(d failover.Member) bool { return replaced(d, stores) })
}

func (p *Plan) removeOutdated(stores ...failover.Member) {
	p.Done = slices.DeleteFunc(p.Done, func(d failover.Member) bool { return replaced(d, stores) })
}

// replaced reports whether stores contains another store of the node of done.
func replaced(done failover.Member, stores []failover.Member) bool {
	return slices.ContainsFunc(stores, func(s failover.Member) bool { return s.Node == done.Node && s != done })
}

var errPlanEnded = errors.New("plan was canceled")

// Plan returns the last plan as applied on this node. It returns nil if no plan was started.
func (m *Manager) Plan() (*Plan, error) {
	p, ok, err := read[Plan](m, keyPlan)
	if err != nil || !ok {
		return nil, err
	}
	if a, ok := m.Activity(); ok && a.PlanID == p.ID {
		// This node executes the step and applies nothing in the meantime. Therefore its copy of the entry may be
		// outdated.
		p.State, p.Node, p.Progress = PlanRewriting, m.node.Pair().Self.ID, &a.Progress
	} else if p.State == PlanRewriting {
		p.Progress = m.progress.Load()
	}
	return &p, nil
}

// WatchPlan calls fn with the current plan immediately, after each change of an internal entry, and at intervals of
// Options.Tick. It returns when the plan or ctx has ended, or when fn returns an error. If no plan was started, it
// calls fn once with nil.
func (m *Manager) WatchPlan(ctx context.Context, fn func(*Plan) error) error {
	entries, unwatch := query.WatchMeta(m.store)
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

// AwaitPlan waits for at most one second until this node has applied a plan that the active has started.
func (m *Manager) AwaitPlan(ctx context.Context, id string) { m.awaitPlan(ctx, id) }

// StartPlan starts a plan. It must be called on the active of a pair. pageSize applies to PlanResize; 0 means the
// recommended page size. switchBack requests that this node is active again at the end. Its errors include
// ErrPlanRuns, ErrNoRecommendation, ErrRole (on a standalone node), and ErrSetting (for an invalid page size or kind,
// or if this node could not be restarted).
func (m *Manager) StartPlan(ctx context.Context, kind PlanKind, pageSize int, switchBack bool) (*Plan, error) {
	if m.node.Alone() {
		return nil, fmt.Errorf("start a plan: %w: node is standalone; set resize-on-startup or compact-on-startup "+
			"and restart it", ErrRole)
	}
	switch {
	case kind != PlanResize && kind != PlanCompact && kind != PlanRestart:
		return nil, fmt.Errorf("start a plan: %w: unknown plan kind %q", ErrSetting, kind)
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
	if kind == PlanRestart { // the other node restarts first, and checks its own configuration at that time
		if err := m.checkRestart(ctx); err != nil {
			return nil, fmt.Errorf("start a plan: %w", err)
		}
	}
	p, err := change(ctx, m, keyPlan, func(p *Plan) error {
		if p.ID != "" && !p.State.Ended() {
			return fmt.Errorf("%w: %s (%s, %s); wait for it, or cancel it", ErrPlanRuns, p.ID, p.Kind, p.State)
		}
		if kind == PlanResize && pageSize == 0 {
			if pageSize = settings.PageSizeRecommended; pageSize == 0 {
				return fmt.Errorf("%w: run a scan, or specify a page size", ErrNoRecommendation)
			}
		}
		*p = Plan{
			ID: uuid.NewString(), Pair: m.pair(), Kind: kind, PageSize: pageSize, SwitchBack: switchBack,
			FirstActive: m.node.Pair().Self.ID,
			State:       PlanWaiting, Reason: "starting", StartedAt: m.o.Now(),
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("start a plan: %w", err)
	}
	return &p, nil
}

// CancelPlan ends the plan. A running rewrite is canceled. A switchover in progress is completed. CancelPlan
// must be called on the active. It returns ErrNoPlan if no plan is running.
func (m *Manager) CancelPlan(ctx context.Context) (*Plan, error) {
	p, err := change(ctx, m, keyPlan, func(p *Plan) error {
		if p.ID == "" || p.State.Ended() {
			return ErrNoPlan
		}
		p.end(PlanCancelled, fmt.Sprintf("canceled while %s; %d of %d nodes done", p.State, len(p.Done),
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

// advance calls fn to change the plan with the given ID. If the plan has ended or was replaced, it returns
// errPlanEnded. fn returns errUnchanged if no change is needed.
func (m *Manager) advance(ctx context.Context, id string, fn func(*Plan) error) error {
	_, err := change(ctx, m, keyPlan, func(p *Plan) error {
		if p.ID != id || p.State.Ended() {
			return errPlanEnded
		}
		return fn(p)
	})
	return err
}

func (m *Manager) enter(ctx context.Context, id string, state PlanState, node uuid.UUID, reason string) error {
	return m.advance(ctx, id, func(p *Plan) error {
		if p.State == state && p.Node == node && p.Reason == reason {
			return errUnchanged
		}
		p.State, p.Node, p.Reason = state, node, reason
		return nil
	})
}
