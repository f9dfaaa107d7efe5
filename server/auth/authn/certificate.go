// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"crypto/x509"
	"slices"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/lockstep-mq/lockstep/server/auth/access"
)

// ofConnection returns the identity of the connection's client certificate, verified against tls.ca, or nil.
func ofConnection(ctx context.Context) (*access.Identity, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, nil //nolint:nilnil // no connection, no certificate
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return nil, nil //nolint:nilnil // none was shown
	}
	return ofCertificate(info.State.VerifiedChains[0][0])
}

// ofCertificate returns the identity of a certificate: its first URI, first DNS name or common name. Its groups are the
// organizational units of the subject.
func ofCertificate(cert *x509.Certificate) (*access.Identity, error) {
	id := &access.Identity{Method: access.MethodCertificate, Groups: cert.Subject.OrganizationalUnit}
	switch {
	case len(cert.URIs) > 0:
		id.Principal = cert.URIs[0].String()
	case len(cert.DNSNames) > 0:
		id.Principal = cert.DNSNames[0]
	default:
		id.Principal = cert.Subject.CommonName
	}
	if err := nameable(id.Principal); err != "" {
		return nil, wrong(CheckCertificate, "URI, DNS name or common name of the certificate "+err)
	}
	if i := slices.IndexFunc(id.Groups, func(g string) bool { return nameable(g) != "" }); i >= 0 {
		return nil, wrong(CheckCertificate, "organizational unit of the certificate "+nameable(id.Groups[i]))
	}
	return id, nil
}

const maxNameBytes = 255 // of a principal or group

// nameable returns why a principal or group is invalid, or an empty string.
func nameable(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > maxNameBytes:
		return "has more than 255 bytes"
	case name == access.Anonymous:
		return "is " + access.Anonymous + ", reserved for callers without credentials"
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\ufffd' }):
		return "has invalid characters"
	}
	return ""
}
