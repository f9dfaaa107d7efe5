// SPDX-License-Identifier: Apache-2.0

// Package access implements access control: identities, rights, the rights that methods require, and the rules that
// grant rights.
//
// Package server/auth authenticates each call, checks the requirements of its method, and stores the identity in the
// context. Services check rights on queues (Need.PerQueue) for each queue named in a request.
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
	MethodToken                     // a token created by the pair
	MethodPeerToken                 // the shared secret of the pair's nodes
	MethodSiteToken                 // the shared secret of two sites
)

func (m Method) String() string {
	return [...]string{"none", "certificate", "jwt", "token", "peer-token", "site-token"}[m]
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
	Site      bool   // the caller is a node of the other site
	// Expired, if not nil, is polled during a stream. It returns an error after the token has expired or was revoked.
	// If Expired is nil, the identity is valid until the connection closes.
	Expired func() error
}

// Authentication returns the authentication method of the identity as text, for logs and the audit log.
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

// FromContext returns the identity of a call, by default the anonymous one. The identity must not be modified.
func FromContext(ctx context.Context) *Identity {
	if id, ok := ctx.Value(identityKey{}).(*Identity); ok {
		return id
	}
	return anonymous
}

// Right is a set of rights.
type Right uint16

// Publish to Manage are rights on queues; the others apply to the pair.
const (
	Publish Right = 1 << iota // publish to a queue
	Consume                   // consume and acknowledge messages of a subscription
	Browse                    // read messages without consuming them, and describe the queue
	Manage                    // create, alter, purge and delete a queue and its subscriptions
	Operate                   // operate the nodes: switchover, settings, maintenance, access rules
	Audit                     // read the audit log
	Peer                      // calls reserved for the other node of the pair

	// QueueRights contains the rights that a rule grants on queues.
	QueueRights = Publish | Consume | Browse | Manage
)

// rightNames is in bit order.
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

// StreamCheck is a check that a stream's handler adds to the requirements of the method, such as a right on the
// requested queue. It is safe for concurrent use.
type StreamCheck struct{ check atomic.Pointer[func() error] }

// Check returns an error if the stream must end.
func (h *StreamCheck) Check() error {
	if check := h.check.Load(); check != nil {
		return (*check)()
	}
	return nil
}

type streamCheckKey struct{}

// WithStreamCheck returns a stream context with a StreamCheck for its handler.
func WithStreamCheck(ctx context.Context, h *StreamCheck) context.Context {
	return context.WithValue(ctx, streamCheckKey{}, h)
}

// EndUnless returns the error of check. It also ends the stream of a context when check fails after a later change of
// the rules, even while the handler waits for a slow client. check may be called from any goroutine.
func EndUnless(ctx context.Context, check func() error) error {
	if err := check(); err != nil {
		return err
	}
	if h, ok := ctx.Value(streamCheckKey{}).(*StreamCheck); ok {
		h.check.Store(&check)
		return check() // the rules may have changed before the check was stored
	}
	return nil
}

// Certificate returns the verified client certificate of a call's connection, or nil.
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

// CertificateName returns the principal of a certificate: its first URI, first DNS name or common name.
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
