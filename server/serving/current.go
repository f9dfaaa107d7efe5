// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/wire"
)

// Current is what a node serves clients with at the moment. Its methods may be called from any goroutine.
type Current struct {
	session   atomic.Pointer[Session]
	diskLow   atomic.Bool
	notActive func() *wire.NotActiveError
	pair      func() failover.Status
	changed   func() <-chan struct{}
}

// NewCurrent begins without a session. notActive makes the error that sends clients to the active node; pair gives the
// state of the pair, and changed a channel that is closed when that changes the next time.
func NewCurrent(
	notActive func() *wire.NotActiveError, pair func() failover.Status, changed func() <-chan struct{},
) *Current {
	return &Current{notActive: notActive, pair: pair, changed: changed}
}

// Set changes the session; nil for none.
func (c *Current) Set(session *Session) { c.session.Store(session) }

// Get returns the session; nil if there is none.
func (c *Current) Get() *Session { return c.session.Load() }

// Session returns the session, or a *wire.NotActiveError.
func (c *Current) Session() (*Session, error) {
	if session := c.session.Load(); session != nil {
		return session, nil
	}
	return nil, c.notActive()
}

// NotActive makes the error that sends clients to the active node.
func (c *Current) NotActive() *wire.NotActiveError { return c.notActive() }

// SetDiskLow notes whether the filesystem has less than disk.low-watermark available: publishes are refused then. It
// tells whether that is news.
func (c *Current) SetDiskLow(low bool) (changed bool) { return c.diskLow.Swap(low) != low }

// DiskLow tells whether publishes are refused because of the disk.
func (c *Current) DiskLow() bool { return c.diskLow.Load() }

// Require refuses what needs a feature that a node of the pair does not know: it would stop at the first record that
// has any of it. Once both have known it, the session goes on with it: a node that is put back to an older release
// stops then, and is told to be upgraded. The error is a wire.ErrFeature; or replication.ErrBlocked, for one that may
// be tried again, if a node does not say for failover.AnnounceWait what it knows.
func (c *Current) Require(session *Session, feature string) error {
	if _, agreed := session.features.Load(feature); agreed {
		return nil
	}
	lack, lacks := c.lacks(session, feature)
	switch {
	case !lacks:
		session.features.Store(feature, true)
		return nil
	case lack.Silent():
		return fmt.Errorf("%w: %s", replication.ErrBlocked, lack.Because(""))
	default:
		return fmt.Errorf("%w: %s", wire.ErrFeature, lack.Because(fmt.Sprintf("does not know %q", feature)))
	}
}

// lacks asks the pair, and waits for a node that has not announced itself yet.
func (c *Current) lacks(session *Session, feature string) (lack failover.Lack, lacks bool) {
	waited := time.NewTimer(failover.AnnounceWait)
	defer waited.Stop()
	for {
		changed := c.changed()
		st := c.pair()
		if lack, lacks = st.Lacks(feature); !lacks || !lack.Silent() {
			return lack, lacks
		}
		select {
		case <-changed:
		case <-session.ended:
			return lack, true
		case <-waited.C:
			return lack, true
		}
	}
}
