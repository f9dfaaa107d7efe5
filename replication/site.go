// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"context"
	"sync/atomic"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// RestrictToSite rejects new transactions with err, except those with Item.Site, until it is called with nil. The pair
// is then a replica of another site (INV-26). A transaction that was submitted before the call may still be logged: the
// store rejects it when it is applied.
func (p *Primary) RestrictToSite(err error) {
	if err == nil {
		p.restricted.Store(nil)
		return
	}
	p.restricted.Store(&err)
}

// CommitSite is Commit for a change of the role of this site.
func (p *Primary) CommitSite(ctx context.Context, payload []byte) (*txn.Result, error) {
	return p.commitItem(ctx, Item{Payload: payload, Site: true})
}

// Advanced returns a channel that is closed when further records are applied. The position of the last applied record
// must be read after the call.
func (p *Primary) Advanced() <-chan struct{} { return p.advanced.wait() }

// Stopped returns a channel that is closed when the role ends.
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
