// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/lockstep-mq/lockstep/server/auth/access"
)

// certificateIdentity returns the identity in the connection's client certificate, which was verified against
// tls.ca. It returns nil without a certificate. The groups are the organizational units of the subject.
func certificateIdentity(ctx context.Context) (*access.Identity, error) {
	cert := access.Certificate(ctx)
	if cert == nil {
		return nil, nil //nolint:nilnil // no certificate
	}
	id := &access.Identity{
		Principal: access.CertificateName(cert), Method: access.MethodCertificate, Groups: cert.Subject.OrganizationalUnit,
	}
	if err := nameProblem(id.Principal); err != "" {
		return nil, newError(CheckCertificate, "URI, DNS name or common name of the certificate "+err)
	}
	if i := slices.IndexFunc(id.Groups, func(g string) bool { return nameProblem(g) != "" }); i >= 0 {
		return nil, newError(CheckCertificate, "organizational unit of the certificate "+nameProblem(id.Groups[i]))
	}
	return id, nil
}

// Connection returns the identity of the sender of a call according to its connection: that of the client certificate,
// or the anonymous identity without one. Tokens in the metadata are ignored.
func Connection(ctx context.Context) (*access.Identity, error) {
	id, err := certificateIdentity(ctx)
	if id == nil && err == nil {
		id = &access.Identity{Principal: access.Anonymous}
	}
	return id, err
}

const maxNameBytes = 255 // maximum size of the name of a principal or group

// nameProblem describes why the name of a principal or group is invalid. It returns "" for a valid name.
func nameProblem(name string) string {
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

// maxTokenBytes limits the size of a token.
const maxTokenBytes = 16 << 10

const header = "authorization" // metadata key of the token

// bearerToken returns the token in the metadata of a call. It returns "" without a token.
func bearerToken(ctx context.Context) (string, error) {
	values := metadata.ValueFromIncomingContext(ctx, header)
	switch len(values) {
	case 0:
		return "", nil
	case 1:
		return parseHeader(values[0])
	}
	return "", newError(CheckHeader, "more than one authorization header")
}

// parseHeader parses an authorization header (RFC 6750): the case-insensitive scheme Bearer, spaces, and a
// b64token.
func parseHeader(value string) (string, error) {
	scheme, token, found := strings.Cut(value, " ")
	token = strings.Trim(token, " ")
	switch {
	case !strings.EqualFold(scheme, "Bearer"):
		return "", newError(CheckHeader, "authorization header must have the form: Bearer TOKEN")
	case !found || token == "":
		return "", newError(CheckHeader, "authorization header has no token after Bearer")
	case len(token) > maxTokenBytes:
		return "", newError(CheckHeader, "token has more than 16 KiB")
	}
	for i := range len(token) {
		if !isTokenByte(token[i]) {
			return "", newError(CheckHeader, "token has an invalid character")
		}
	}
	return token, nil
}

func isTokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~+/=", c) >= 0
}
