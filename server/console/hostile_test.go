// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/console"
	"github.com/lockstep-mq/lockstep/test/certs"
)

const script = `"><script>alert(1)</script><img src=x onerror=alert(2)>'`

// event returns the first live part in the event stream of a page.
func (b *browser) event(path string) string {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), testTimeout)
	defer cancel()
	r := b.request(http.MethodGet, "/events"+path, nil).WithContext(ctx)
	resp, err := b.http.Do(r)
	require.NoError(b.t, err)
	defer func() { require.NoError(b.t, resp.Body.Close()) }()
	require.Equal(b.t, http.StatusOK, resp.StatusCode)
	var text strings.Builder
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for inLive := false; lines.Scan(); {
		if lines.Text() == "event: live" {
			inLive = true
		}
		if inLive && lines.Text() == "" {
			return text.String()
		}
		text.WriteString(lines.Text() + "\n")
	}
	require.Fail(b.t, "no event received", text.String())
	return ""
}

// Text from requests and from other users is escaped in pages, events and headers.
func TestTextIsEscaped(t *testing.T) { simulated(t, testTextIsEscaped) }

func testTextIsEscaped(t *testing.T) {
	ready := startNode(t, nil)
	b := newBrowser(t, ready.Console)
	requireEscaped := func(text string) {
		require.NotContains(t, text, "<script>alert")
		require.NotContains(t, text, "<img src=x")
	}
	b.act("/access/quota", url.Values{"queue": {script}, "bytes": {"1"}})
	requireEscaped(b.get("/access").body)
	require.Contains(t, b.get("/access").body, "&lt;script&gt;")
	for _, at := range []string{
		"/access/quota?queue=", "/access/revoke?kind=principal&queue=x&subject=", "/jobs/put?name=", "/pair/force?node=",
		"/audit?principal=", "/scan?node=", "/sign-in?to=", "/nowhere/",
	} {
		requireEscaped(b.get(at + url.QueryEscape(script)).body)
		r := b.request(http.MethodGet, at+url.QueryEscape(script), nil)
		htmx(r)
		requireEscaped(b.do(r).body)
	}
	requireEscaped(b.get("/audit").body)
	requireEscaped(b.event("/audit"))
	require.Contains(t, b.event("/audit"), "PutQuota")
	a := b.act("/access/token", url.Values{"name": {"t"}, "principal": {script}})
	requireEscaped(a.body)
	requireEscaped(a.head.Get("Hx-Trigger"))
}

// A form or a header that exceeds its limit is rejected.
func TestFormsAreBounded(t *testing.T) { simulated(t, testFormsAreBounded) }

func testFormsAreBounded(t *testing.T) {
	b := newBrowser(t, startNode(t, nil).Console)
	form := url.Values{"csrf": {b.csrf()}, "name": {strings.Repeat("x", 3<<20)}}
	require.Equal(t, http.StatusRequestEntityTooLarge, b.post("/jobs/put", form).code)
	resp, err := b.http.Do(func() *http.Request {
		r := b.request(http.MethodGet, "/pair", nil)
		r.Header.Set("X-Large", strings.Repeat("x", 64<<10))
		return r
	}())
	if err == nil { // the server may close the connection before the whole body is sent
		require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, resp.StatusCode)
		require.NoError(t, resp.Body.Close())
	}
}

// The node accepts a name with the maximum length of its field, and no longer name.
func TestFieldsHaveLimitsOfNode(t *testing.T) { simulated(t, testFieldsHaveLimitsOfNode) }

func testFieldsHaveLimitsOfNode(t *testing.T) {
	b := newBrowser(t, startNode(t, nil).Console)
	for at, c := range map[string]struct {
		field string
		form  url.Values
	}{
		"/jobs/put":      {"name", url.Values{"schedule": {"@daily"}, "kind": {"scan"}}},
		"/queues/create": {"name", url.Values{}},
		"/access/role":   {"name", url.Values{"right": {"publish"}}},
		"/access/token":  {"name", url.Values{"principal": {"alice"}}},
		"/access/quota":  {"queue", url.Values{"queues": {"5"}}},
	} {
		found := regexp.MustCompile(`name="` + c.field + `"[^>]* maxlength="(\d+)"`).FindStringSubmatch(b.get(at).body)
		require.Len(t, found, 2, at)
		limit, err := strconv.Atoi(found[1])
		require.NoError(t, err)
		c.form.Set(c.field, strings.Repeat("x", limit))
		b.act(at, c.form)
		c.form.Set(c.field, strings.Repeat("y", limit+1))
		c.form.Set("csrf", b.csrf())
		require.Equal(t, http.StatusBadRequest, b.post(at, c.form, htmx).code, at)
	}
}

// The sign-in redirects only to pages of this console.
func TestSignInRedirectsToSameOrigin(t *testing.T) { simulated(t, testSignInRedirectsToSameOrigin) }

