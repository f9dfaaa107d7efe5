// SPDX-License-Identifier: Apache-2.0

package etcdconn

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// New only fails for invalid options. With a user, the client authenticates later.
func TestNewSendsNoRequest(t *testing.T) {
	_, err := New(Options{})
	require.Error(t, err)
	for _, user := range []string{"", "u"} {
		c, err := New(Options{Endpoints: []string{"127.0.0.1:1"}, Username: user, Password: user})
		require.NoError(t, err)
		require.Equal(t, user, c.Username)
		require.Equal(t, user, c.Password)
		require.NoError(t, c.Close())
	}
}

// Credentials are ignored for endpoints without TLS. Additional options follow.
func TestDialOptions(t *testing.T) {
	o := Options{
		Endpoints: []string{"https://a:1"}, Credentials: credentials.NewTLS(nil),
		DialOptions: []grpc.DialOption{grpc.WithUserAgent("a"), grpc.WithUserAgent("b")},
	}
	require.Len(t, dialOptions(&o), 4)
	o.Endpoints = append(o.Endpoints, "http://b:1")
	require.Len(t, dialOptions(&o), 3)
}
