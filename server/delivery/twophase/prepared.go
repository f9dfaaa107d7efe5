// SPDX-License-Identifier: Apache-2.0

// Package twophase prepares transactions and decides them on the active node. If a prepared transaction will
// acknowledge messages, it withdraws these messages from their consumers. After a rollback, it redelivers them.
package twophase

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Manager manages the prepared transactions of one term in which the node is active. It is safe for concurrent use.
type Manager struct {
	store     *store.Store
	primary   txn.Committer
	consumers *dispatch.Registry

	// locks serialize the prepare and the decision of a transaction.
	seed  maphash.Seed
	locks [64]chan struct{}

	log     *zap.Logger
	timeout atomic.Int64  // in nanoseconds
	wake    chan struct{} // capacity 1; receives a value when timeout has changed
}

// New creates a Manager without a timeout.
func New(s *store.Store, primary txn.Committer, consumers *dispatch.Registry, log *zap.Logger) *Manager {
	m := &Manager{
		store: s, primary: primary, consumers: consumers, seed: maphash.MakeSeed(), log: log,
		wake: make(chan struct{}, 1),
	}
	for i := range m.locks {
		m.locks[i] = make(chan struct{}, 1)
	}
	return m
}

// lock waits until no other call uses the transaction. If ctx ends first, it returns an error and does not lock.
func (m *Manager) lock(ctx context.Context, xid string) (unlock func(), err error) {
	l := m.locks[maphash.String(m.seed, xid)%uint64(len(m.locks))]
	select {
	case l <- struct{}{}:
		return func() { <-l }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("transaction %q is in use by another call: %w", xid, ctx.Err())
	}
}

// Prepare commits a payload that prepares a transaction. It returns when the payload is applied or the primary has
// stopped, even if ctx ends earlier. If ctx ends while another call uses the transaction, Prepare commits nothing and
// returns an error that wraps that of ctx.
func (m *Manager) Prepare(ctx context.Context, xid string, payload []byte) (*txn.Result, error) {
	unlock, err := m.lock(ctx, xid)
	if err != nil {
		return nil, err
	}
	defer unlock()
	result, err := m.primary.Commit(context.WithoutCancel(ctx), payload)
	if err != nil || result.Code != txn.OK || result.Duplicate {
		return result, err
	}
	for _, held := range query.ReservedBy(m.store, xid) {
		m.consumers.Settled(dispatch.Key{Queue: held.Queue, Sub: held.Sub}, held.Ranges, nil)
	}
	return result, nil
}

// Decision is the commit or the rollback of a prepared transaction.
type Decision struct {
	// XID is the name of the transaction.
	XID string
	// Commit selects a commit. Otherwise the transaction is rolled back.
	Commit bool
	By     txn.Decider
	// Number is the logical number of the record that prepared the transaction; 0 matches any number.
	Number uint64
}

// Decide commits a decision. It returns the decider of this decision, or of an earlier decision with the same
// result. Decide returns when the decision is applied or the primary has stopped, even if ctx ends earlier. Its errors
// are those of txn.Propose, and that of ctx if ctx ends while another call uses the transaction.
func (m *Manager) Decide(ctx context.Context, d Decision) (by txn.Decider, err error) {
	unlock, err := m.lock(ctx, d.XID)
	if err != nil {
		return 0, err
	}
	defer unlock()
	decide := func() error {
		result, err := txn.Propose(context.WithoutCancel(ctx), m.primary, time.Now(), func(b *txn.Builder) {
			if d.Commit {
				b.CommitPrepared(d.XID, d.By, d.Number)
			} else {
				b.RollbackPrepared(d.XID, d.By, d.Number)
			}
		})
		if err == nil {
			_, by = queue.OutcomeOf(&result.Ops[0])
		}
		return err
	}
	for _, held := range query.ReservedBy(m.store, d.XID) {
		if d.Commit {
			break // nothing to redeliver
		}
		inner := decide
		decide = func() error {
			return m.consumers.Return(dispatch.Key{Queue: held.Queue, Sub: held.Sub}, held.Ranges, inner)
		}
	}
	err = decide()
	return by, err
}
