// SPDX-License-Identifier: Apache-2.0

package member

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/fleet"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// reconcileInterval is the interval of Reconcile while it succeeds.
	reconcileInterval = 5 * time.Minute
	// checkInterval is the interval at which the active checks whether the description of its pair has changed, or
	// Reconcile is due.
	checkInterval = 5 * time.Second
	// identityInterval is the interval at which a new node checks whether it belongs to a pair.
	identityInterval = 500 * time.Millisecond
	retryMin         = 200 * time.Millisecond
	retryMax         = 30 * time.Second
)

var (
	errChanged = errors.New("membership changed concurrently")
	// errNotRegistered is returned if the directory lacks this pair, although its log contains the membership.
	errNotRegistered = errors.New("pair is not registered in the directory of its fleet")
)

// Run keeps the copy of the directory current. While this node is the active, it also joins the fleet, publishes the
// load of the pair, and reconciles the directory with the queues of the pair. It returns when ctx ends.
func (m *Manager) Run(ctx context.Context) {
	if m == nil {
		return
	}
	d := m.AwaitDirectory(ctx)
	if d == nil {
		return
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { _ = d.Run(ctx) }) // returns the error of ctx
	running.Go(func() { m.watchMembership(ctx) })
	for ctx.Err() == nil {
		role := m.o.Store.SiteChanged()
		m.mu.Lock()
		p, wake := m.primary, m.wake
		m.mu.Unlock()
		work, cancel := context.WithCancel(ctx)
		var working sync.WaitGroup
		if p != nil && m.serves() {
			working.Go(func() { m.maintain(work, d, p) })
			working.Go(func() { m.publishLoad(work, d) })
			working.Go(func() { m.runReleases(work, d) })
		}
		select {
		case <-wake:
		case <-role:
		case <-ctx.Done():
		}
		cancel()
		working.Wait()
	}
}

