// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/metadata"

	"github.com/lockstep-mq/lockstep/server/auth/access"
)

const (
	authorizationKey = "authorization"
	bearerScheme     = "Bearer "
	// callerScheme is the authorization scheme of a forwarded call of a client without a token.
	callerScheme = "Lockstep-Fleet-Caller "
	// originKey is the metadata key of the origin. It marks a forwarded call.
	originKey       = "lockstep-forwarded-by"
	maxHeaderBytes  = 8 << 10 // maximum size of the encoded principal or origin
	maxNameBytes    = 255     // maximum size of the name of a principal or group
	maxAddressBytes = 255
)

// Caller is a client for which calls are forwarded.
type Caller struct {
	// Address is the network address of the client.
	Address string
	// Token is the bearer token of the client. It is passed on unchanged.
	Token string
	// Principal and Groups are the identity of a client without a token: that of its certificate, or access.Anonymous.
	Principal string
	Groups    []string
}

// principal identifies a client without a token.
type principal struct {
	Principal string   `json:"principal"`
	Groups    []string `json:"groups,omitempty"`
}

// origin describes the sender of a forwarded call.
type origin struct {
	Pair    string `json:"pair"`
	Node    string `json:"node"`
	Address string `json:"address"` // of the client
}

// outgoing returns the context for a call with the rights of the caller.
func (c *Caller) outgoing(ctx context.Context, pair, node string) (context.Context, error) {
	by, err := encode(origin{pair, node, c.Address})
	if err != nil {
		return nil, err
	}
	authorization := bearerScheme + c.Token
	if c.Token == "" {
		who, err := encode(principal{c.Principal, c.Groups})
		if err != nil {
			return nil, err
		}
		authorization = callerScheme + who
	}
	return metadata.NewOutgoingContext(ctx, metadata.Pairs(authorizationKey, authorization, originKey, by)), nil
}

func encode(v any) (string, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("encode the forwarded caller: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(raw), nil
}

func decode(encoded string, v any) bool {
	if len(encoded) > maxHeaderBytes {
		return false
	}
	raw, err := base64.RawURLEncoding.DecodeString(encoded)
	return err == nil && json.Unmarshal(raw, v) == nil
}

// Authenticator authenticates calls that a node of another pair has forwarded.
type Authenticator struct {
	// Node reports whether the sender of a call is a node of a pair of the fleet. Only such a node may forward calls of
	// clients with a certificate.
	Node func(ctx context.Context) bool
	// Token authenticates the bearer token of a call.
	Token func(ctx context.Context) (*access.Identity, error)
}

// Authenticate returns the identity of the client for which a call was forwarded. It never returns the identity of the
// sender. It returns nil if the call is not forwarded.
func (a *Authenticator) Authenticate(ctx context.Context) (*access.Identity, error) {
	by := metadata.ValueFromIncomingContext(ctx, originKey)
	if len(by) == 0 {
		return nil, nil //nolint:nilnil // no credentials of this kind
	}
	values := metadata.ValueFromIncomingContext(ctx, authorizationKey)
	var from origin
	if len(by) != 1 || len(values) != 1 || !decode(by[0], &from) || !from.valid() {
		return nil, fmt.Errorf("%w: invalid forwarded call", access.ErrUnauthenticated)
	}
	trusted := a.Node(ctx)
	id, err := a.identity(ctx, values[0], trusted)
	if err != nil {
		return nil, err
	}
	out := *id // may be shared
	if trusted {
		out.Via, out.Address = from.Pair+"/"+from.Node, from.Address
	}
	return &out, nil
}

func (a *Authenticator) identity(ctx context.Context, header string, trusted bool) (*access.Identity, error) {
	encoded, is := strings.CutPrefix(header, callerScheme)
	if !is {
		id, err := a.Token(ctx)
		if err == nil && (id == nil || id.Method != access.MethodToken && id.Method != access.MethodJWT) {
			err = fmt.Errorf("%w: forwarded call without a token", access.ErrUnauthenticated)
		}
		return id, err
	}
	var who principal
	if !decode(encoded, &who) || !who.valid() {
		return nil, fmt.Errorf("%w: invalid forwarded caller", access.ErrUnauthenticated)
	}
	if who.Principal == access.Anonymous {
		return &access.Identity{Principal: access.Anonymous}, nil
	}
	if !trusted {
		return nil, fmt.Errorf("%w: only a node of the fleet may forward calls of clients with a certificate: "+
			"set fleet.token-file on all nodes, or grant `operate` to the certificates of the nodes",
			access.ErrUnauthenticated)
	}
	return &access.Identity{Principal: who.Principal, Groups: who.Groups, Method: access.MethodCertificate}, nil
}

func (o *origin) valid() bool {
	return validName(o.Pair) && validName(o.Node) && len(o.Address) <= maxAddressBytes && printable(o.Address)
}

func (p *principal) valid() bool {
	for _, g := range p.Groups {
		if !validName(g) || g == access.Anonymous {
			return false
		}
	}
	return validName(p.Principal) && (p.Principal != access.Anonymous || len(p.Groups) == 0)
}

func validName(name string) bool { return name != "" && len(name) <= maxNameBytes && printable(name) }

func printable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError })
}
