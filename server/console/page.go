// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"context"
	"html/template"
	"net/http"
	"net/url"
	"sync"
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/inprocgrpc"
)

const (
	loadTimeout   = 10 * time.Second
	actionTimeout = 60 * time.Second
)

// Page is one page of the console.
type Page struct {
	// Path is the path of the page, such as "/pair". Parameters are in the query.
	Path  string
	Title string // shown in the menu and in the heading
	Key   string // keyboard shortcut, pressed after "g"
	// Right is the right that the page requires: "any" (at least one right), "browse", "operate" or "audit". The
	// services check it.
	Right string
	// Template is the name of the page's file in templates, without ".html". The file defines "content", to which a
	// *pageData is passed. If Live is set, it also defines "live", to which the result of Load is passed.
	Template string
	// Live pages have a live part. While a browser shows the page, "live" is rendered at each interval. The result
	// replaces the content of the element with the ID "live".
	Live bool
	// Watch, if not nil, replaces Load for the live part. The rest of the page is not updated. An action reloads the
	// page.
	Watch func(ctx context.Context, v *View) (any, error)
	// Every is the interval at which the live part is rendered; 0 means one second.
	Every time.Duration
	// Hidden pages are not in the menu. Under is the Path of the page that the menu highlights instead.
	Hidden bool
	Under  string
	// Offered, if not nil, reports whether the menu contains the page. Its argument is the status of this node.
	Offered func(*pb.GetStatusResponse) bool
	// Load returns the data of the page.
	Load func(ctx context.Context, v *View) (any, error)
	// Follow, if not nil, replaces the periodic calls of Load for the live part. It calls show with the data of "live"
	// after each change, until ctx ends.
	Follow func(ctx context.Context, v *View, show func(any)) error

	Actions []Action
}

// Action is an operation of a page: a POST request to the page's path, "/" and Name.
type Action struct {
	Name  string
	Title string // title of the dialog and of its submit button
	Right string
	// Dialog is the name of a template in the page's file that contains the fields of the form. A *dialogData is
	// passed to it. If Dialog is empty, a form or button of the page submits the action directly.
	Dialog string
	// Danger marks an action that can lose data. Its button has a warning style.
	Danger bool
	// Confirm disables the submit button of the dialog until the user has typed a text. The dialog must have an
	// input with that text as data-confirm. Do must check the text again.
	Confirm bool
	// Load returns the data of the dialog. It is optional.
	Load func(ctx context.Context, v *View) (any, error)
	Do   func(ctx context.Context, v *View) (Done, error)
}

// Done is the result of an action.
type Done struct {
	Message string
	// Goto is the address of the next page. If it is empty, the current page is shown.
	Goto string
	// Show is the name of a template in the page's file. If it is not empty, the dialog shows this template with
	// Data instead of Message.
	Show string
	Data any
}

func pages() []Page {
	return []Page{
		pairPage(),
		alarmsPage(),
		sitesPage(),
		fleetPage(),
		queuesPage(),
		queuePage(),
		messagesPage(),
		messagePage(),
		schedulesPage(),
		storePage(),
		scanPage(),
		mapPage(),
		backupsPage(),
		jobsPage(),
		connectionsPage(),
		preparedPage(),
		accessPage(),
		auditPage(),
	}
}

// Layout contains the data of the frame around the content of each page.
type Layout struct {
	Title, Path, Under   string
	Node                 string // name of this node
	Theme                string // "dark", "light", or empty for the system setting
	CSRF, Principal      string
	SignedIn, CanSignOut bool
	Notice               string
	Menu                 []*Page
	Alarms               *alarmCounts // nil if the badge is not shown
	Events               string       // address of the event stream of the page; may be empty
}

// pageData is passed to the template "content".
type pageData struct {
	Layout

	Query   url.Values
	D       any           // result of Load
	Dialog  template.HTML // dialog shown above the page when it loads; may be empty
	Failure *failure      // replaces the content if not nil
}

// dialogData is passed to the template of a dialog.
type dialogData struct {
	D any // result of Action.Load
	// Form contains the submitted values if the dialog is shown again after an error.
	Form url.Values

	Query url.Values

	Action      *Action
	Path, CSRF  string
	Failure     *failure
	Inner       template.HTML
	Done, Close bool
}