func testSignInRedirectsToSameOrigin(t *testing.T) {
	b := newBrowser(t, startNode(t, func(c *config.Config) { c.Access.Mode = "deny" }).Console)
	for _, to := range []string{"//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"} {
		require.Contains(t, b.get("/sign-in?to="+url.QueryEscape(to)).body, `name="to" value="/"`)
	}
	require.Contains(t, b.get("/store?x=1").body, `name="to" value="/store?x=1"`)
}

// A connection without a complete request is closed after readHeaderTimeout.
func TestConnectionsWithoutRequestAreClosed(t *testing.T) {
	simulated(t, testConnectionsWithoutRequestAreClosed)
}

func testConnectionsWithoutRequestAreClosed(t *testing.T) {
	u, err := url.Parse(startNode(t, nil).Console)
	require.NoError(t, err)
	for _, first := range []string{"", "GET /pair HTTP/1.1\r\nHost: " + u.Host + "\r\nX-A: "} {
		c, err := dial(t)(t.Context(), "tcp", u.Host)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		_, err = io.WriteString(c, first)
		require.NoError(t, err)
		if first == "" {
			continue // the connections wait concurrently
		}
		require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		start := time.Now()
		_, err = io.Copy(io.Discard, c)
		require.NoError(t, err, "the server closes the connection")
		require.InDelta(t, 5*time.Second, time.Since(start), float64(50*time.Millisecond), "readHeaderTimeout")
	}
}

// After repeated invalid tokens, requests from the address are answered with status 429 and a Retry-After header.
func TestTooManyWrongTokens(t *testing.T) { simulated(t, testTooManyWrongTokens) }

func testTooManyWrongTokens(t *testing.T) {
	b := newBrowser(t, startNode(t, func(c *config.Config) { c.Access.Mode = "deny" }).Console)
	for range 60 {
		a := b.signIn("lsk_wrong")
		if a.code == http.StatusTooManyRequests {
			require.NotEmpty(t, a.head.Get("Retry-After"))
			require.Contains(t, a.body, "Too many")
			return
		}
		require.Equal(t, http.StatusUnauthorized, a.code)
	}
	require.Fail(t, "sign-in was not rate-limited")
}

// Event streams that exceed the limit are rejected with an error.
func TestEventStreamsAreLimited(t *testing.T) { simulated(t, testEventStreamsAreLimited) }

func testEventStreamsAreLimited(t *testing.T) {
	b := newBrowser(t, startNode(t, nil).Console)
	b.csrf()
	open := 0
	for range console.MaxEvents + 8 {
		resp, err := b.http.Do(b.request(http.MethodGet, "/events/pair", nil)) //nolint:bodyclose // at the end
		require.NoError(t, err)
		t.Cleanup(func() { _ = resp.Body.Close() })
		if resp.StatusCode == http.StatusOK {
			open++
		} else {
			require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		}
	}
	require.Equal(t, console.MaxEvents, open)
	require.Equal(t, http.StatusOK, b.get("/pair").code, "pages are still served")
}

// Over TLS, users can sign in with a client certificate. The browser must then present the certificate with each
// request.
func TestSignInWithCertificate(t *testing.T) { simulated(t, testSignInWithCertificate) }

func testSignInWithCertificate(t *testing.T) {
	ca := certs.New(t, "authority")
	_, certFile, keyFile := ca.Issue(t, "a", "localhost")
	client := ca.Client(t, "alice", func(c *x509.Certificate) { c.Subject.CommonName = "alice" })
	ready := startNode(t, func(c *config.Config) {
		c.TLS.Cert, c.TLS.Key, c.TLS.CA, c.Console.TLS.Own = certFile, keyFile, ca.File, true
		c.Access.Mode, c.Access.Operators = "deny", []string{"alice"}
	})
	require.True(t, strings.HasPrefix(ready.Console, "https://"))
	b := newBrowser(t, ready.Console)
	secure := &tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{client}, MinVersion: tls.VersionTLS13}
	b.http.Transport = transport(t, secure)
	page := b.get("/sign-in").body
	require.Contains(t, page, "of alice")
	entry := entryField.FindStringSubmatch(page)
	require.Len(t, entry, 2)
	require.Equal(t, "/pair", b.post("/sign-in", url.Values{"entry": {entry[1]}, "with": {"certificate"}}).at)
	require.Equal(t, http.StatusOK, b.get("/store").code)
	require.Contains(t, b.event("/pair"), "event: live")
	u, err := url.Parse(ready.Console)
	require.NoError(t, err)
	for _, c := range b.http.Jar.Cookies(u) {
		require.True(t, strings.HasPrefix(c.Name, "__Host-"), c.Name)
	}
	none := &tls.Config{RootCAs: ca.Pool(), MinVersion: tls.VersionTLS13}
	b.http.Transport = transport(t, none)
	require.Equal(t, "/sign-in", b.get("/store").at, "the cookie is not valid without the certificate")
}
