// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// ErrTooFast is returned by AtCommonRecord if, at each attempt, the log passed the selected record before both nodes
// waited for it.
var ErrTooFast = errors.New("log grows too fast to compare both nodes")

// ErrDiffer is returned if the contents of the two nodes differ, which indicates a defect or corruption.
var ErrDiffer = errors.New("the two nodes differ")

const (
	// verifyAhead is the distance, in records, from the end of the log to the record at which both nodes compute their
	// digests. If the log passes that record too early, the next distance is verifyWindow times as large.
	verifyAhead    = 8
	verifyWindow   = 8
	verifyAttempts = 6
	verifyPush     = 5 * time.Millisecond
	verifyHeld     = 10 * time.Second
)

// performVerify compares the digests of both nodes at a record that both nodes apply during the call. It returns the
// names of both nodes and a description of the result.
func (m *Manager) performVerify(ctx context.Context) (node, detail string, err error) {
	if m.node.Alone() {
		return "", "", fmt.Errorf("%w: node is standalone, no other node to compare with", errSkip)
	}
	other, reason := m.partner()
	if reason != "" {
		return "", "", fmt.Errorf("%w: %w: the active %s", errSkip, ErrNoPartner, reason)
	}
	stores := m.InSync()
	both := name(m.node.Pair().Self) + ", " + name(other)
	// Write checkpoints now: less data must then be written while both nodes wait at the record.
	if err := errors.Join(m.Checkpoint(ctx), m.o.Peers.At(other.Address).Checkpoint(ctx)); err != nil {
		return both, "", err
	}
	var mine, theirs checkpoint.Digest
	there := m.o.Peers.At(other.Address)
	at, err := m.AtCommonRecord(ctx, func(ctx context.Context, at uint64) (err error) {
		mine, err = m.Digest(ctx, at)
		return err
	}, func(ctx context.Context, at uint64) (err error) {
		theirs, err = there.Digest(ctx, at)
		return err
	})
	switch {
	case errors.Is(err, ErrTooFast):
		return both, "", fmt.Errorf("%w: %w", errSkip, err)
	case err != nil:
		return both, "", err
	case mine.Content != theirs.Content:
		found := fmt.Sprintf("content %x with %d messages on the active, %x with %d on the standby", mine.Content[:8],
			mine.Messages, theirs.Content[:8], theirs.Messages)
		m.comparedContents(stores, at, found)
		return both, "", fmt.Errorf("%w at LSN %d: %s", ErrDiffer, at, found)
	}
	m.comparedContents(stores, at, "")
	return both, fmt.Sprintf("both nodes have the same %d messages at LSN %d, digest %x", mine.Messages, at,
		mine.Content[:8]), nil
}

// AtCommonRecord selects a record that both nodes will apply soon. It calls here and there concurrently with the LSN of
// the record. Each function computes the digest of one node. AtCommonRecord commits small transactions until the log
// reaches the record. It returns the LSN of the record. If the log passes the record too early (store.ErrPast), it
// selects a record farther ahead. It returns ErrTooFast after verifyAttempts attempts. If one function fails, the
// context of the other function is canceled.
func (m *Manager) AtCommonRecord(
	ctx context.Context, here, there func(ctx context.Context, at uint64) error,
) (at uint64, err error) {
	ahead := uint64(verifyAhead)
	for range verifyAttempts {
		at = m.store.End().LSN + ahead
		if err = m.atRecord(ctx, at, here, there); !errors.Is(err, store.ErrPast) {
			return at, err
		}
		ahead *= verifyWindow
	}
	return at, ErrTooFast
}

func (m *Manager) atRecord(ctx context.Context, at uint64, fns ...func(ctx context.Context, at uint64) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	for _, fn := range fns {
		running.Go(func() {
			if err := fn(ctx, at); err != nil {
				cancel(err) // the cause of the cancellation is the first error
			}
		})
	}
	m.push(ctx, at)
	running.Wait()
	return context.Cause(ctx)
}

// push commits small transactions until the log has reached the record with LSN at.
func (m *Manager) push(ctx context.Context, at uint64) {
	tick := time.NewTicker(verifyPush)
	defer tick.Stop()
	for m.store.End().LSN < at {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// Commit the missing transactions concurrently: they share a batch.
		var commits sync.WaitGroup
		for range min(at-min(m.store.End().LSN, at), 64) {
			commits.Go(func() { _ = m.commit(ctx, func(b *txn.Builder) { b.DeleteMeta(keyVerify) }) })
		}
		commits.Wait()
	}
}

// Digest waits for the record atLSN, for at most verifyHeld, and hashes this node's content at exactly that record.
// If atLSN is 0, it hashes the current content. It returns store.ErrPast if this node has already applied later
// records.
func (m *Manager) Digest(ctx context.Context, atLSN uint64) (checkpoint.Digest, error) {
	if atLSN == 0 {
		return digestAt(ctx, m.store, store.ReadOptions{})
	}
	ctx, forget := m.holding(ctx)
	defer forget()
	return digestAt(ctx, m.store, store.ReadOptions{At: atLSN, MaxWait: verifyHeld})
}

func digestAt(ctx context.Context, s *store.Store, o store.ReadOptions) (d checkpoint.Digest, err error) {
	err = s.ReadCheckpoint(ctx, o, func(c *checkpoint.Checkpoint) (err error) {
		d, err = c.Digest(ctx)
		return err
	})
	return d, err
}

// Checkpoint writes a checkpoint of this node's page file.
func (m *Manager) Checkpoint(ctx context.Context) error {
	_, err := m.store.Checkpoint(ctx)
	return err
}

// ErrNoPartner is returned if no standby is available for a comparison.
var ErrNoPartner = errors.New("no standby to compare with")

// Partner returns the standby if this node is active and the standby is connected and in sync. Otherwise, it returns
// ErrNoPartner with the reason.
func (m *Manager) Partner() (failover.NodeInfo, error) {
	if m.node.Alone() {
		return failover.NodeInfo{}, fmt.Errorf("%w: node is standalone", ErrNoPartner)
	}
	other, reason := m.partner()
	if reason != "" {
		return other, fmt.Errorf("%w: the active %s", ErrNoPartner, reason)
	}
	return other, nil
}

// CompareContent compares the content of both nodes at the same record, and returns a description of the result.
// It returns ErrDiffer if the content differs.
func (m *Manager) CompareContent(ctx context.Context) (string, error) {
	_, detail, err := m.performVerify(ctx)
	return detail, err
}
