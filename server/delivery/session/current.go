// SPDX-License-Identifier: Apache-2.0

package session

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
)

// Current provides the current session of a node. It is safe for concurrent use.
type Current struct {
	session   atomic.Pointer[Session]
	diskLow   atomic.Bool
	notActive func() *apierror.NotActiveError
	pair      func() failover.Status
	changed   func() <-chan struct{}
}

// NewCurrent returns a Current without a session. notActive returns the error that redirects clients to the
// active node. pair returns the state of the pair. changed returns a channel that is closed at the next change of
// that state.
func NewCurrent(
	notActive func() *apierror.NotActiveError, pair func() failover.Status, changed func() <-chan struct{},
) *Current {
	return &Current{notActive: notActive, pair: pair, changed: changed}
}

// Set changes the session. nil means that the node has no session.
func (c *Current) Set(session *Session) { c.session.Store(session) }

// Get returns the session, or nil without one.
func (c *Current) Get() *Session { return c.session.Load() }

// Changed returns a channel that is closed at the next change of the state of the pair.
func (c *Current) Changed() <-chan struct{} { return c.changed() }

// Session returns the session. Without a session, it returns an *apierror.NotActiveError.
func (c *Current) Session() (*Session, error) {
	if session := c.session.Load(); session != nil {
		return session, nil
	}
	return nil, c.notActive()
}

// NotActive returns the error that redirects clients to the active node.
func (c *Current) NotActive() *apierror.NotActiveError { return c.notActive() }

// SetDiskLow sets whether publishes are refused because of low disk space. It reports whether the value has changed.
func (c *Current) SetDiskLow(low bool) (changed bool) { return c.diskLow.Swap(low) != low }

// DiskLow reports whether publishes are refused because of low disk space.
func (c *Current) DiskLow() bool { return c.diskLow.Load() }

// Require returns an error if a node of the pair does not support a feature. After Require has succeeded for a
// feature, the feature remains enabled for the session. The error wraps apierror.ErrFeature. If a node has not
// announced its features within failover.AnnounceWait, or before the session ends, the error wraps the retryable
// replication.ErrBlocked.
func (c *Current) Require(session *Session, feature string) error {
	if _, agreed := session.features.Load(feature); agreed {
		return nil
	}
	missingFeature, missing := c.checkFeature(session, feature)
	switch {
	case !missing:
		session.features.Store(feature, true)
		return nil
	case missingFeature.Unknown():
		return fmt.Errorf("%w: %s", replication.ErrBlocked, missingFeature.Message(""))
	default:
		return fmt.Errorf("%w: %s", apierror.ErrFeature, missingFeature.Message(fmt.Sprintf("does not support %q", feature)))
	}
}

// checkFeature returns the missing feature, if any. If a node has not announced its features, checkFeature waits for
// at most failover.AnnounceWait.
func (c *Current) checkFeature(
	session *Session, feature string,
) (missingFeature failover.MissingFeature, missing bool) {
	waited := time.NewTimer(failover.AnnounceWait)
	defer waited.Stop()
	for {
		changed := c.changed()
		st := c.pair()
		if missingFeature, missing = st.MissingFeature(feature); !missing || !missingFeature.Unknown() {
			return missingFeature, missing
		}
		select {
		case <-changed:
		case <-session.ended:
			return missingFeature, true
		case <-waited.C:
			return missingFeature, true
		}
	}
}
