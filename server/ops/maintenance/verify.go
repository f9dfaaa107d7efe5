// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// ErrDiffer is returned when the contents of the two nodes differ, which must never happen.
var ErrDiffer = errors.New("the two nodes differ")

const (
	// verifyAhead is the distance, in records, of the record at which both nodes compute their digest. If the log passes
	// it too early, the next distance is verifyWindow times larger.
	verifyAhead    = 8
	verifyWindow   = 8
	verifyAttempts = 5
	verifyPush     = 5 * time.Millisecond
	verifyHeld     = 10 * time.Second
)

// performVerify compares the digests of both nodes at a record that both apply during the call.
func (m *Manager) performVerify(ctx context.Context) (node, detail string, err error) {
	if m.node.Alone() {
		return "", "", fmt.Errorf("%w: node is standalone, no other node to compare with", errSkip)
	}
	other, reason := m.partner()
	if reason != "" {
		return "", "", fmt.Errorf("%w: %w: the active %s", errSkip, ErrNoPartner, reason)
	}
	both := name(m.node.Pair().Self) + ", " + name(other)
	// Write checkpoints now, so that less must be written while both nodes are blocked at the record.
	if err := errors.Join(m.Checkpoint(ctx), m.o.Peers.At(other.Address).Checkpoint(ctx)); err != nil {
		return both, "", err
	}
	ahead := uint64(verifyAhead)
	for range verifyAttempts {
		at := m.store.End().LSN + ahead
		mine, theirs, err := m.digests(ctx, m.remote(other), at)
		if errors.Is(err, store.ErrPast) {
			ahead *= verifyWindow
			continue
		}
		if err != nil {
			return both, "", err
		}
		if mine.Content != theirs.Content {
			m.log.Error("THE TWO NODES DIFFER; do not switch over before you know which one is correct",
				zap.Uint64("lsn", at),
				zap.Uint64("messages", mine.Messages), zap.Uint64("messages_there", theirs.Messages))
			return both, "", fmt.Errorf("%w at LSN %d: %x with %d messages on the active, %x with %d on the standby",
				ErrDiffer, at,
				mine.Content[:8], mine.Messages, theirs.Content[:8], theirs.Messages)
		}
		return both, fmt.Sprintf("both nodes hold the same %d messages at LSN %d, digest %x", mine.Messages, at,
			mine.Content[:8]), nil
	}
	return both, "", fmt.Errorf("%w: the log grows too fast to stop both nodes at one record",
		errSkip)
}

// digests requests the digests of both nodes concurrently, and appends to the log until they have reached the record.
func (m *Manager) digests(ctx context.Context, other target, at uint64) (mine, theirs checkpoint.Digest, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var asked sync.WaitGroup
	var myErr, theirErr error
	asked.Go(func() {
		if mine, myErr = m.Digest(ctx, at); myErr != nil {
			cancel()
		}
	})
	asked.Go(func() {
		if theirs, theirErr = other.ops.Digest(ctx, at); theirErr != nil {
			cancel()
		}
	})
	m.push(ctx, at)
	asked.Wait()
	// The error of a call that was only cancelled is irrelevant.
	if errors.Is(theirErr, store.ErrPast) {
		return mine, theirs, theirErr
	}
	return mine, theirs, errors.Join(myErr, theirErr)
}

func (m *Manager) push(ctx context.Context, at uint64) {
	tick := time.NewTicker(verifyPush)
	defer tick.Stop()
	for m.store.End().LSN < at {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// Commit as many concurrently as are missing: they share a batch.
		var commits sync.WaitGroup
		for range min(at-min(m.store.End().LSN, at), 64) {
			commits.Go(func() { _ = m.commit(ctx, func(b *txn.Builder) { b.DeleteMeta(keyVerify) }) })
		}
		commits.Wait()
	}
}

// Digest waits for record atLSN and hashes this node's content at exactly that record; 0 means the current content. It
// returns store.ErrPast if later records were already applied.
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
