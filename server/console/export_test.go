// SPDX-License-Identifier: Apache-2.0

package console

import "time"

// Pages returns all pages of the console.
func Pages() []Page { return pages() }

// Asset returns the content of an asset.
func Asset(name string) string {
	all, err := loadAssets()
	if err != nil {
		return ""
	}
	return string(all[name].body)
}

// Sessions provides access to the sessions of a console with a test clock.
type Sessions struct{ s *sessions }

// NewSessions creates Sessions with the given clock.
func NewSessions(now func() time.Time) Sessions { return Sessions{newSessions(now)} }

// Begin creates a session and returns its ID.
func (s Sessions) Begin(principal string) string { return s.s.begin(&session{principal: principal}) }

// Use looks up a session as for a request and reports whether it exists. byUser reports whether the user made the
// request.
func (s Sessions) Use(id string, byUser bool) bool { return s.s.find(id, byUser) != nil }

// Len returns the number of sessions.
func (s Sessions) Len() int { return len(s.s.all) }

// Limits of sessions and event streams.
const (
	MaxSessions = maxSessions
	SessionIdle = sessionIdle
	SessionLife = sessionLife
	MaxEvents   = maxEvents
)

// Preview is the text of a body in a list of messages.
func Preview(body []byte) string { return preview(body) }
