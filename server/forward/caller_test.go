// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/lockstep-mq/lockstep/server/auth/access"
)

// received returns the context of a call as the receiver sees it.
func received(t *testing.T, c Caller) context.Context {
	t.Helper()
	out, err := c.outgoing(t.Context(), "a", "node-1")
	require.NoError(t, err)
	md, _ := metadata.FromOutgoingContext(out)
	return metadata.NewIncomingContext(t.Context(), md)
}

func with(ctx context.Context, key string, values ...string) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	md = md.Copy()
	md.Delete(key)
	md.Append(key, values...)
	return metadata.NewIncomingContext(ctx, md)
}

// A forwarded call has the identity of the client, never that of the sender. Only a node of the fleet may forward the
// calls of clients with a certificate, and set the address of the client.
func TestAuthenticator(t *testing.T) {
	bob := &access.Identity{Principal: "bob", Method: access.MethodToken}
	authenticator := func(trusted bool) *Authenticator {
		return &Authenticator{
			Node: func(context.Context) bool { return trusted },
			Token: func(ctx context.Context) (*access.Identity, error) {
				switch metadata.ValueFromIncomingContext(ctx, authorizationKey)[0] {
				case "Bearer bobs-token":
					return bob, nil
				case "Bearer node":
					return &access.Identity{Principal: "node", Method: access.MethodCertificate}, nil
				}
				return nil, access.ErrUnauthenticated
			},
		}
	}
	alice := received(t, Caller{Address: "10.0.0.1:5", Principal: "alice", Groups: []string{"ops"}})
	token := received(t, Caller{Address: "10.0.0.2:5", Token: "bobs-token"})
	unknown := received(t, Caller{Address: "10.0.0.3:5", Principal: access.Anonymous})

	id, err := authenticator(true).Authenticate(alice)
	require.NoError(t, err)
	require.Equal(t, &access.Identity{
		Principal: "alice", Groups: []string{"ops"}, Method: access.MethodCertificate, Via: "a/node-1", Address: "10.0.0.1:5",
	}, id)
	id, err = authenticator(true).Authenticate(token)
	require.NoError(t, err)
	require.Equal(t, &access.Identity{
		Principal: "bob", Method: access.MethodToken, Via: "a/node-1", Address: "10.0.0.2:5",
	}, id)
	require.Empty(t, bob.Via, "the identity may be shared")
	for _, trusted := range []bool{true, false} {
		id, err = authenticator(trusted).Authenticate(unknown)
		require.NoError(t, err)
		require.Equal(t, access.Anonymous, id.Principal)
		require.Equal(t, access.MethodNone, id.Method)
		id, err = authenticator(trusted).Authenticate(token)
		require.NoError(t, err)
		require.Equal(t, "bob", id.Principal)
		require.Equal(t, trusted, id.Address != "", "the address is that of a trusted sender")
		id, err = authenticator(trusted).Authenticate(t.Context())
		require.NoError(t, err)
		require.Nil(t, id, "not forwarded")
	}
	encoded := func(v any) string {
		text, err := encode(v)
		require.NoError(t, err)
		return text
	}
	_, err = authenticator(false).Authenticate(alice)
	require.ErrorIs(t, err, access.ErrUnauthenticated)
	for name, ctx := range map[string]context.Context{
		"no credentials":     with(alice, authorizationKey),
		"two credentials":    with(alice, authorizationKey, "Bearer bobs-token", "Bearer bobs-token"),
		"invalid token":      with(alice, authorizationKey, "Bearer other"),
		"rights of the node": with(alice, authorizationKey, "Bearer node"),
		"two origins":        with(alice, originKey, encoded(origin{"a", "n", ""}), encoded(origin{"a", "n", ""})),
		"invalid origin":     with(alice, originKey, "?"),
		"no pair":            with(alice, originKey, encoded(origin{"", "n", ""})),
		"invalid principal":  with(alice, authorizationKey, callerScheme+"?"),
		"no principal":       with(alice, authorizationKey, callerScheme+encoded(principal{})),
		"anonymous group":    with(alice, authorizationKey, callerScheme+encoded(principal{access.Anonymous, []string{"g"}})),
		"empty group":        with(alice, authorizationKey, callerScheme+encoded(principal{"alice", []string{""}})),
		"control character":  with(alice, authorizationKey, callerScheme+encoded(principal{"a\nb", nil})),
		"long principal":     with(alice, authorizationKey, callerScheme+encoded(principal{strings.Repeat("x", 256), nil})),
	} {
		id, err := authenticator(true).Authenticate(ctx)
		require.ErrorIs(t, err, access.ErrUnauthenticated, name)
		require.Nil(t, id, name)
	}
}
