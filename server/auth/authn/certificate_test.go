// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/lockstep-mq/lockstep/server/auth/access"
)

// The principal of a certificate is the first URI, or else the first DNS name, or else the common name.
func TestCertificatePrincipal(t *testing.T) {
	uri, err := url.Parse("spiffe://example.com/billing")
	require.NoError(t, err)
	subject := pkix.Name{CommonName: "common", OrganizationalUnit: []string{"ops", "dev"}}
	for name, tt := range map[string]struct {
		cert  x509.Certificate
		want  string
		wrong string
	}{
		"URI": {
			cert: x509.Certificate{URIs: []*url.URL{uri}, DNSNames: []string{"d"}, Subject: subject}, want: uri.String(),
		},
		"DNS":         {cert: x509.Certificate{DNSNames: []string{"first", "second"}, Subject: subject}, want: "first"},
		"common name": {cert: x509.Certificate{Subject: subject}, want: "common"},
		"no name":     {wrong: "is empty"},
		"anonymous":   {cert: x509.Certificate{DNSNames: []string{"anonymous"}}, wrong: "reserved"},
		"long":        {cert: x509.Certificate{Subject: pkix.Name{CommonName: strings.Repeat("x", 256)}}, wrong: "255"},
		"line break":  {cert: x509.Certificate{Subject: pkix.Name{CommonName: "a\nb"}}, wrong: "characters"},
		"empty unit": {
			cert:  x509.Certificate{Subject: pkix.Name{CommonName: "a", OrganizationalUnit: []string{""}}},
			wrong: "unit",
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{
				VerifiedChains: [][]*x509.Certificate{{&tt.cert}},
			}}})
			id, err := certificateIdentity(ctx)
			if tt.wrong != "" {
				require.ErrorIs(t, err, access.ErrUnauthenticated)
				require.Contains(t, err.Error(), tt.wrong)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, id.Principal)
			require.Equal(t, []string{"ops", "dev"}, id.Groups)
			require.Equal(t, access.MethodCertificate, id.Method)
			require.Nil(t, id.Expired)
		})
	}
	unverified := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{
		PeerCertificates: []*x509.Certificate{{Subject: subject}},
	}}})
	id, err := certificateIdentity(unverified)
	require.NoError(t, err)
	require.Nil(t, id, "an unverified certificate has no principal")
}
