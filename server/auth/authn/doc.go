// SPDX-License-Identifier: Apache-2.0

// Package authn authenticates callers by the token in a call's metadata, or by the certificate of its connection.
//
// A token takes precedence over a certificate: the certificate then only secures the connection. Invalid credentials
// are refused, even if the other credentials are valid. A caller without credentials is anonymous; the auth interceptor
// handles that case.
//
//   - header.go extracts the token from the metadata.
//   - certificate.go determines the identity of a certificate.
//   - A token of the pair (access token create) begins with TokenPrefix and is looked up by its SHA-256.
//   - Any other token is a JWT: jwt.go verifies it, keys.go loads the keys of its issuer.
//   - limit.go limits the cost of invalid tokens per address, failures.go counts them.
//
// An identity that can end, because its token expires or is revoked, has access.Identity.Over: the auth interceptor
// polls it for running streams.
package authn
