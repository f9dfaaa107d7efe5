// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/test/certs"
)

// The pages of a standby work for sessions with a certificate and for sessions with a token, even if the nodes
// require certificates. Forwarded calls have the rights of the session, not those of the node. The audit log of the
// active contains the principal of the session.
func TestStandbyForwardsCalls(t *testing.T) { simulated(t, testStandbyForwardsCalls) }

func testStandbyForwardsCalls(t *testing.T) {
	ca := certs.New(t, "authority")
	_, certFile, keyFile := ca.Issue(t, "node", "localhost")
	clientCert := func(name string) tls.Certificate {
		return ca.Client(t, name, func(c *x509.Certificate) { c.Subject.CommonName = name })
	}
	as := func(b *browser, certificates ...tls.Certificate) {
		b.http.Transport = transport(b.t, &tls.Config{
			RootCAs: ca.Pool(), Certificates: certificates, MinVersion: tls.VersionTLS13,
		})
	}
	signIn := func(b *browser) {
		entry := entryField.FindStringSubmatch(b.get("/sign-in").body)
		require.Len(t, entry, 2)
		require.Equal(t, "/pair", b.post("/sign-in", url.Values{"entry": {entry[1]}, "with": {"certificate"}}).at)
	}
	alice, reader := clientCert("alice"), clientCert("reader")
	active, standby := startPairWith(t, func(c *config.Config) {
		c.TLS.Cert, c.TLS.Key, c.TLS.CA, c.Console.TLS.Own = certFile, keyFile, ca.File, true
		c.Access.Operators = []string{"alice"}
	}, func(b *browser) {
		as(b, alice)
		signIn(b)
	})
	standby.showsOther(active)
	token := standby.makeToken("t", "holder") // creates the token on the active
	for _, subjectText := range []string{"reader", "holder"} {
		standby.act("/access/grant", url.Values{
			"kind": {"principal"}, "subject": {subjectText}, "queue": {"*"}, "right": {"browse"},
		})
	}
	standby.act("/queues/create", url.Values{"name": {"orders"}})
	standby.act("/queue/publish?name=orders", url.Values{"body": {"x"}})
	require.Contains(t, standby.get("/messages?name=orders").body, `name="sequence"`)
	require.Contains(t, standby.get("/connections").body, "Node b")
	require.NotContains(t, standby.get("/connections").body, `<p class="warning">`)

	audit := active.get("/audit?method=CreateQueue").body
	require.Regexp(t, `(?s)<b>alice</b><br><span class="muted">certificate via [^<]*localhost`, audit)

	// The node's certificate has all rights, and the principals have only the browse right.
	byCertificate, byToken := newBrowser(t, standby.ready.Console), newBrowser(t, standby.ready.Console)
	as(byCertificate, reader)
	as(byToken)
	require.Eventually(t, func() bool { // wait until the standby has applied the rules
		signInOf := entryField.FindStringSubmatch(byToken.get("/sign-in").body)
		return len(signInOf) == 2 && byToken.signIn(token).at == "/pair"
	}, time.Minute, 20*time.Millisecond)
	signIn(byCertificate)
	for name, b := range map[string]*browser{"reader": byCertificate, "holder": byToken} {
		require.Eventually(t, func() bool { return b.get("/queues").code == http.StatusOK }, time.Minute,
			20*time.Millisecond, name)
		require.Contains(t, b.get("/queue?name=orders").body, `<dd id="depth">1</dd>`, name)
		require.Equal(t, http.StatusForbidden, b.get("/access").code, name)
		form := url.Values{"csrf": {b.csrf()}, "confirm": {"orders"}}
		a := b.post("/queue/purge?name=orders", form, htmx)
		require.Equal(t, http.StatusForbidden, a.code, name)
		require.Contains(t, a.body, name)
	}
}
