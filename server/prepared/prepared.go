// SPDX-License-Identifier: Apache-2.0

// Package prepared has transactions prepared and decided on the active node, and tells those who deliver messages: what
// a prepared transaction will acknowledge is taken from its consumers, and is delivered again when it is rolled back.
package prepared

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/server/dispatch"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Committer commits transactions; *replication.Primary is one.
type Committer interface {
	// Commit returns when the transaction is committed and applied, or will never be.
	Commit(ctx context.Context, payload []byte) (*txn.Result, error)
}

// Manager is for one term in which the node is active. It may be used by many goroutines.
type Manager struct {
	store     *store.Store
	primary   Committer
	consumers *dispatch.Registry

	// One transaction is not prepared and decided at once: its consumers hear of one after the other. Who has what is in
	// a channel goes on; the others wait, for a commit maybe, as long as their callers do.
	seed  maphash.Seed
	locks [64]chan struct{}

	log     *zap.Logger
	timeout atomic.Int64  // in nanoseconds
	woken   chan struct{} // capacity 1: timeout has changed
}

// New makes a Manager without a time-out.
func New(s *store.Store, primary Committer, consumers *dispatch.Registry, log *zap.Logger) *Manager {
	m := &Manager{
		store: s, primary: primary, consumers: consumers, seed: maphash.MakeSeed(), log: log,
		woken: make(chan struct{}, 1),
	}
	for i := range m.locks {
		m.locks[i] = make(chan struct{}, 1)
	}
	return m
}

// lock waits until no other call is at work on the transaction, or until ctx ends: then nothing was done.
func (m *Manager) lock(ctx context.Context, xid string) (unlock func(), err error) {
	l := m.locks[maphash.String(m.seed, xid)%uint64(len(m.locks))]
	select {
	case l <- struct{}{}:
		return func() { <-l }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("another call is at work on transaction %q: %w", xid, ctx.Err())
	}
}

// Prepare commits a payload that prepares a transaction. It returns when that is applied, or will never be, also when
// ctx ends meanwhile: the consumers must hear of it.
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
	for _, held := range m.store.Reserved(xid) {
		m.consumers.Settled(dispatch.Key{Queue: held.Queue, Sub: held.Sub}, held.Ranges, nil)
	}
	return result, nil
}

// Decision is what is to become of a prepared transaction.
type Decision struct {
	// XID is its name.
	XID string
	// Commit it, or roll it back.
	Commit bool
	// By is who decides.
	By txn.Decider
	// Number is the LSN of the record that prepared it; 0 for any.
	Number uint64
}

// Decide commits a decision and tells by whom it was taken: by this call, or an earlier one that decided the same. It
// returns when that is applied, or will never be, also when ctx ends before. The errors are txn.Code's and those of
// Committer.
func (m *Manager) Decide(ctx context.Context, d Decision) (by txn.Decider, err error) {
	unlock, err := m.lock(ctx, d.XID)
	if err != nil {
		return 0, err
	}
	defer unlock()
	var b txn.Builder
	b.Begin(nil, time.Now().UnixMilli(), nil)
	if d.Commit {
		b.CommitPrepared(d.XID, d.By, d.Number)
	} else {
		b.RollbackPrepared(d.XID, d.By, d.Number)
	}
	payload, err := b.Finish()
	if err != nil {
		return 0, fmt.Errorf("encode the decision: %w", err)
	}
	decide := func() error {
		result, err := m.primary.Commit(context.WithoutCancel(ctx), payload)
		if err != nil {
			return err
		}
		if err := result.Err(); err != nil {
			return err
		}
		_, by = queue.OutcomeOf(&result.Ops[0])
		return nil
	}
	for _, held := range m.store.Reserved(d.XID) {
		if d.Commit {
			break // nothing is delivered again
		}
		inner := decide
		decide = func() error {
			return m.consumers.Return(dispatch.Key{Queue: held.Queue, Sub: held.Sub}, held.Ranges, inner)
		}
	}
	err = decide()
	return by, err
}
