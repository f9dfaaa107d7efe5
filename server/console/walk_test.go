// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/console"
)

// htmx marks a request as sent by the script of a page.
func htmx(r *http.Request) { r.Header.Set("Hx-Request", "true") }

// forbiddenMarkup matches markup that the content security policy forbids.
var forbiddenMarkup = regexp.MustCompile(`(?i)<script[^>]*>[^<]|\son[a-z]+\s*=|\sstyle\s*=|javascript:|hx-on|hx-vals`)

// requireSafe checks that a response has the security headers and contains no forbidden markup.
func requireSafe(t *testing.T, a response) {
	t.Helper()
	csp := a.head.Get("Content-Security-Policy")
	for _, part := range []string{
		"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "form-action 'self'",
		"frame-ancestors 'none'", "base-uri 'none'",
	} {
		require.Contains(t, csp, part)
	}
	require.NotContains(t, csp, "unsafe")
	require.Equal(t, "nosniff", a.head.Get("X-Content-Type-Options"))
	require.Equal(t, "DENY", a.head.Get("X-Frame-Options"))
	require.Empty(t, forbiddenMarkup.FindString(a.body))
}

// Each page and dialog declares its right, conforms to its content security policy, and loads nothing from other
// hosts. A form without the CSRF token of the session is rejected.
func TestEveryRoute(t *testing.T) { simulated(t, testEveryRoute) }

func testEveryRoute(t *testing.T) {
	b := newBrowser(t, startNode(t, nil).Console)
	rights := []string{"any", "browse", "publish", "consume", "manage", "operate", "audit"}
	keys := make(map[string]bool)
	token := b.csrf()
	for _, p := range console.Pages() {
		require.Contains(t, rights, p.Right, p.Path)
		require.NotEmpty(t, p.Title)
		require.False(t, p.Key != "" && keys[p.Key], "two pages have the key %s", p.Key)
		keys[p.Key] = true
		a := b.get(p.Path)
		requireSafe(t, a)
		require.Less(t, a.code, http.StatusInternalServerError, p.Path+a.body)
		for _, at := range regexp.MustCompile(`(?:src|href|action)="([^"]*)"`).FindAllStringSubmatch(a.body, -1) {
			require.True(t, strings.HasPrefix(at[1], "/") || strings.HasPrefix(at[1], "#") ||
				strings.HasPrefix(at[1], "https://github.com/lockstep-mq/"), at[1])
		}
		for _, action := range p.Actions {
			require.Contains(t, rights, action.Right, action.Name)
			require.NotEqual(t, "any", action.Right, "an action requires a right")
			at := p.Path + "/" + action.Name
			if action.Dialog != "" {
				requireSafe(t, b.get(at))
				require.NotEqual(t, http.StatusInternalServerError, b.get(at).code, at)
			}
			for _, form := range []url.Values{{}, {"csrf": {""}}, {"csrf": {token + "x"}}} {
				a := b.post(at, form)
				require.Equal(t, http.StatusForbidden, a.code, at)
				require.Contains(t, a.body, "Nothing was")
				requireSafe(t, a)
			}
		}
	}
	requireSafe(t, b.get("/sign-in"))
	requireSafe(t, b.get("/no/such/page"))
	require.Equal(t, http.StatusNotFound, b.get("/no/such/page").code)
	require.Equal(t, http.StatusNotFound, b.get("/assets/../../go.mod").code)
	require.Equal(t, http.StatusNotFound, b.get("/assets/%2e%2e%2ftemplates%2flayout.html").code)
}

// docs/how-to/console.md contains each page with the right that it requires.
func TestPagesAreDocumented(t *testing.T) {
	raw, err := os.ReadFile("../../docs/how-to/console.md")
	require.NoError(t, err)
	for _, p := range console.Pages() {
		require.Regexp(t, "(?m)^\\| `"+regexp.QuoteMeta(p.Path)+"` [^|]*\\| "+p.Right+" \\|", string(raw))
	}
}

