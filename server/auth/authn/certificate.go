// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/server/auth/access"
)

// ofConnection returns the identity of the connection's client certificate, verified against tls.ca, or nil. Its groups
// are the organizational units of the subject.
func ofConnection(ctx context.Context) (*access.Identity, error) {
	cert := access.Certificate(ctx)
	if cert == nil {
		return nil, nil //nolint:nilnil // none was sent
	}
	id := &access.Identity{
		Principal: access.CertificateName(cert), Method: access.MethodCertificate, Groups: cert.Subject.OrganizationalUnit,
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
