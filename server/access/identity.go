// SPDX-License-Identifier: Apache-2.0

package access

import "context"

// Method is how a caller has shown who it is.
type Method uint8

// The methods.
const (
	MethodNone        Method = iota // nothing was shown
	MethodCertificate               // a client certificate
	MethodJWT                       // a signed token of an identity provider
	MethodToken                     // a token that the pair has made
	MethodPeerToken                 // the secret that both nodes of the pair have
)

// String gives the name that logs and the audit use.
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

// Anonymous is the principal of a caller that has shown nothing. It has the rights that rules give to that name.
const Anonymous = "anonymous"

// Identity is who calls.
type Identity struct {
	// Principal is the name that rules are about.
	Principal string
	// Groups that the principal is in.
	Groups []string
	// Method by which it was shown.
	Method Method
	// Via is the name of the node that has authenticated the caller and forwards its calls; empty: this node has.
	Via string
	// Peer: it is the other node of the pair.
	Peer bool
	// Over tells, again and again while a stream runs, why the identity holds no longer: its token has expired or was
	// revoked. nil: it holds as long as the connection does.
	Over func() error
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
