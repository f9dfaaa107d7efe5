// SPDX-License-Identifier: Apache-2.0

package peerclient_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/peerclient"
)

// from returns the context of a call with a verified certificate and authorization headers.
func from(t *testing.T, cert *x509.Certificate, headers ...string) context.Context {
	t.Helper()
	p := &peer.Peer{}
	if cert != nil {
		p.AuthInfo = credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{cert}}}}
	}
	ctx := peer.NewContext(t.Context(), p)
	return metadata.NewIncomingContext(ctx, metadata.MD{"authorization": headers})
}

// header returns the authorization header that Forward adds.
func header(t *testing.T, principal string, groups ...string) string {
	t.Helper()
	ctx, err := peerclient.Forward(t.Context(), principal, groups)
	require.NoError(t, err)
	md, _ := metadata.FromOutgoingContext(ctx)
	require.Len(t, md.Get("authorization"), 1)
	return md.Get("authorization")[0]
}

// If the connection's certificate belongs to a node of the pair, a forwarded call has the identity of its principal,
// never that of the node. Otherwise the call is rejected.
func TestForwarded(t *testing.T) {
	node := &x509.Certificate{DNSNames: []string{"b.example"}}
	client := &x509.Certificate{Subject: pkix.Name{CommonName: "mallory"}, DNSNames: []string{"mallory.example"}}
	i := &peerclient.Authenticator{Names: func() []string { return []string{"a.example", "b.example"} }}
	alice := header(t, "alice", "ops", "dev")

	id, err := i.Authenticate(from(t, node, alice))
	require.NoError(t, err)
	require.Equal(t, &access.Identity{
		Principal: "alice", Groups: []string{"ops", "dev"}, Method: access.MethodCertificate, Via: "b.example",
	}, id)
	require.False(t, id.Peer)
	require.Equal(t, "certificate via b.example", id.Authentication())

	scheme, _, _ := strings.Cut(alice, " ")
	encode := func(text string) string { return scheme + " " + base64.RawURLEncoding.EncodeToString([]byte(text)) }
	for name, ctx := range map[string]context.Context{
		"client's certificate":  from(t, client, alice),
		"no certificate":        from(t, nil, alice),
		"two forwarded callers": from(t, node, alice, header(t, "bob")),
		"with a token":          from(t, node, "Bearer x", alice),
		"invalid base64":        from(t, node, scheme+" ?"),
		"invalid JSON":          from(t, node, encode("x")),
		"no principal":          from(t, node, encode("{}")),
		"anonymous":             from(t, node, header(t, access.Anonymous)),
		"empty group":           from(t, node, header(t, "alice", "")),
		"long principal":        from(t, node, header(t, strings.Repeat("x", 256))),
		"long header":           from(t, node, header(t, "alice", strings.Split(strings.Repeat("g,", 5000)+"g", ",")...)),
	} {
		id, err := i.Authenticate(ctx)
		require.ErrorIs(t, err, access.ErrUnauthenticated, name)
		require.Nil(t, id, name)
	}
	_, err = (&peerclient.Authenticator{}).Authenticate(from(t, node, alice)) // nodes are not identified by certificates
	require.ErrorIs(t, err, access.ErrUnauthenticated)

	id, err = i.Authenticate(from(t, node, "Bearer x"))
	require.NoError(t, err)
	require.Nil(t, id, "a token is verified by another authenticator")
	id, err = i.Authenticate(from(t, node))
	require.NoError(t, err)
	require.True(t, id.Peer)
}
