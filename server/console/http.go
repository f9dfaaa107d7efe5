// SPDX-License-Identifier: Apache-2.0

package console

import (
	"crypto/sha256"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/lockstep-mq/lockstep/server/api/inprocgrpc"
)

const (
	// maxFormBytes limits the size of a request body.
	maxFormBytes = 2 << 20
	// policy is the content security policy.
	policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
		"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /assets/{name}", s.serveAsset)
	mux.HandleFunc("GET /sign-in", s.showSignIn)
	mux.HandleFunc("POST /sign-in", s.signIn)
	mux.Handle("POST /sign-out", s.signedIn(s.signOut))
	mux.Handle("GET /{$}", s.signedIn(func(w http.ResponseWriter, r *http.Request, _ *session) {
		http.Redirect(w, r, s.pages[0].Path, http.StatusSeeOther)
	}))
	for i := range s.pages {
		p := &s.pages[i]
		mux.Handle("GET "+p.Path, s.signedIn(func(w http.ResponseWriter, r *http.Request, one *session) {
			s.page(w, r, one, p, "", nil)
		}))
		if p.Live {
			mux.Handle("GET /events"+p.Path, s.signedIn(func(w http.ResponseWriter, r *http.Request, one *session) {
				s.serveEvents(w, r, one, p)
			}))
		}
		for j := range p.Actions {
			a := &p.Actions[j]
			if a.Dialog != "" {
				mux.Handle("GET "+p.Path+"/"+a.Name, s.signedIn(
					func(w http.ResponseWriter, r *http.Request, one *session) { s.dialog(w, r, one, p, a, nil) }))
			}
			mux.Handle("POST "+p.Path+"/"+a.Name, s.signedIn(
				func(w http.ResponseWriter, r *http.Request, one *session) { s.act(w, r, one, p, a) }))
		}
	}
	mux.Handle("/", s.signedIn(func(w http.ResponseWriter, r *http.Request, one *session) {
		s.showError(w, r, one, failure{Code: http.StatusNotFound, Title: "Page not found", Text: "The console has " +
			"no page at this address.", Action: "Choose one from the menu."})
	}))
	return s.guard(mux)
}

func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin") // with no-referrer, browsers would omit the origin of a form
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=(), payment=(), usb=()")
		h.Set("Cache-Control", "no-store")
		if reason := s.foreign(r); reason != "" {
			http.Error(w, reason, http.StatusForbidden)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxFormBytes)
		next.ServeHTTP(w, r)
	})
}

func (s *Server) foreign(r *http.Request) string {
	if s.o.Anonymous && !namesThisHost(r.Host) {
		return "The console accepts only local requests, but the host name was " + host(r.Host) +
			". Use http://localhost or http://127.0.0.1. This check blocks requests from other sites."
	}
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch site := r.Header.Get("Sec-Fetch-Site"); {
	case site == "" || site == "same-origin":
	case reads && (site == "none" || r.Header.Get("Sec-Fetch-Mode") == "navigate"):
	default:
		return "The request came from another site. Open the console and retry."
	}
	if origin := r.Header.Get("Origin"); origin != "" && !reads {
		u, err := url.Parse(origin)
		if err != nil || !strings.EqualFold(u.Host, r.Host) || u.Scheme != s.scheme() {
			return "The request came from another site (" + origin + "). A proxy in front of the console must " +
				"forward the Host header and use the same scheme."
		}
	}
	return ""
}

func (s *Server) scheme() string {
	if s.o.TLS != nil {
		return "https"
	}
	return "http"
}

func host(header string) string {
	if h, _, err := net.SplitHostPort(header); err == nil {
		return h
	}
	return strings.Trim(header, "[]")
}

// namesThisHost reports whether the host in a Host header is localhost or a loopback address.
func namesThisHost(header string) bool {
	h := host(header)
	if strings.EqualFold(h, "localhost") {
		return true
	}
	ip := net.ParseIP(h)
	return ip != nil && ip.IsLoopback()
}

func (s *Server) signedIn(next func(http.ResponseWriter, *http.Request, *session)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		one := s.sessionOf(r)
		if site := r.Header.Get("Sec-Fetch-Site"); one == nil && r.Method == http.MethodGet && site != "" &&
			site != "same-origin" && site != "none" {
			reloadPage(w)
			return
		}
		if one == nil && s.o.Anonymous && s.open(r) {
			one = &session{principal: "anonymous", method: "none"}
			id := s.sessions.begin(one)
			http.SetCookie(w, s.cookie(s.cookieName(sessionCookie), id))
			if r.Method != http.MethodGet {
				s.showError(w, r, one, errStaleForm())
				return
			}
		}
		if one == nil {
			s.sendToSignIn(w, r)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			if err := r.ParseForm(); err != nil {
				s.showError(w, r, one, failure{
					Code: http.StatusRequestEntityTooLarge, Title: "Form too large or invalid",
					Text: "The maximum form size is 2 MiB. Nothing was done.", Action: "Use the command line for larger messages.",
				})
				return
			}
			if !one.holds(r.Header.Get("X-Csrf-Token")) && !one.holds(r.PostForm.Get("csrf")) {
				s.showError(w, r, one, errStaleForm())
				return
			}
		}
		next(w, r, one)
	})
}

// reloadPage responds to a request from a link of another site with a page that requests the same address again.
func reloadPage(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = io.WriteString(w, `<!doctype html><html lang="en"><meta http-equiv="refresh" content="0">`+
		`<title>Lockstep</title>`)
}

func errStaleForm() failure {
	return failure{
		Code: http.StatusForbidden, Title: "Page outdated",
		Text:   "The form does not belong to the current session. Nothing was done.",
		Action: "Reload the page and retry.",
	}
}

// sessionOf returns the session of a request. It returns nil if the request has no session, or does not present
// the certificate that the session requires.
func (s *Server) sessionOf(r *http.Request) *session {
	c, err := r.Cookie(s.cookieName(sessionCookie))
	if err != nil {
		return nil
	}
	one := s.sessions.find(c.Value, !strings.HasPrefix(r.URL.Path, "/events/"))
	if one == nil || one.certificate != [sha256.Size]byte{} && one.certificate != certificateOf(r) {
		return nil
	}
	return one
}

// certificateOf returns the SHA-256 of the verified client certificate of a request. It returns the zero value
// without a certificate.
func certificateOf(r *http.Request) [sha256.Size]byte {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || len(r.TLS.VerifiedChains[0]) == 0 {
		return [sha256.Size]byte{}
	}
	return sha256.Sum256(r.TLS.VerifiedChains[0][0].Raw)
}

func (s *Server) sendToSignIn(w http.ResponseWriter, r *http.Request) {
	to := "/sign-in"
	if r.Method == http.MethodGet && !strings.HasPrefix(r.URL.Path, "/events/") && r.URL.Path != "/" {
		to += "?" + url.Values{"to": {r.URL.RequestURI()}}.Encode()
	}
	switch {
	case strings.HasPrefix(r.URL.Path, "/events/"):
		http.Error(w, "sign in first", http.StatusUnauthorized)
	case r.Header.Get("Hx-Request") != "":
		w.Header().Set("Hx-Redirect", to)
		w.WriteHeader(http.StatusUnauthorized)
	default:
		http.Redirect(w, r, to, http.StatusSeeOther)
	}
}

func (s *Server) callerOf(r *http.Request) inprocgrpc.Caller {
	c := inprocgrpc.Caller{Addr: &net.TCPAddr{}, TLS: r.TLS}
	if a, err := net.ResolveTCPAddr("tcp", r.RemoteAddr); err == nil {
		c.Addr = a
	}
	return c
}
