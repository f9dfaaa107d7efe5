// SPDX-License-Identifier: Apache-2.0

package console

import "time"

// Pages are all pages of the console.
func Pages() []Page { return pages() }

// Asset is the content of an asset.
func Asset(name string) string {
	all, err := loadAssets()
	if err != nil {
		return ""
	}
	return string(all[name].body)
}

// Sessions are those of a console, with a clock of the test's own.
type Sessions struct{ s *sessions }

// NewSessions makes them.
func NewSessions(now func() time.Time) Sessions { return Sessions{newSessions(now)} }

// Begin begins one.
func (s Sessions) Begin(principal string) string { return s.s.begin(&session{principal: principal}) }

// Use tells whether a session is there; byPerson: as a request of a person.
func (s Sessions) Use(id string, byPerson bool) bool { return s.s.find(id, byPerson) != nil }

// Len is how many there are.
func (s Sessions) Len() int { return len(s.s.all) }

// Bounds of sessions.
const (
	MaxSessions = maxSessions
	SessionIdle = sessionIdle
	SessionLife = sessionLife
	MaxEvents   = maxEvents
)
