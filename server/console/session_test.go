// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/console"
)

// clock is a manual clock.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

// A session expires SessionIdle after the last request that its user has made, and at most SessionLife after the
// sign-in.
func TestSessionExpiry(t *testing.T) {
	c := &clock{time.Unix(1_000_000, 0)}
	s := console.NewSessions(c.now)
	id := s.Begin("alice")
	require.False(t, s.Use("", true))
	require.False(t, s.Use(id+"x", true))
	c.at = c.at.Add(console.SessionIdle - time.Second)
	require.True(t, s.Use(id, true), "a request by the user extends the session")
	c.at = c.at.Add(console.SessionIdle - time.Second)
	require.True(t, s.Use(id, false), "the session has not expired")
	c.at = c.at.Add(time.Second)
	require.False(t, s.Use(id, true), "automatic requests do not extend the session")

	id = s.Begin("alice")
	for start := c.at; c.at.Sub(start) < console.SessionLife-time.Minute; c.at = c.at.Add(time.Minute) {
		require.True(t, s.Use(id, true))
	}
	c.at = c.at.Add(time.Minute)
	require.False(t, s.Use(id, true), "the session expires despite requests")
}

// At the limit, a new session evicts the session that was not used for the longest time.
func TestSessionsAreBounded(t *testing.T) {
	c := &clock{time.Unix(1_000_000, 0)}
	s := console.NewSessions(c.now)
	first := s.Begin("alice")
	for i := range 2 * console.MaxSessions {
		c.at = c.at.Add(time.Millisecond)
		require.True(t, s.Use(first, true), "a used session is not evicted")
		s.Begin(fmt.Sprint(i))
		require.LessOrEqual(t, s.Len(), console.MaxSessions)
	}
}