func (s *Server) layout(r *http.Request, one *session, p *Page) Layout {
	l := Layout{Node: s.o.Node, Title: "Sign in", Path: r.URL.Path}
	if c, err := r.Cookie(themeCookie); err == nil && (c.Value == "dark" || c.Value == "light") {
		l.Theme = c.Value
	}
	if one != nil {
		l.SignedIn, l.CSRF, l.Principal, l.Notice = true, one.csrf, one.principal, one.takeNotice()
		l.CanSignOut = one.method != "none"
	}
	if p != nil {
		l.Title, l.Path, l.Under = p.Title, p.Path, p.Path
		if p.Under != "" {
			l.Under = p.Under
		}
		if p.Live {
			l.Events = "/events" + p.Path
			if r.URL.RawQuery != "" {
				l.Events += "?" + r.URL.Query().Encode()
			}
		}
	}
	return l
}

func (s *Server) view(one *session, from inprocgrpc.Caller, key inprocgrpc.Key, query, form url.Values) *View {
	return &View{
		Query: query, Form: form, Principal: one.principal, server: s, from: from, token: one.token, key: key,
	}
}

// viewOf returns the view for a request, and a context with a time limit for it. The caller must call end.
func (s *Server) viewOf(
	ctx context.Context, r *http.Request, one *session, form url.Values, limit time.Duration,
) (_ context.Context, v *View, end func()) {
	from := s.callerOf(r)
	key, leave := s.o.Link.Enter(from)
	ctx, cancel := context.WithTimeout(ctx, limit)
	return ctx, s.view(one, from, key, r.URL.Query(), form), func() {
		cancel()
		leave()
	}
}

func (s *Server) page(
	w http.ResponseWriter, r *http.Request, one *session, p *Page, dialog template.HTML, code *int,
) {
	ctx, v, end := s.viewOf(r.Context(), r, one, nil, loadTimeout)
	defer end()
	d := &pageData{Layout: s.layout(r, one, p), Query: v.Query, Dialog: dialog}
	var framing sync.WaitGroup
	framing.Go(func() { v.frame(ctx, &d.Layout) })
	loaded, err := p.Load(ctx, v)
	framing.Wait()
	if err != nil {
		s.refused(w, r, one, p, err)
		return
	}
	d.D = loaded
	if watched, is := loaded.(interface{ eventQuery() url.Values }); is {
		d.Events = "/events" + p.Path + "?" + watched.eventQuery().Encode()
	}
	status := http.StatusOK
	if code != nil {
		status = *code
	}
	s.render(w, status, p.Template, "page", d)
}

func (s *Server) refused(w http.ResponseWriter, r *http.Request, one *session, p *Page, err error) {
	f, answered := s.refusal(w, r, one, p.Right, err)
	if answered {
		return
	}
	d := &pageData{Layout: s.layout(r, one, p), Query: r.URL.Query(), Failure: &f}
	d.Events = ""
	s.framed(r, one, &d.Layout)
	s.render(w, f.Code, "error", "page", d)
}

// refusal converts an error to a failure. If the cause is a missing right, the failure contains that right. If the
// session is no longer valid, refusal ends the session and redirects to the sign-in page. In that case, answered is
// true and the response is complete.
func (s *Server) refusal(
	w http.ResponseWriter, r *http.Request, one *session, right string, err error,
) (f failure, answered bool) {
	f = describe(err)
	// The token has expired, or the session is anonymous and access rules were created.
	if f.Code == http.StatusUnauthorized || f.Code == http.StatusForbidden && one.method == "none" {
		s.sessions.end(one)
		s.sendToSignIn(w, r)
		return f, true
	}
	if f.Code == http.StatusForbidden {
		f.Right = right
	}
	return f, false
}

