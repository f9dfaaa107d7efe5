// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/config"
)

// On a loopback address, the console requires no sign-in while there are no access rules. The test uses real
// sockets, whereas most other tests use a simulated network.
func TestOpenOnLoopback(t *testing.T) {
	b := newBrowser(t, startNode(t, nil).Console)
	a := b.get("/")
	require.Equal(t, http.StatusOK, a.code)
	require.Equal(t, "/pair", a.at)
	require.Contains(t, a.body, "<h1>Pair</h1>")
}

// If access.mode is deny, pages redirect to the sign-in page. Invalid tokens, and event streams without a
// session, are rejected.
func TestSignInIsNeededWithoutOpenRules(t *testing.T) {
	simulated(t, testSignInIsNeededWithoutOpenRules)
}

func testSignInIsNeededWithoutOpenRules(t *testing.T) {
	b := newBrowser(t, startNode(t, func(c *config.Config) { c.Access.Mode = "deny" }).Console)
	a := b.get("/pair")
	require.Equal(t, "/sign-in", a.at)
	a = b.signIn("lsk_wrong")
	require.Equal(t, http.StatusUnauthorized, a.code)
	require.Contains(t, a.body, "unknown token")
	require.Equal(t, http.StatusUnauthorized, b.get("/events/pair").code)
}

// Links from other sites work although the browser sends no cookie with them. Cross-site forms and script
// requests are rejected.
func TestLinksFromOtherSites(t *testing.T) { simulated(t, testLinksFromOtherSites) }

func testLinksFromOtherSites(t *testing.T) {
	b := newBrowser(t, startNode(t, nil).Console)
	r := b.request(http.MethodGet, "/store", nil)
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	r.Header.Set("Sec-Fetch-Mode", "navigate")
	a := b.do(r)
	require.Equal(t, http.StatusOK, a.code)
	require.Contains(t, a.body, `http-equiv="refresh"`)
	require.Empty(t, a.head.Values("Set-Cookie"))
	r = b.request(http.MethodGet, "/store", nil)
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	r.Header.Set("Sec-Fetch-Mode", "no-cors")
	require.Equal(t, http.StatusForbidden, b.do(r).code)
}

// A form is rejected if its host, origin or CSRF token is not that of this console.
func TestOtherSitesAreRefused(t *testing.T) { simulated(t, testOtherSitesAreRefused) }

func testOtherSitesAreRefused(t *testing.T) {
	b := newBrowser(t, startNode(t, nil).Console)
	form := url.Values{"csrf": {b.csrf()}}
	for name, change := range map[string]func(*http.Request){
		"host":   func(r *http.Request) { r.Host = "rebound.example:80" },
		"origin": func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") },
		"null":   func(r *http.Request) { r.Header.Set("Origin", "null") },
		"fetch":  func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") },
		"port":   func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:1") },
		"csrf":   func(r *http.Request) { r.Header.Set("X-Csrf-Token", "x"); r.Body = http.NoBody; r.ContentLength = 0 },
	} {
		require.Equal(t, http.StatusForbidden, b.post("/sign-out", form, change).code, name)
	}
	require.Equal(t, http.StatusOK, b.post("/sign-out", form).code)
}
