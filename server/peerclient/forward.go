// SPDX-License-Identifier: Apache-2.0

package peerclient

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/lockstep-mq/lockstep/server/auth/access"
)

const (
	// forwardScheme is the authorization scheme of a call that a node forwards for a caller that the node has
	// authenticated.
	forwardScheme   = "Lockstep-Forwarded "
	maxForwardBytes = 8 << 10 // maximum size of the header
	maxNameBytes    = 255     // maximum size of the name of a principal or group
)

type forwardedCaller struct {
	Principal string   `json:"principal"`
	Groups    []string `json:"groups,omitempty"`
}

// Forward returns the context for a call to the other node on behalf of a caller that this node has authenticated
// by certificate. The connection must present this node's certificate, but the call has only the rights of the
// caller.
func Forward(ctx context.Context, principal string, groups []string) (context.Context, error) {
	raw, err := json.Marshal(forwardedCaller{principal, groups})
	if err != nil {
		return nil, fmt.Errorf("encode the forwarded caller: %w", err)
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization",
		forwardScheme+base64.RawURLEncoding.EncodeToString(raw)), nil
}

// forwarded returns the original caller of a call that a node of the pair has forwarded. It returns nil if the call
// is not forwarded. Only a node that is identified by its certificate may forward calls.
func (i *Authenticator) forwarded(ctx context.Context) (*access.Identity, error) {
	values := metadata.ValueFromIncomingContext(ctx, "authorization")
	if !slices.ContainsFunc(values, func(v string) bool { return strings.HasPrefix(v, forwardScheme) }) {
		return nil, nil //nolint:nilnil // no credentials of this kind
	}
	cert := access.Certificate(ctx)
	if cert == nil || i.Names == nil || len(values) != 1 {
		return nil, fmt.Errorf("%w: only a node of the pair with a certificate may forward calls", access.ErrUnauthenticated)
	}
	if err := VerifyName(cert, i.Names()); err != nil {
		return nil, fmt.Errorf("%w: only a node of the pair may forward calls: %w", access.ErrUnauthenticated, err)
	}
	caller, err := decodeForwarded(strings.TrimPrefix(values[0], forwardScheme))
	if err != nil {
		return nil, err
	}
	return &access.Identity{
		Principal: caller.Principal, Groups: caller.Groups, Method: access.MethodCertificate,
		Via: access.CertificateName(cert),
	}, nil
}

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
