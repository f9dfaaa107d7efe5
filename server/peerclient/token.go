// SPDX-License-Identifier: Apache-2.0

package peerclient

import (
	"context"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/lockstep-mq/lockstep/server/auth/secretfile"
)

// Credentials returns credentials that send the first secret of a file in the metadata of each request, under the given
// key. They permit connections without TLS.
func Credentials(key string, f *secretfile.File) credentials.PerRPCCredentials { return token{key, f} }

type token struct {
	key     string
	secrets *secretfile.File
}

func (t token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{t.key: t.secrets.First()}, nil
}

func (token) RequireTransportSecurity() bool { return false }

// Sent reports whether the metadata of a received request contains a secret of the file under the given key.
func Sent(ctx context.Context, key string, f *secretfile.File) bool {
	for _, shown := range metadata.ValueFromIncomingContext(ctx, key) {
		if f.Contains(shown) {
			return true
		}
	}
	return false
}
