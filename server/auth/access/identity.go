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

// Anonymous is the principal of a caller without credentials. Rules can grant it rights.
const Anonymous = "anonymous"

// Identity is an authenticated caller.
type Identity struct {
	Principal string // the name used in rules
	Groups    []string
	Method    Method
	Via       string // name of the node that authenticated the caller and forwards its calls; empty: this node
	Peer      bool   // the caller is the other node of the pair
	// Expired is polled during a stream. It returns an error once the token has expired or was revoked. nil: the identity
	// is valid as long as the connection.
	Expired func() error
}

// Shown returns how the identity was authenticated, for logs and the audit log.
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

// FromContext returns the identity of a call, which must not be modified: the anonymous one by default.
func FromContext(ctx context.Context) *Identity {
	if id, ok := ctx.Value(identityKey{}).(*Identity); ok {
		return id
	}
	return anonymous
}
