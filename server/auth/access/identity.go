// SPDX-License-Identifier: Apache-2.0

// Package access implements access control: identities, rights, the rights that each method requires, and the
// rules that grant rights.
package access

import (
	"context"
	"crypto/x509"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// Method is an authentication method.
type Method uint8

// Authentication methods.
const (
	MethodNone        Method = iota // no credentials
	MethodCertificate               // a client certificate
	MethodJWT                       // a signed token of an identity provider
	MethodToken                     // a token that the pair has created
	MethodPeerToken                 // the shared secret of the pair's nodes
	MethodSiteToken                 // the shared secret of two sites
	MethodFleetToken                // the shared secret of the pairs of a fleet
)

func (m Method) String() string {
	return [...]string{"none", "certificate", "jwt", "token", "peer-token", "site-token", "fleet-token"}[m]
}

// Anonymous is the principal of a caller without credentials. Rules can grant it rights.
const Anonymous = "anonymous"

// Identity is an authenticated caller.
type Identity struct {
	Principal string // name used in rules
	Groups    []string
	Method    Method
	Via       string // node that authenticated the caller and forwards its calls; empty for this node
	Address   string // address of the client, reported by a trusted node that forwards its calls; empty otherwise
	Peer      bool   // the caller is the other node of the pair
	Site      bool   // the caller is a node of the other site
	Fleet     bool   // the caller is a node of another pair of the fleet
	// Expired, if not nil, is polled while a stream is open. It returns an error when the token is no longer valid. If
	// Expired is nil, the identity is valid until the connection is closed.
	Expired func() error
}

// Authentication returns the authentication method as text, for logs and the audit log.
func (id *Identity) Authentication() string {
	if id.Via != "" {
		return id.Method.String() + " via " + id.Via
	}
	return id.Method.String()
}

var anonymous = &Identity{Principal: Anonymous} //nolint:gochecknoglobals // never changed

type identityKey struct{}

// NewContext returns a context that contains an identity.
func NewContext(ctx context.Context, id *Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// FromContext returns the identity of a call. If the context has none, it returns the anonymous identity. The
// identity must not be modified.
func FromContext(ctx context.Context) *Identity {
	if id, ok := ctx.Value(identityKey{}).(*Identity); ok {
		return id
	}
	return anonymous
}

// Right is a set of rights.
type Right uint16

// Publish, Consume, Browse and Manage are rights on queues. The other rights apply to the pair.
const (
	Publish Right = 1 << iota // publish to a queue
	Consume                   // consume and acknowledge messages of a subscription
	Browse                    // read messages without consuming them, and describe the queue
	Manage                    // create, alter, purge and delete a queue and its subscriptions
	Operate                   // operate the nodes: switchover, settings, maintenance, access rules
	Audit                     // read the audit log
	Peer                      // make calls that are reserved for the other node of the pair

	// QueueRights contains all rights on queues.
	QueueRights = Publish | Consume | Browse | Manage
)

// rightNames contains the names of the rights, in bit order.
var rightNames = [...]string{"publish", "consume", "browse", "manage", "operate", "audit", "peer"}

func (r Right) String() string {
	var names []string
	for i, name := range rightNames {
		if r>>i&1 == 1 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// StreamCheck contains a check that the handler of a stream adds to the requirements of the method. It is safe for
// concurrent use.
type StreamCheck struct{ check atomic.Pointer[func() error] }

// Check calls the added check. An error means that the stream must end.
func (h *StreamCheck) Check() error {
	if check := h.check.Load(); check != nil {
		return (*check)()
	}
	return nil
}

type streamCheckKey struct{}

// WithStreamCheck returns a context that contains h for the handler of a stream.
func WithStreamCheck(ctx context.Context, h *StreamCheck) context.Context {
	return context.WithValue(ctx, streamCheckKey{}, h)
}

// EndUnless calls check and returns its error. If check succeeds, EndUnless registers it for the stream: when check
// fails after a later change of the rules, the stream ends, even while its handler waits for a slow client. check
// may be called from any goroutine.
func EndUnless(ctx context.Context, check func() error) error {
	if err := check(); err != nil {
		return err
	}
	if h, ok := ctx.Value(streamCheckKey{}).(*StreamCheck); ok {
		h.check.Store(&check)
		return check() // again, because the rules may have changed before check was registered
	}
	return nil
}

// Certificate returns the verified client certificate of the connection of a call, or nil.
func Certificate(ctx context.Context) *x509.Certificate {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return nil
	}
	return info.State.VerifiedChains[0][0]
}

// CertificateName returns the principal of a certificate: the first URI, or else the first DNS name, or else the
// common name.
func CertificateName(cert *x509.Certificate) string {
	switch {
	case len(cert.URIs) > 0:
		return cert.URIs[0].String()
	case len(cert.DNSNames) > 0:
		return cert.DNSNames[0]
	default:
		return cert.Subject.CommonName
	}
}