// act executes an action like a page of the console, and requires success.
func (b *browser) act(at string, form url.Values) response {
	b.t.Helper()
	form = cloneForm(form)
	form.Set("csrf", b.csrf())
	a := b.post(at, form, htmx)
	require.Contains(b.t, []int{http.StatusOK, http.StatusNoContent}, a.code, at+": "+a.body)
	return a
}

func cloneForm(form url.Values) url.Values {
	out := make(url.Values)
	for k, v := range form {
		out[k] = slices.Clone(v)
	}
	return out
}

var tokenPattern = regexp.MustCompile(`lsk_[A-Za-z0-9_-]{43}`)

// makeToken creates a token on the Access page and returns it.
func (b *browser) makeToken(name, principal string) string {
	b.t.Helper()
	a := b.act("/access/token", url.Values{"name": {name}, "principal": {principal}})
	found := tokenPattern.FindString(a.body)
	require.NotEmpty(b.t, found, a.body)
	return found
}

// On each page and in each action, a session has exactly the rights of its principal. A session ends when its
// token is revoked.
func TestRulesApplyToPages(t *testing.T) { simulated(t, testRulesApplyToPages) }

func testRulesApplyToPages(t *testing.T) {
	ready := startNode(t, func(c *config.Config) { c.Access.Operators = []string{"root"} })
	anonymous := newBrowser(t, ready.Console)
	rootToken, readerToken := anonymous.makeToken("root-1", "root"), anonymous.makeToken("reader-1", "reader")
	auditToken := anonymous.makeToken("audit-1", "auditor")
	anonymous.act("/access/grant", url.Values{
		"kind": {"principal"}, "subject": {"reader"}, "queue": {"*"}, "right": {"browse"}, "lock_out": {"1"},
	})
	require.Eventually(t, func() bool { return anonymous.get("/pair").at == "/sign-in" }, testTimeout,
		50*time.Millisecond, "sign-in is required after the first rule")
	require.Equal(t, http.StatusUnauthorized, anonymous.get("/events/pair").code)

	root, reader, auditor := newBrowser(t, ready.Console), newBrowser(t, ready.Console), newBrowser(t, ready.Console)
	require.Equal(t, "/pair", root.signIn(rootToken).at)
	require.Equal(t, "/pair", reader.signIn(readerToken).at)
	root.act("/access/grant", url.Values{"kind": {"principal"}, "subject": {"auditor"}, "right": {"audit"}})
	require.Equal(t, "/pair", auditor.signIn(auditToken).at)
	for _, p := range console.Pages() {
		a := reader.get(p.Path)
		if p.Right == "operate" || p.Right == "audit" {
			require.Equal(t, http.StatusForbidden, a.code, p.Path)
			require.Contains(t, a.body, "Permission denied")
			require.Contains(t, a.body, "<code>"+p.Right+"</code>")
		} else {
			require.NotEqual(t, http.StatusForbidden, a.code, p.Path)
		}
		for _, action := range p.Actions {
			if action.Right != "operate" {
				continue
			}
			form := url.Values{
				"csrf": {reader.csrf()}, "name": {"x"}, "page_size": {"4096"}, "principal": {"x"}, "subject": {"x"},
				"right": {"operate"}, "kind": {"backup"}, "schedule": {"@daily"}, "queue": {"x"}, "bytes": {"1"},
				"confirm": {"x"},
			}
			a := reader.post(p.Path+"/"+action.Name+"?node=&name=x&xid=x", form, htmx)
			require.Equal(t, http.StatusForbidden, a.code, p.Path+"/"+action.Name+a.body)
		}
	}
	require.Equal(t, http.StatusOK, auditor.get("/audit").code)
	require.Contains(t, auditor.get("/audit").body, "refused")
	require.Equal(t, http.StatusForbidden, auditor.get("/store").code)

	root.act("/access/revoke-token", url.Values{"name": {"reader-1"}})
	require.Eventually(t, func() bool { return reader.get("/pair").at == "/sign-in" }, testTimeout,
		50*time.Millisecond, "the token was revoked")
	a := root.post("/sign-out", url.Values{"csrf": {root.csrf()}})
	require.Equal(t, "/sign-in", a.at)
	require.Equal(t, "/sign-in", root.get("/store").at)
}
