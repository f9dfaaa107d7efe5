// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// RestrictToSite rejects new transactions with err, except those with Item.Site. A nil err ends the restriction. A
// transaction that was submitted before the call may still be logged.
func (p *Primary) RestrictToSite(err error) {
	if err == nil {
		p.restricted.Store(nil)
		return
	}
	p.restricted.Store(&err)
}

// hold makes transactions wait until it is released.
type hold struct {
	err      error
	limit    time.Duration
	released chan struct{}
}

// HoldWrites makes new transactions wait, except those with Item.Site or Item.Exempt. Each transaction waits for at
// most limit, and then fails with err. A nil err ends the hold; another err during a hold has no effect. Only one
// goroutine may call HoldWrites.
func (p *Primary) HoldWrites(err error, limit time.Duration) {
	held := p.held.Load()
	switch {
	case err == nil && held != nil:
		p.held.Store(nil)
		close(held.released)
	case err != nil && held == nil:
		p.held.Store(&hold{err, limit, make(chan struct{})})
	}
}

// wait waits until the hold is released, for at most its limit. It does not wait if all items have Site or Exempt. If
// it returns an error, the caller must not log the items.
func (h *hold) wait(ctx context.Context, items []Item, stopped <-chan struct{}) error {
	if !slices.ContainsFunc(items, func(i Item) bool { return !i.Site && !i.Exempt }) {
		return nil
	}
	timer := time.NewTimer(h.limit)
	defer timer.Stop()
	select {
	case <-h.released:
		return nil
	case <-timer.C:
		return h.err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", h.err, ctx.Err())
	case <-stopped:
		return ErrNotActive
	}
}

// CommitSite is like Commit, for a change of the role of this site.
func (p *Primary) CommitSite(ctx context.Context, payload []byte) (*txn.Result, error) {
	return p.commitItem(ctx, Item{Payload: payload, Site: true})
}

// Advanced returns a channel that is closed when further records are applied. To miss none, the caller must read
// the position of the last applied record after the call.
func (p *Primary) Advanced() <-chan struct{} { return p.advanced.wait() }

// Stopped returns a channel that is closed when Stop is called.
func (p *Primary) Stopped() <-chan struct{} { return p.stopped }

// notifier wakes all waiters. Without waiters, notify costs one atomic load.
type notifier struct{ ch atomic.Pointer[chan struct{}] }

func (n *notifier) wait() <-chan struct{} {
	for {
		if ch := n.ch.Load(); ch != nil {
			return *ch
		}
		ch := make(chan struct{})
		if n.ch.CompareAndSwap(nil, &ch) {
			return ch
		}
	}
}

func (n *notifier) notify() {
	if n.ch.Load() == nil {
		return
	}
	if ch := n.ch.Swap(nil); ch != nil {
		close(*ch)
	}
}
