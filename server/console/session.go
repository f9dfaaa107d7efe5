// SPDX-License-Identifier: Apache-2.0

package console

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"sync"
	"time"
)

const (
	maxSessions = 1000
	// A session ends sessionIdle after the last request by its user, and at most sessionLife after the sign-in.
	sessionIdle = 30 * time.Minute
	sessionLife = 12 * time.Hour
	idBytes     = 32
	// sessionCookie contains the session ID. entryCookie contains the secret of the sign-in form. themeCookie is "dark"
	// or "light". Over TLS, the names of sessionCookie and entryCookie begin with securePrefix.
	sessionCookie = "lockstep_console"
	entryCookie   = "lockstep_entry"
	themeCookie   = "lockstep_theme"
	securePrefix  = "__Host-"
)

// session is the sign-in of a browser. It is immutable except for the fields guarded by mu.
type session struct {
	key       [sha256.Size]byte // SHA-256 of the ID
	principal string
	method    string // authentication method, as in WhoAmI
	token     string // token sent with each call; may be empty
	// certificate is the SHA-256 of the certificate that the browser must present. It is zero if no certificate is
	// required.
	certificate [sha256.Size]byte
	csrf        string
	began       time.Time

	mu     sync.Mutex // guards the fields below
	used   time.Time
	notice string // shown on the next page
}

func (s *session) identity() [sha256.Size]byte {
	return sha256.Sum256([]byte(s.method + "\x00" + s.principal + "\x00" + s.token + "\x00" + string(s.certificate[:])))
}

func (s *session) setNotice(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notice = text
}

// takeNotice returns the notice and clears it.
func (s *session) takeNotice() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := s.notice
	s.notice = ""
	return text
}

func (s *session) holds(csrf string) bool { return equal(s.csrf, csrf) }

// equal compares secrets in constant time. It returns false for empty secrets.
func equal(a, b string) bool { return a != "" && subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// sessions contains all sessions. They are not stored on disk.
type sessions struct {
	now func() time.Time

	mu  sync.Mutex // guards the fields below
	all map[[sha256.Size]byte]*session
}

func newSessions(now func() time.Time) *sessions {
	return &sessions{now: now, all: make(map[[sha256.Size]byte]*session)}
}

func secret() string {
	var b [idBytes]byte
	_, _ = rand.Read(b[:]) // never returns an error
	return base64.RawURLEncoding.EncodeToString(b[:])
}

func (s *sessions) begin(as *session) (id string) {
	id = secret()
	now := s.now()
	as.key, as.csrf, as.began, as.used = sha256.Sum256([]byte(id)), secret(), now, now
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(now)
	s.all[as.key] = as
	return id
}

// remove frees a slot for a session if the limit is reached. It removes the sessions that have ended. Without such
// sessions, it removes the session that was not used for the longest time. The caller must hold mu.
func (s *sessions) remove(now time.Time) {
	if len(s.all) < maxSessions {
		return
	}
	var oldest *session
	var since time.Time
	for key, one := range s.all {
		used, over := one.ended(now)
		if over {
			delete(s.all, key)
		} else if oldest == nil || used.Before(since) {
			oldest, since = one, used
		}
	}
	if len(s.all) >= maxSessions {
		delete(s.all, oldest.key)
	}
}

// ended returns the time of the last use of the session, and whether the session has ended.
func (s *session) ended(now time.Time) (used time.Time, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used, now.Sub(s.used) >= sessionIdle || now.Sub(s.began) >= sessionLife
}

// find returns the session with the given ID, or nil. If the request was made by the user (byUser), find extends the
// session.
func (s *sessions) find(id string, byUser bool) *session {
	key, now := sha256.Sum256([]byte(id)), s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.all[key]
	if one == nil {
		return nil
	}
	if _, over := one.ended(now); over {
		delete(s.all, key)
		return nil
	}
	if byUser {
		one.mu.Lock()
		one.used = now
		one.mu.Unlock()
	}
	return one
}

func (s *sessions) alive(one *session) bool {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	_, over := one.ended(now)
	return s.all[one.key] == one && !over
}

func (s *sessions) end(one *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, one.key)
}

// cookieName returns the name of a cookie. It contains the port.
func (s *Server) cookieName(base string) string {
	if s.o.TLS != nil {
		base = securePrefix + base
	}
	return base + "_" + s.port
}

// cookie creates a cookie that scripts cannot read and that browsers do not send with cross-site requests.
func (s *Server) cookie(name, value string) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // Secure with TLS
		Name: name, Value: value, Path: "/", HttpOnly: true, Secure: s.o.TLS != nil, SameSite: http.SameSiteStrictMode,
	}
}

func (s *Server) noCookie(name string) *http.Cookie {
	c := s.cookie(name, "") //nolint:gosec // see cookie
	c.MaxAge = -1
	return c
}
