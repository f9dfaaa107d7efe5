// SPDX-License-Identifier: Apache-2.0

package site

import (
	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/proto/tlsfiles"
	"github.com/lockstep-mq/lockstep/server/auth/secretfile"
	"github.com/lockstep-mq/lockstep/server/peerclient"
)

// TokenKey is the metadata key of the secret that the two sites share.
const TokenKey = "lockstep-site-token"

// DialOptions returns the options for connections to the other site: TLS credentials from files, and a token from
// secrets. Both arguments may be nil.
func DialOptions(files *tlsfiles.Source, secrets *secretfile.File) (options []grpc.DialOption) {
	if files != nil {
		options = append(options, grpc.WithTransportCredentials(files.Credentials(nil)))
	}
	if secrets != nil {
		options = append(options, grpc.WithPerRPCCredentials(peerclient.Credentials(TokenKey, secrets)))
	}
	return options
}
