// SPDX-License-Identifier: Apache-2.0

package access

import "context"

// Method is an authentication method.
type Method uint8

// Authentication methods.
const (
	MethodNone        Method = iota // no credentials
	MethodCertificate               // a client certificate
	MethodJWT                       // a signed token of an identity provider
	MethodToken                     // a token created by the pair
	MethodPeerToken                 // the shared secret of the pair's nodes
)

// String returns the name used in logs and the audit log.
func (m Method) String() string {
	switch m {
	case MethodCertificate:
		return "certificate"
	case MethodJWT:
		return "jwt"
	case MethodToken:
		return "token"
	case MethodPeerToken:
		return "peer-token"
	case MethodNone:
	}
	return "none"
}

// Anonymous is the principal of a caller without credentials. It has the rights that rules grant to that name.
const Anonymous = "anonymous"

// Identity is an authenticated caller.
type Identity struct {
	// Principal is the name used in rules.
	Principal string
	// Groups of the principal.
	Groups []string
	// Method of authentication.
	Method Method
	// Via is the name of the node that has authenticated the caller and forwards its calls; empty: this node.
	Via string
	// Peer reports whether the caller is the other node of the pair.
	Peer bool
	// Expired is polled during a stream. It returns why the identity is no longer valid: its token expired or was revoked.
	// nil: the identity is valid as long as the connection.
	Expired func() error
}

// Shown returns how the identity was authenticated, for logs and the audit.
func (id *Identity) Shown() string {
	if id.Via != "" {
		return id.Method.String() + " via " + id.Via
	}
	return id.Method.String()
}

var anonymous = &Identity{Principal: Anonymous} //nolint:gochecknoglobals // never changed

type identityKey struct{}

// NewContext returns a context that carries an identity.
func NewContext(ctx context.Context, id *Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// FromContext returns the identity that a call's context carries: never nil, and the anonymous one if it has none. It
// must not be changed.
func FromContext(ctx context.Context) *Identity {
	if id, ok := ctx.Value(identityKey{}).(*Identity); ok {
		return id
	}
	return anonymous
}
