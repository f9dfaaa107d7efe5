// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"sync/atomic"

	"github.com/lockstep-mq/lockstep/server/wire"
)

// Current is what a node serves clients with at the moment. Its methods may be called from any goroutine.
type Current struct {
	session   atomic.Pointer[Session]
	diskLow   atomic.Bool
	notActive func() *wire.NotActiveError
}

// NewCurrent begins without a session. notActive makes the error that sends clients to the active node.
func NewCurrent(notActive func() *wire.NotActiveError) *Current {
	return &Current{notActive: notActive}
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
