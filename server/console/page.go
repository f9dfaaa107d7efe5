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

	"github.com/lockstep-mq/lockstep/server/inprocess"
)

const (
	// loadTimeout and actionTimeout bound how long a page and an action may take.
	loadTimeout   = 10 * time.Second
	actionTimeout = 60 * time.Second
)

// Page is one page of the console.
type Page struct {
	// Path of the page, such as "/pair". What it shows of is in the query.
	Path string
	// Title in the menu and at the top.
	Title string
	// Key that follows "g" on the keyboard: one letter.
	Key string
	// Right that the session needs to see the page: "any" (whoever has any right), "browse", "operate" or "audit". The
	// services check it, not the console; it is told where a page is refused, and in docs/how-to/console.md.
	Right string
	// Template is the name of its file in templates, without ".html". The file defines "content", which gets a
	// *pageData, and, if Live, "live", which gets what Load returns.
	Template string
	// Live: "live" is made anew once a second while a browser shows the page, and put into the element with the
	// identifier "live".
	Live bool
	// Watch, if not nil, takes the place of Load for the live part alone: the rest of the page stays as it was loaded. An
	// action loads the page again.
	Watch func(ctx context.Context, v *View) (any, error)
	// Every is how often that is, if not once a second.
	Every time.Duration
	// Hidden: it is not in the menu; Under is the Path of the page that the menu marks for it.
	Hidden bool
	Under  string
	// Load gets what the page shows.
	Load func(ctx context.Context, v *View) (any, error)
	// Follow, if not nil, takes the place of Load once a second for the live part: it calls show with what "live" gets
	// whenever that has changed, until ctx ends. For what would be costly, or audited, to ask for again and again.
	Follow func(ctx context.Context, v *View, show func(any)) error
	// Actions of the page.
	Actions []Action
}

// Action is something that can be done on a page: a POST to the page's path, "/" and Name.
type Action struct {
	// Name in the address.
	Name string
	// Title of its dialogue and of the button that does it.
	Title string
	// Right that the session needs for it.
	Right string
	// Dialog is the name of the template, in the file of the page, that has the fields of the form; it gets a
	// *dialogData. Empty: there is no dialogue, and a form or button of the page does the action at once.
	Dialog string
	// Danger: something can be lost by it. The button is shown accordingly.
	Danger bool
	// Confirm: the dialogue has an input with data-confirm. Its submit button is rendered disabled, and the script of the
	// page enables it while the input has that text. Do must check the text.
	Confirm bool
	// Load gets what the dialogue shows; nil: nothing.
	Load func(ctx context.Context, v *View) (any, error)
	// Do does it.
	Do func(ctx context.Context, v *View) (Done, error)
}

// Done is what an action has done.
type Done struct {
	// Message for the one who did it.
	Message string
	// Goto is the page that follows; empty: the one that it was done on.
	Goto string
	// Show is the name of a template, in the file of the page, that gets Data and is shown in the dialogue instead of
	// the message: something to be read at leisure.
	Show string
	Data any
}

