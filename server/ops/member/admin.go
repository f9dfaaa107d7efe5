// SPDX-License-Identifier: Apache-2.0

package member

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/fleet"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Rebuild writes the registration and the entries of this pair to a lost or restored directory. pairs are the names of
// all pairs of the fleet. It waits for creations in progress; new creations wait until Rebuild returns. On a node that
// is not the active, it returns the error of Options.NotActive. The other errors include fleet.ErrOtherName,
// fleet.ErrNotMember and those of fleet.Directory.Rebuild.
func (m *Manager) Rebuild(ctx context.Context, pairs []string) (fleet.Report, error) {
	var report fleet.Report
	err := m.exclusive(ctx, func(p *replication.Primary, d *fleet.Directory) (err error) {
		report, err = d.Rebuild(ctx, m.describe(), pairs, m.queues(p))
		if err == nil {
			m.record(p, &report)
		}
		signal(m.due)
		signal(m.loadDue)
		return err
	})
	if err != nil {
		return report, fmt.Errorf("fleet: %w", err)
	}
	return report, nil
}

// Leave ends the membership of this pair: it deletes the pair from the directory, and commits the end of the
// membership. The pair must have no queues, unless it is the last pair of the fleet. It joins again when a node that
// was restarted with fleet.pair becomes the active. On a node that is not the active, Leave returns the error of
// Options.NotActive. The other errors include fleet.ErrOtherName, fleet.ErrNotMember, fleet.ErrMoving, those of
// fleet.Directory.Leave, and those of replication.Primary.CommitExempt. Leave can be called again after an error.
func (m *Manager) Leave(ctx context.Context) error {
	err := m.exclusive(ctx, func(p *replication.Primary, d *fleet.Directory) error {
		if len(query.Moves(m.o.Store)) > 0 {
			return fleet.ErrMoving
		}
		if err := d.Leave(ctx, m.queues(p)); err != nil {
			return err
		}
		m.mu.Lock()
		m.left = m.primary == p
		m.mu.Unlock()
		if err := m.commit(ctx, p, txn.FleetChange{Action: txn.FleetLeave}); err != nil {
			return err
		}
		m.log.Info("pair left the fleet", zap.String("pair", m.o.Pair))
		return nil
	})
	if err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	return nil
}

// exclusive calls f if this node is the active of a pair that is a member of a fleet. No creations and no other
// changes of the fleet are in progress during the call.
func (m *Manager) exclusive(ctx context.Context, f func(*replication.Primary, *fleet.Directory) error) error {
	p, d, err := m.active()
	if err != nil {
		return err
	}
	if err := lock(ctx, m.working); err != nil {
		return err
	}
	defer func() { <-m.working }()
	release, err := m.creations.exclude(ctx)
	if err != nil {
		return err
	}
	defer release()
	st := query.Fleet(m.o.Store)
	if !st.Member() {
		return fleet.ErrNotMember
	}
	if err := m.mismatch(&st); err != nil {
		return err
	}
	return f(p, d)
}
