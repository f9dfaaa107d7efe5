package queue

import (
	"sync/atomic"

	"github.com/lockstep-mq/lockstep/server/wire"
)

// Serving is what a node serves clients with at the moment. Its methods may be called from any goroutine.
type Serving struct {
	session   atomic.Pointer[Session]
	diskLow   atomic.Bool
	notActive func() *wire.NotActiveError
}

// NewServing begins without a session. notActive makes the error that sends clients to the active node.
func NewServing(notActive func() *wire.NotActiveError) *Serving {
	return &Serving{notActive: notActive}
}

// Set changes the session; nil for none.
func (s *Serving) Set(session *Session) { s.session.Store(session) }

// Current returns the session; nil if there is none.
func (s *Serving) Current() *Session { return s.session.Load() }

// Session returns the session, or a *wire.NotActiveError.
func (s *Serving) Session() (*Session, error) {
	if session := s.session.Load(); session != nil {
		return session, nil
	}
	return nil, s.notActive()
}

// SetDiskLow notes whether the filesystem has less than disk.low-watermark available: publishes are refused then. It
// tells whether that is news.
func (s *Serving) SetDiskLow(low bool) (changed bool) { return s.diskLow.Swap(low) != low }

// DiskLow tells whether publishes are refused because of the disk.
func (s *Serving) DiskLow() bool { return s.diskLow.Load() }
