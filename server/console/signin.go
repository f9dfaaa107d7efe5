// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"net"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/inprocgrpc"
)

// signInTimeout limits the time to check credentials.
const signInTimeout = 15 * time.Second

type signInData struct {
	Layout

	Entry       string // secret of the sign-in form
	To          string // address of the page to show after the sign-in
	Certificate string // subject of the client certificate; may be empty
	Failed      *failure
	Failure     *failure // always nil, because failures are shown in the form
	Dialog      string   // always empty
}

func (s *Server) open(r *http.Request) bool {
	identity, err := s.identify(r, "")
	return err == nil && identity.GetOpen()
}

// identify returns the identity that the node assigns to a browser. token may be empty.
func (s *Server) identify(r *http.Request, token string) (*pb.WhoAmIResponse, error) {
	key, leave := s.o.Link.Enter(s.callerOf(r))
	defer leave()
	ctx, cancel := context.WithTimeout(r.Context(), signInTimeout)
	defer cancel()
	ctx = withToken(inprocgrpc.As(ctx, key), token)
	return pb.NewAccessServiceClient(s.o.Link).WhoAmI(ctx, &pb.WhoAmIRequest{})
}

func withToken(ctx context.Context, token string) context.Context {
	if token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

func (s *Server) showSignIn(w http.ResponseWriter, r *http.Request) {
	if s.sessionOf(r) != nil {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	s.signInForm(w, r, http.StatusOK, nil)
}

func (s *Server) signInForm(w http.ResponseWriter, r *http.Request, code int, f *failure) {
	entry := secret()
	http.SetCookie(w, s.cookie(s.cookieName(entryCookie), entry))
	d := signInData{
		Layout: s.layout(r, nil, nil), Entry: entry, To: localPath(r.FormValue("to")), Failed: f,
		Certificate: holder(r),
	}
	s.render(w, code, "sign-in", "page", &d)
}

func holder(r *http.Request) string {
	if certificateOf(r) == [sha256.Size]byte{} {
		return ""
	}
	c := r.TLS.VerifiedChains[0][0]
	if name := c.Subject.CommonName; name != "" {
		return name
	}
	return "serial number " + c.SerialNumber.String()
}

// localPath returns path if it is a path on this port, or else "/", which redirects to the first page.
func localPath(path string) string {
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || strings.ContainsAny(path, "\\\r\n\t") {
		return "/"
	}
	return path
}

// signIn creates a session from a token or from the client certificate of the connection. It ends the previous
// session of the browser.
func (s *Server) signIn(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		s.signInForm(w, r, http.StatusRequestEntityTooLarge, &failure{Title: "Form too large or invalid"})
		return
	}
	entry, err := r.Cookie(s.cookieName(entryCookie))
	if err != nil || !equal(entry.Value, r.PostForm.Get("entry")) {
		s.signInForm(w, r, http.StatusForbidden, &failure{
			Title: "The sign-in form has expired", Action: "Try again.",
		})
		return
	}
	if seconds := s.waitOf(r); seconds > 0 {
		after := fmt.Sprintf("%.0f", math.Ceil(seconds))
		w.Header().Set("Retry-After", after)
		s.signInForm(w, r, http.StatusTooManyRequests, &failure{
			Title: "Too many attempts", Text: "Too many failed sign-ins from your address. This token was not checked.",
			Action: "Try again in " + after + " seconds.",
		})
		return
	}
	one := &session{token: strings.TrimSpace(r.PostForm.Get("token"))}
	if r.PostForm.Get("with") == "certificate" {
		one.token, one.certificate = "", certificateOf(r)
	}
	if one.token == "" && one.certificate == [sha256.Size]byte{} {
		s.signInForm(w, r, http.StatusBadRequest, &failure{
			Title:  "The token is empty",
			Action: "Enter an access token (lockstep access token create) or a JWT of your identity provider.",
		})
		return
	}
	identity, err := s.identify(r, one.token)
	if err != nil {
		f := describe(err)
		if status.Code(err) == codes.Unauthenticated {
			f.Code, f.Title = http.StatusUnauthorized, "Sign-in failed"
			f.Action = "Check that the token is complete, and that it has not expired or been revoked."
		}
		s.signInForm(w, r, f.Code, &f)
		return
	}
	one.principal, one.method = identity.GetPrincipal(), identity.GetMethod()
	if before := s.sessionOf(r); before != nil {
		s.sessions.end(before)
	}
	http.SetCookie(w, s.cookie(s.cookieName(sessionCookie), s.sessions.begin(one)))
	http.SetCookie(w, s.noCookie(s.cookieName(entryCookie)))
	http.Redirect(w, r, localPath(r.PostForm.Get("to")), http.StatusSeeOther) //nolint:gosec // a path of this port
}

// waitOf returns how many seconds the address of a request must wait before the next attempt to sign in.
func (s *Server) waitOf(r *http.Request) float64 {
	a, err := net.ResolveTCPAddr("tcp", r.RemoteAddr)
	if err != nil {
		return 0
	}
	return s.o.SignInWait(a)
}

func (s *Server) signOut(w http.ResponseWriter, r *http.Request, one *session) {
	s.sessions.end(one)
	http.SetCookie(w, s.noCookie(s.cookieName(sessionCookie)))
	http.Redirect(w, r, "/sign-in", http.StatusSeeOther)
}
