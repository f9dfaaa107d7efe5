// SPDX-License-Identifier: Apache-2.0

package peerclient

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/lockstep-mq/lockstep/server/auth/access"
)

const (
	// forwardScheme is the authorization scheme of a call that a node makes for a caller it has authenticated. A
	// release without forwarding refuses the call, since a call with any authorization header is not accepted as one of
	// the other node.
	forwardScheme = "Lockstep-Forwarded "
	// maxForwardBytes limits the header.
	maxForwardBytes = 8 << 10
	// maxNameBytes limits a principal and a group.
	maxNameBytes = 255
)

// forwardedCaller is the caller in the header.
type forwardedCaller struct {
	Principal string   `json:"principal"`
	Groups    []string `json:"groups,omitempty"`
}

// Forward returns the context for a call to the other node on behalf of a caller authenticated by certificate on this
// node. The connection must present this node's certificate. The call has only the rights of the caller, not those of
// the node.
func Forward(ctx context.Context, principal string, groups []string) (context.Context, error) {
	raw, err := json.Marshal(forwardedCaller{principal, groups})
	if err != nil {
		return nil, fmt.Errorf("encode the forwarded caller: %w", err)
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization",
		forwardScheme+base64.RawURLEncoding.EncodeToString(raw)), nil
}

// forwarded returns the caller of a forwarded call; nil if the call is not forwarded. Only a node of the pair may
// forward calls, and only its certificate proves its identity.
func (i *Identification) forwarded(ctx context.Context) (*access.Identity, error) {
	values := metadata.ValueFromIncomingContext(ctx, "authorization")
	encoded, is := "", false
	for _, v := range values {
		if e, has := strings.CutPrefix(v, forwardScheme); has {
			encoded, is = e, true
		}
	}
	if !is {
		return nil, nil //nolint:nilnil // that is how an authenticator says that it does not know the caller
	}
	cert := CertificateOf(ctx)
	if cert == nil || i.Names == nil || len(values) != 1 {
		return nil, fmt.Errorf("%w: only a node of the pair with a certificate may forward calls",
			access.ErrUnauthenticated)
	}
	if err := Carries(cert, i.Names()); err != nil {
		return nil, fmt.Errorf("%w: only a node of the pair may forward calls: %w", access.ErrUnauthenticated, err)
	}
	caller, err := decodeForwarded(encoded)
	if err != nil {
		return nil, err
	}
	return &access.Identity{
		Principal: caller.Principal, Groups: caller.Groups, Method: access.MethodCertificate, Via: NameOf(cert),
	}, nil
}

// decodeForwarded parses and validates the header.
func decodeForwarded(encoded string) (c forwardedCaller, err error) {
	invalid := fmt.Errorf("%w: invalid forwarded caller", access.ErrUnauthenticated)
	raw, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil || len(encoded) > maxForwardBytes || json.Unmarshal(raw, &c) != nil {
		return c, invalid
	}
	for _, name := range append([]string{c.Principal}, c.Groups...) {
		if name == "" || len(name) > maxNameBytes {
			return c, invalid
		}
	}
	if c.Principal == access.Anonymous {
		return c, invalid
	}
	return c, nil
}