// showError renders a page that contains only the failure. If the request is for a dialog, it renders a dialog with
// the failure.
func (s *Server) showError(w http.ResponseWriter, r *http.Request, one *session, f failure) {
	if r.Header.Get("Hx-Request") != "" {
		w.Header().Set("Hx-Retarget", "#dialog")
		s.render(w, f.Code, "error", "dialog", &dialogData{Failure: &f, Done: true})
		return
	}
	d := &pageData{Layout: s.layout(r, one, nil), Failure: &f}
	d.Title = f.Title
	s.framed(r, one, &d.Layout)
	s.render(w, f.Code, "error", "page", d)
}

// dialog renders the dialog of an action. A request from the page's script receives only the dialog. Other requests
// receive the whole page.
func (s *Server) dialog(w http.ResponseWriter, r *http.Request, one *session, p *Page, a *Action, f *failure) {
	ctx, v, end := s.viewOf(r.Context(), r, one, r.PostForm, loadTimeout)
	defer end()
	d := &dialogData{Form: r.PostForm, Query: v.Query, Action: a, Path: r.URL.RequestURI(), CSRF: one.csrf, Failure: f}
	if d.Form == nil {
		d.Form = url.Values{}
	}
	code := http.StatusOK
	if a.Load != nil {
		var err error
		if d.D, err = a.Load(ctx, v); err != nil {
			described, answered := s.refusal(w, r, one, a.Right, err)
			if answered {
				return
			}
			d.Done = true
			if d.Failure == nil { // an earlier failure takes precedence
				d.Failure = &described
			}
		}
	}
	if d.Failure != nil {
		code = d.Failure.Code
	}
	if !d.Done && a.Dialog != "" {
		inner, err := s.part(p.Template, a.Dialog, d)
		if err != nil {
			s.broken(w, err)
			return
		}
		d.Inner = inner
	}
	s.answerDialog(w, r, one, p, code, d)
}

func (s *Server) answerDialog(
	w http.ResponseWriter, r *http.Request, one *session, p *Page, code int, d *dialogData,
) {
	if r.Header.Get("Hx-Request") != "" {
		w.Header().Set("Hx-Retarget", "#dialog")
		w.Header().Set("Hx-Reswap", "innerHTML")
		s.render(w, code, p.Template, "dialog", d)
		return
	}
	complete, err := s.part(p.Template, "dialog", d)
	if err != nil {
		s.broken(w, err)
		return
	}
	s.page(w, r, one, p, complete, &code)
}

func (s *Server) act(w http.ResponseWriter, r *http.Request, one *session, p *Page, a *Action) {
	ctx, v, end := s.viewOf(r.Context(), r, one, r.PostForm, actionTimeout)
	defer end()
	done, err := a.Do(ctx, v)
	if err != nil {
		if f, answered := s.refusal(w, r, one, a.Right, err); !answered {
			s.dialog(w, r, one, p, a, &f)
		}
		return
	}
	if done.Show != "" {
		inner, err := s.part(p.Template, done.Show, done.Data)
		if err != nil {
			s.broken(w, err)
			return
		}
		s.answerDialog(w, r, one, p, http.StatusOK, &dialogData{Action: a, Inner: inner, Done: true})
		return
	}
	s.acted(w, r, one, p, done)
}

func (s *Server) acted(w http.ResponseWriter, r *http.Request, one *session, p *Page, done Done) {
	if r.Header.Get("Hx-Request") == "" {
		one.setNotice(done.Message)
		to := done.Goto
		if to == "" {
			to = p.Path
			if r.URL.RawQuery != "" {
				to += "?" + r.URL.RawQuery
			}
		}
		http.Redirect(w, r, to, http.StatusSeeOther) //nolint:gosec // starts with the path of a page
		return
	}
	switch {
	case done.Goto != "":
		one.setNotice(done.Message)
		w.Header().Set("Hx-Redirect", done.Goto)
	case p.Live && p.Watch == nil:
		w.Header().Set("Hx-Trigger", trigger("console:done", done.Message))
	default:
		one.setNotice(done.Message)
		w.Header().Set("Hx-Refresh", "true")
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) part(file, name string, data any) (template.HTML, error) {
	var b bytes.Buffer
	if err := s.templates[file].ExecuteTemplate(&b, name, data); err != nil {
		return "", err //nolint:wrapcheck // the error contains the template
	}
	return template.HTML(b.String()), nil //nolint:gosec // output of html/template
}
