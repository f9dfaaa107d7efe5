// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package conformance

import (
	"crypto/tls"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/certs"
	"github.com/lockstep-mq/lockstep/test/harness"
)

func tlsCases() []testCase {
	return []testCase{
		{name: "TLS with a client certificate", in: securePair, run: clientCertificate},
		{name: "TLS with an incorrect configuration", in: securePair, run: tlsMisconfigurations},
		{name: "TLS without a client certificate", in: secureNode, run: nodeCertificate},
		{name: "TLS with a token", in: secureNode, run: tokenOverTLS},
		{name: "TLS when the active is killed", long: true, in: securePair, run: killOverTLS},
	}
}

// identities are the certificates of an environment with TLS.
type identities struct {
	ca      string  // CA of the nodes and clients
	own     request // options of a client with a certificate of that CA
	foreign request // options of a client with a certificate of another CA
}

// secured returns the options of nodes with TLS, and the certificates of clients. clientAuth is the value of
// tls.client-auth.
func secured(t *testing.T, settings map[string]string, clientAuth string) (harness.Options, identities) {
	t.Helper()
	ca, other := certs.New(t, "ca"), certs.New(t, "other")
	root, _, _ := ca.IssueURI(t, "root", "lockstep://root.test")
	_, cert, key := ca.IssueURI(t, "client", "lockstep://client.test")
	_, foreignCert, foreignKey := other.IssueURI(t, "client", "lockstep://client.test")
	all := maps.Clone(settings)
	all["tls.ca"], all["tls.client-auth"] = ca.File, clientAuth
	o := harness.Options{
		Settings: all, NodeSettings: map[string]map[string]string{},
		Credentials: credentials.NewTLS(&tls.Config{
			RootCAs: ca.Pool(), Certificates: []tls.Certificate{root}, MinVersion: tls.VersionTLS13,
		}),
	}
	for _, name := range []string{"a", "b"} {
		_, cert, key := ca.Issue(t, name)
		o.NodeSettings[name] = map[string]string{"tls.cert": cert, "tls.key": key}
	}
	return o, identities{
		ca:      ca.File,
		own:     request{"ca": ca.File, "cert": cert, "key": key},
		foreign: request{"ca": other.File, "cert": foreignCert, "key": foreignKey},
	}
}

// roundTrip publishes, consumes and acknowledges one message.
func (r *run) roundTrip(queue string) {
	r.t.Helper()
	r.stored(queue, request{"producer": "p"})
	r.consume("k", queue, nil)
	d, _ := r.receive("k")
	r.answer("k", d, "ack", nil)
	r.flush("k")
	r.requireIdle("k")
}

func clientCertificate(t *testing.T, r *run) {
	q := r.queue("", nil)
	r.open("c", r.identities.own)
	r.roundTrip(q)
	active, _ := r.inSync(t)
	list, err := pb.NewConnectionServiceClient(active.Conn()).ListConnections(t.Context(), &pb.ListConnectionsRequest{
		Queue: q,
	})
	require.NoError(t, err)
	require.NotEmpty(t, list.GetConnections())
	for _, c := range list.GetConnections() {
		require.Equal(t, "certificate", c.GetAuthentication())
		require.Equal(t, "lockstep://client.test", c.GetPrincipal())
		require.Equal(t, "TLS 1.3", c.GetTls())
	}
	r.verify()
}

// tlsMisconfigurations: if the client does not trust the node, or the node does not trust the client, the client
// returns an error within the timeout, and nothing is stored.
func tlsMisconfigurations(t *testing.T, r *run) {
	q := r.queue("", nil)
	own, foreign := r.identities.own, r.identities.foreign
	misconfigurations := map[string]request{
		"a CA that has not issued the node's certificate": {
			"ca": foreign["ca"], "cert": own["cert"], "key": own["key"],
		},
		"no client certificate":              {"ca": own["ca"]},
		"a client certificate of another CA": {"ca": own["ca"], "cert": foreign["cert"], "key": foreign["key"]},
		"no TLS":                             {},
		"a token instead of a certificate":   {"ca": own["ca"], "token": r.makeToken("in-place")},
		"another CA, with a valid token":     {"ca": foreign["ca"], "token": r.makeToken("right")},
	}
	waiting := map[string]publication{}
	for name, options := range misconfigurations {
		r.open(name, options)
		waiting[name] = r.publish(q, request{"client": name, "timeout_ms": 1500})
	}
	for name, p := range waiting {
		got := r.recorded(p)
		require.NotNil(t, got.Error, name)
		require.Equal(t, "not-done", got.Error.Outcome, "%s: %s", name, got.Error.Message)
		require.NotEmpty(t, got.Error.Message, name)
	}
	r.open("c", own)
	r.stored(q, nil)
	r.verify()
}

func nodeCertificate(t *testing.T, r *run) {
	q := r.queue("", nil)
	r.open("c", request{"ca": r.identities.ca})
	r.roundTrip(q)
	r.open("other", request{"ca": r.identities.foreign["ca"]})
	got := r.recorded(r.publish(q, request{"client": "other", "timeout_ms": 1500}))
	require.NotNil(t, got.Error)
	require.Equal(t, "not-done", got.Error.Outcome)
	r.verify()
}

func tokenOverTLS(t *testing.T, r *run) {
	q := r.queue("", nil)
	r.open("c", request{"ca": r.identities.ca, "token": r.makeToken("over-tls")})
	r.roundTrip(q)
	active, _ := r.inSync(t)
	list, err := pb.NewConnectionServiceClient(active.Conn()).ListConnections(t.Context(), &pb.ListConnectionsRequest{
		Queue: q,
	})
	require.NoError(t, err)
	require.NotEmpty(t, list.GetConnections())
	for _, c := range list.GetConnections() {
		require.Equal(t, "token", c.GetAuthentication())
		require.Equal(t, "over-tls", c.GetPrincipal())
	}
	r.open("wrong", request{"ca": r.identities.ca, "token": "lsk_a-token-that-the-node-does-not-have"})
	got := r.recorded(r.publish(q, request{"client": "wrong", "timeout_ms": bound.Milliseconds()}))
	require.NotNil(t, got.Error)
	require.Equal(t, "not-done", got.Error.Outcome)
	require.Equal(t, "UNAUTHENTICATED", got.Error.Reason)
	r.verify()
}

func killOverTLS(t *testing.T, r *run) {
	q := r.queue("", nil)
	r.open("c", r.identities.own)
	r.stored(q, request{"producer": "load"})
	active, _ := r.inSync(t)
	r.underLoad(q, func() { _ = active.Kill() })
	require.False(t, active.Running(), "the active was killed")
	r.verify()
}
