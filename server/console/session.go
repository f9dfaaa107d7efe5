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
	// maxSessions bounds the memory; the one that was idle for longest makes room.
	maxSessions = 1000
	// sessionIdle and sessionLife end a session: so long after its last request, and after its beginning.
	sessionIdle = 30 * time.Minute
	sessionLife = 12 * time.Hour
	// idBytes of a session's id, and of its other secrets.
	idBytes = 32
	// sessionCookie names the session, entryCookie holds the secret of the form to sign in, and themeCookie is set by
	// the page: dark or light. Over TLS the first two have a prefix with which a browser takes them from this host
	// only.
	sessionCookie = "lockstep_console"
	entryCookie   = "lockstep_entry"
	themeCookie   = "lockstep_theme"
	securePrefix  = "__Host-"
)

// session is what a browser has signed in for. It is not changed after it was made, but for what its mutex guards.
type session struct {
	key       [sha256.Size]byte // of its id
	principal string
	method    string // as WhoAmI says it
	token     string // shown in each call; empty: none
	// certificate that the browser has to show, by its SHA-256; zero: none.
	certificate [sha256.Size]byte
	csrf        string
	began       time.Time

	mu     sync.Mutex // guards all below
	used   time.Time
	notice string // shown once
}

// identity tells sessions apart that may see different things.
func (s *session) identity() [sha256.Size]byte {
	return sha256.Sum256([]byte(s.method + "\x00" + s.principal + "\x00" + s.token + "\x00" + string(s.certificate[:])))
}

// say keeps a line for the next page.
func (s *session) say(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notice = text
}

// said takes that line.
func (s *session) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := s.notice
	s.notice = ""
	return text
}

// holds tells whether a secret of a request is the session's own.
func (s *session) holds(csrf string) bool { return equal(s.csrf, csrf) }

// equal compares secrets.
func equal(a, b string) bool { return a != "" && subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// sessions are those that there are. They are kept in memory: after a restart of the node one signs in again.
type sessions struct {
	now func() time.Time

	mu  sync.Mutex // guards all below
	all map[[sha256.Size]byte]*session
}

func newSessions(now func() time.Time) *sessions {
	return &sessions{now: now, all: make(map[[sha256.Size]byte]*session)}
}

// secret makes a random one.
func secret() string {
	var b [idBytes]byte
	_, _ = rand.Read(b[:]) // it cannot fail
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// begin makes a session of what it is to be, and returns its id.
func (s *sessions) begin(as *session) (id string) {
	id = secret()
	now := s.now()
	as.key, as.csrf, as.began, as.used = sha256.Sum256([]byte(id)), secret(), now, now
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(now)
	s.all[as.key] = as
	return id
}

// forget drops those that are over, and one more if there are too many. mu is held.
func (s *sessions) forget(now time.Time) {
	if len(s.all) < maxSessions {
		return
	}
	var oldest *session
	var since time.Time
	for key, one := range s.all {
		used, over := one.over(now)
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

// over tells when a session was used last, and whether it has ended.
func (s *session) over(now time.Time) (used time.Time, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used, now.Sub(s.used) >= sessionIdle || now.Sub(s.began) >= sessionLife
}

// find returns the session of an id; nil if there is none. A request that a person has made keeps it from ending;
// those that a page makes by itself do not.
func (s *sessions) find(id string, byPerson bool) *session {
	key, now := sha256.Sum256([]byte(id)), s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.all[key]
	if one == nil {
		return nil
	}
	if _, over := one.over(now); over {
		delete(s.all, key)
		return nil
	}
	if byPerson {
		one.mu.Lock()
		one.used = now
		one.mu.Unlock()
	}
	return one
}

// alive tells whether a session has not ended.
func (s *sessions) alive(one *session) bool {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	_, over := one.over(now)
	return s.all[one.key] == one && !over
}

// end drops a session.
func (s *sessions) end(one *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, one.key)
}

// cookieName is that of one of the cookies. Browsers do not tell ports apart: the nodes of one machine have a name
// each.
func (s *Server) cookieName(base string) string {
	if s.o.TLS != nil {
		base = securePrefix + base
	}
	return base + "_" + s.port
}

// cookie makes one that scripts cannot read and that other sites' requests do not carry.
func (s *Server) cookie(name, value string) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // it is Secure where there is TLS
		Name: name, Value: value, Path: "/", HttpOnly: true, Secure: s.o.TLS != nil, SameSite: http.SameSiteStrictMode,
	}
}

// noCookie takes a cookie away.
func (s *Server) noCookie(name string) *http.Cookie {
	c := s.cookie(name, "") //nolint:gosec // see cookie
	c.MaxAge = -1
	return c
}