// pages are all pages, in the order of the menu. A new one is added here.
func pages() []Page {
	return []Page{
		pairPage(),
		alarmsPage(),
		queuesPage(),
		queuePage(),
		messagesPage(),
		messagePage(),
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

// Layout is what every page has around its content.
type Layout struct {
	Title, Path, Under string
	Node               string // this node
	Theme              string // "dark", "light", or empty: what the system says
	CSRF, Principal    string
	SignedIn, CanLeave bool
	Notice             string
	Menu               []*Page
	Alarms             *alarmCounts // nil: they are not shown
	Events             string       // address of the page's events; empty: none
}

// pageData is what "content" gets.
type pageData struct {
	Layout

	// Query of the page.
	Query url.Values
	// D is what Load has returned.
	D any
	// Dialog is shown above the page at once; empty: none.
	Dialog template.HTML
	// Failure in the place of the content; nil: none.
	Failure *failure
}

// dialogData is what the template of a dialogue gets.
type dialogData struct {
	// D is what Load of the action has returned.
	D any
	// Form is what was filled in before, if it is shown again.
	Form url.Values
	// Query of the dialogue.
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
		l.SignedIn, l.CSRF, l.Principal, l.Notice = true, one.csrf, one.principal, one.said()
		l.CanLeave = one.method != "none"
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

// view makes what a page or action is made for.
func (s *Server) view(one *session, from inprocess.Caller, key inprocess.Key, query, form url.Values) *View {
	return &View{
		Query: query, Form: form, Principal: one.principal, server: s, from: from, token: one.token, key: key,
	}
}

// showPage answers with a page.
func (s *Server) showPage(w http.ResponseWriter, r *http.Request, one *session, p *Page) {
	s.page(w, r, one, p, "", nil)
}

// page answers with a page, and a dialogue above it.
func (s *Server) page(
	w http.ResponseWriter, r *http.Request, one *session, p *Page, dialog template.HTML, code *int,
) {
	key, leave := s.caller(r)
	defer leave()
	ctx, cancel := context.WithTimeout(r.Context(), loadTimeout)
	defer cancel()
	v := s.view(one, s.callerOf(r), key, r.URL.Query(), nil)
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

// refused answers with why a page cannot be shown.
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

// refusal makes of an error what a person is told: that right is needed, if it is lacking. A session that is of no use
// any more it ends, and sends to sign in: the request is answered then.
func (s *Server) refusal(
	w http.ResponseWriter, r *http.Request, one *session, right string, err error,
) (f failure, answered bool) {
	f = describe(err)
	if s.mustSignIn(one, f) {
		s.sessions.end(one)
		s.sendToSignIn(w, r)
		return f, true
	}
	if f.Code == http.StatusForbidden {
		f.Needs = right
	}
	return f, false
}

// mustSignIn tells whether a session is of no use any more: its token is over, or there are rules now and nobody has
// signed in.
func (s *Server) mustSignIn(one *session, f failure) bool {
	return f.Code == http.StatusUnauthorized || f.Code == http.StatusForbidden && one.method == "none"
}

// showError answers with a page that only says what is the matter, or, for a dialogue, with a dialogue.
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

// showDialog answers with the dialogue of an action: alone for the page that has asked, else above the page.
func (s *Server) showDialog(w http.ResponseWriter, r *http.Request, one *session, p *Page, a *Action) {
	s.dialog(w, r, one, p, a, nil)
}

func (s *Server) dialog(w http.ResponseWriter, r *http.Request, one *session, p *Page, a *Action, f *failure) {
	key, leave := s.caller(r)
	defer leave()
	ctx, cancel := context.WithTimeout(r.Context(), loadTimeout)
	defer cancel()
	v := s.view(one, s.callerOf(r), key, r.URL.Query(), r.PostForm)
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
			if d.Failure == nil { // else what was wrong first is told
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

// answerDialog answers with a dialogue.
func (s *Server) answerDialog(
	w http.ResponseWriter, r *http.Request, one *session, p *Page, code int, d *dialogData,
) {
	if r.Header.Get("Hx-Request") != "" {
		w.Header().Set("Hx-Retarget", "#dialog")
		w.Header().Set("Hx-Reswap", "innerHTML")
		s.render(w, code, p.Template, "dialog", d)
		return
	}
	whole, err := s.part(p.Template, "dialog", d)
	if err != nil {
		s.broken(w, err)
		return
	}
	s.page(w, r, one, p, whole, &code)
}

// act does an action.
func (s *Server) act(w http.ResponseWriter, r *http.Request, one *session, p *Page, a *Action) {
	key, leave := s.caller(r)
	defer leave()
	ctx, cancel := context.WithTimeout(r.Context(), actionTimeout)
	defer cancel()
	v := s.view(one, s.callerOf(r), key, r.URL.Query(), r.PostForm)
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

// acted has the browser go on after an action.
func (s *Server) acted(w http.ResponseWriter, r *http.Request, one *session, p *Page, done Done) {
	if r.Header.Get("Hx-Request") == "" {
		one.say(done.Message)
		to := done.Goto
		if to == "" {
			to = p.Path
			if r.URL.RawQuery != "" {
				to += "?" + r.URL.RawQuery
			}
		}
		http.Redirect(w, r, to, http.StatusSeeOther) //nolint:gosec // it begins with the path of a page
		return
	}
	switch {
	case done.Goto != "":
		one.say(done.Message)
		w.Header().Set("Hx-Redirect", done.Goto)
	case p.Live && p.Watch == nil:
		w.Header().Set("Hx-Trigger", trigger("console:done", done.Message))
	default:
		one.say(done.Message)
		w.Header().Set("Hx-Refresh", "true")
	}
	w.WriteHeader(http.StatusNoContent)
}

// part makes a piece of a page.
func (s *Server) part(file, name string, data any) (template.HTML, error) {
	var b bytes.Buffer
	if err := s.templates[file].ExecuteTemplate(&b, name, data); err != nil {
		return "", err //nolint:wrapcheck // it names the template
	}
	return template.HTML(b.String()), nil //nolint:gosec // html/template has made it
}
