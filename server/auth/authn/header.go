// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"strings"

	"google.golang.org/grpc/metadata"
)

// maxTokenBytes limits a token, since the signature covers all of it.
const maxTokenBytes = 16 << 10

const header = "authorization" // metadata key of the token

// shown returns the token in a call's metadata, or an empty string.
func shown(ctx context.Context) (string, error) {
	values := metadata.ValueFromIncomingContext(ctx, header)
	switch len(values) {
	case 0:
		return "", nil
	case 1:
		return parseHeader(values[0])
	}
	return "", wrong(CheckHeader, "metadata key authorization is repeated")
}

// parseHeader parses an authorization header (RFC 6750): the scheme Bearer, case-insensitive, spaces, and a b64token.
func parseHeader(value string) (string, error) {
	scheme, token, found := strings.Cut(value, " ")
	token = strings.Trim(token, " ")
	switch {
	case !strings.EqualFold(scheme, "Bearer"):
		return "", wrong(CheckHeader, "authorization header must have the form: Bearer TOKEN")
	case !found || token == "":
		return "", wrong(CheckHeader, "authorization header has no token after Bearer")
	case len(token) > maxTokenBytes:
		return "", wrong(CheckHeader, "token has more than 16 KiB")
	}
	for i := range len(token) {
		if !isTokenByte(token[i]) {
			return "", wrong(CheckHeader, "token has an invalid character")
		}
	}
	return token, nil
}

func isTokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~+/=", c) >= 0
}