// AwaitDirectory returns the directory as soon as this node belongs to a pair. It returns nil if ctx ends.
func (m *Manager) AwaitDirectory(ctx context.Context) *fleet.Directory {
	ticker := time.NewTicker(identityInterval)
	defer ticker.Stop()
	for {
		m.mu.Lock()
		wake := m.wake
		m.mu.Unlock()
		if d := m.open(); d != nil {
			return d
		}
		select {
		case <-wake:
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// maintain joins the fleet, and keeps the entries of this pair current, until ctx ends.
func (m *Manager) maintain(ctx context.Context, d *fleet.Directory, p *replication.Primary) {
	w := work{m: m, d: d, p: p}
	for failures := 0; ctx.Err() == nil; {
		err := w.step(ctx)
		if ctx.Err() != nil {
			return
		}
		m.setError(p, err)
		if err == nil {
			failures = 0
			w.wait(ctx, m.o.checkInterval)
			continue
		}
		w.waitAfterError(ctx, min(retryMin<<min(failures, 10), retryMax))
		failures++
	}
}

// wait waits for delay, or until due is signaled. A signal requests a Reconcile in the next step.
func (w *work) wait(ctx context.Context, delay time.Duration) {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.m.due:
		w.reconciled = time.Time{}
	case <-ctx.Done():
	}
}

// waitAfterError waits for delay, or until the copy of the directory becomes current again.
func (w *work) waitAfterError(ctx context.Context, delay time.Duration) {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	for before := w.d.Status().Current; ; {
		changed := w.d.Changed()
		now := w.d.Status().Current
		if now && !before {
			return
		}
		before = now
		select {
		case <-timer.C:
			return
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// setError records the result of the last step of p.
func (m *Manager) setError(p *replication.Primary, err error) {
	m.mu.Lock()
	if m.primary != p {
		m.mu.Unlock()
		return
	}
	changed := (err == nil) != (m.err == nil) || err != nil && err.Error() != m.err.Error()
	m.err = err
	m.mu.Unlock()
	if !changed {
		return
	}
	if err != nil {
		m.log.Warn("directory of the fleet not updated, will be retried", zap.Error(err))
	}
	m.o.Changed()
}

// setConflicts records the queues of this pair that other pairs own, as found by p.
func (m *Manager) setConflicts(p *replication.Primary, conflicts []fleet.Conflict) {
	m.mu.Lock()
	if m.primary != p {
		m.mu.Unlock()
		return
	}
	changed := !slices.Equal(conflicts, m.conflicts)
	m.conflicts = conflicts
	m.mu.Unlock()
	if !changed {
		return
	}
	if len(conflicts) > 0 {
		m.log.Error("queues of this pair are assigned to other pairs",
			zap.Error(&fleet.ConflictError{Conflicts: conflicts}))
	}
	m.o.Changed()
}

// work maintains the membership and the directory entries of the pair while this node is the active.
type work struct {
	m *Manager
	d *fleet.Directory
	p *replication.Primary

	member     *fleet.Member // as last written
	reconciled time.Time     // when Reconcile succeeded; zero if it must be called
}

// step joins the fleet if the pair is not a member, updates the registration, and reconciles the entries if that is
// due. It does nothing if the pair has left.
func (w *work) step(ctx context.Context) error {
	if err := lock(ctx, w.m.working); err != nil {
		return err
	}
	defer func() { <-w.m.working }()
	st := query.Fleet(w.m.o.Store)
	if err := w.m.mismatch(&st); err != nil {
		return err
	}
	if !st.Member() {
		if w.m.hasLeft() {
			return nil
		}
		if err := w.join(ctx); err != nil {
			return err
		}
		w.member, w.reconciled = nil, time.Time{}
	}
	if err := w.update(ctx); err != nil {
		return err
	}
	if !w.reconciled.IsZero() && time.Since(w.reconciled) < w.m.o.reconcileInterval {
		return nil
	}
	return w.reconcile(ctx)
}

// hasLeft reports whether the pair has left its fleet since the start of this process. The caller has verified that it
// is not a member.
func (m *Manager) hasLeft() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.left || m.member
}

// note sets the field member if the pair is a member.
func (m *Manager) note() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.noteLocked()
}

func (m *Manager) noteLocked() {
	if query.Fleet(m.o.Store).Member() {
		m.member = true
	}
}

// watchMembership records memberships in the log, also on a standby, until ctx ends.
func (m *Manager) watchMembership(ctx context.Context) {
	changed, cancel := query.WatchFleet(m.o.Store)
	defer cancel()
	for {
		m.note()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// join registers the pair, and commits the membership.
func (w *work) join(ctx context.Context) error {
	m := w.m
	if err := m.o.Supported(); err != nil {
		return err
	}
	id, report, err := w.d.Join(ctx, m.describe(), m.queues(w.p))
	if err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	fleetID, err := uuid.Parse(id)
	if err != nil {
		return fmt.Errorf("ID of the fleet: %w", err)
	}
	// The epoch of the join applies to all queues of the pair. It must be above all epochs in the log, including those
	// of other fleets, and the directory must not appear to be older.
	least := query.Fleet(m.o.Store).MaxEpoch
	for _, epoch := range report.Epochs {
		least = max(least, epoch)
	}
	epoch, err := w.d.NewEpoch(ctx, id, least)
	if err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	err = m.commit(ctx, w.p, txn.FleetChange{Action: txn.FleetJoin, ID: fleetID, Pair: m.o.Pair, Epoch: epoch})
	if err != nil {
		return err
	}
	m.log.Info("pair joined the fleet", zap.String("fleet", id), zap.String("pair", m.o.Pair),
		zap.Uint64("epoch", epoch), zap.Int("queues", len(report.Epochs)))
	return nil
}

// commit commits a change of the membership.
func (m *Manager) commit(ctx context.Context, p *replication.Primary, c txn.FleetChange) error {
	payload, err := txn.Build(time.Now(), func(b *txn.Builder) { b.Fleet(c) })
	if err != nil {
		return fmt.Errorf("encode a change of the membership: %w", err)
	}
	r, err := p.CommitExempt(ctx, payload)
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		return fmt.Errorf("%s the fleet: %w", c.Action, err)
	}
	m.o.Changed()
	return nil
}

// describe returns the description of this pair for the directory.
func (m *Manager) describe() fleet.Member {
	addresses := slices.Sorted(slices.Values(m.o.Addresses()))
	return fleet.Member{
		Addresses: addresses[:min(len(addresses), fleet.MaxAddresses)], Labels: m.o.Labels, CapacityBytes: m.o.Capacity(),
	}
}

// update writes the description of this pair to the directory, at first and after each change. After a success, it
// permits creations in this term (setReady). If the directory lacks the pair, update does not add it again: other
// pairs may own its names by now.
func (w *work) update(ctx context.Context) error {
	now := w.m.describe()
	if old := w.member; old != nil && slices.Equal(old.Addresses, now.Addresses) && maps.Equal(old.Labels, now.Labels) &&
		old.CapacityBytes == now.CapacityBytes {
		return nil
	}
	err := w.d.UpdateMember(ctx, now)
	if errors.Is(err, fleet.ErrNotMember) {
		return fmt.Errorf("%w: %s; complete lockstep fleet leave, or use lockstep fleet rebuild to remain in the fleet",
			errNotRegistered, err.Error())
	}
	if err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	w.member = &now
	w.m.setReady(w.p)
	return nil
}

func (w *work) reconcile(ctx context.Context) error {
	report, err := w.d.Reconcile(ctx, w.m.queues(w.p), w.m.creations.inProgress)
	if err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	w.m.record(w.p, &report)
	w.reconciled = time.Now()
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if w.m.primary == w.p {
		w.m.reconciled = w.reconciled
	}
	return nil
}

// record logs the changes of the directory, and keeps the conflicts for the status.
func (m *Manager) record(p *replication.Primary, r *fleet.Report) {
	if r.Added+r.Updated+r.Removed > 0 {
		m.log.Info("directory of the fleet updated", zap.Int("added", r.Added), zap.Int("updated", r.Updated),
			zap.Int("removed", r.Removed))
	}
	m.setConflicts(p, m.current(r.Conflicts))
}

// current returns the conflicts without those of queues that were deleted, or moved to another pair, since they were
// listed.
func (m *Manager) current(conflicts []fleet.Conflict) (current []fleet.Conflict) {
	for _, c := range conflicts {
		if epoch, exists := query.OwnershipEpoch(m.o.Store, c.Queue); exists && epoch == c.Epoch {
			current = append(current, c)
		}
	}
	return current
}

// publishLoad publishes the load of this pair until ctx ends, while the directory is that of its fleet.
func (m *Manager) publishLoad(ctx context.Context, d *fleet.Directory) {
	ticker := time.NewTicker(m.o.loadTTL / 3)
	defer ticker.Stop()
	joined, cancel := query.WatchFleet(m.o.Store)
	defer cancel()
	for due := true; ; {
		changed := d.Changed()
		st := query.Fleet(m.o.Store)
		if st.Member() && m.mismatch(&st) == nil && d.Status().FleetID == st.ID.String() {
			changed = nil
			if due {
				due = false
				if err := d.PutLoad(ctx, m.o.Load()); err != nil && ctx.Err() == nil {
					m.log.Debug("load of the pair not published", zap.Error(err))
				}
			}
		}
		select {
		case <-ticker.C:
			due = true
		case <-joined:
			due = true
		case <-m.loadDue:
			due = true
		case <-changed: // nil while the directory is that of the fleet
		case <-ctx.Done():
			return
		}
	}
}

// queues returns the queues of this pair for the directory. If p was replaced, the list fails.
func (m *Manager) queues(p *replication.Primary) fleet.Queues {
	return func(ctx context.Context) (iter.Seq2[string, uint64], error) {
		if err := barrier(ctx, p); err != nil {
			return nil, err
		}
		before := query.Fleet(m.o.Store)
		own := map[string]uint64{}
		if before.Member() {
			query.OwnedQueues(m.o.Store, func(q query.OwnedQueue) { own[q.Name] = q.Epoch })
		} else {
			query.Samples(m.o.Store, func(q query.QueueSample) { own[q.Name] = 0 })
		}
		if query.Fleet(m.o.Store).ID != before.ID {
			return nil, errChanged
		}
		if err := m.o.Store.Usable(); err != nil {
			return nil, fmt.Errorf("list queues: %w", err)
		}
		return maps.All(own), nil
	}
}

// barrier commits a record without effect, after all records of this term that were logged before.
func barrier(ctx context.Context, p *replication.Primary) error {
	payload, err := txn.Barrier(time.Now())
	if err != nil {
		return fmt.Errorf("encode a record: %w", err)
	}
	if _, err := p.CommitExempt(ctx, payload); err != nil {
		return fmt.Errorf("confirm that this node is the active: %w", err)
	}
	return nil
}
