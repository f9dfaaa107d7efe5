// SPDX-License-Identifier: Apache-2.0

// Package authn finds out who calls: from the token in a call's metadata, or from the certificate of its connection.
//
// A token counts before a certificate: the certificate then only secures the connection. What is shown and is wrong is
// refused, also when there is something else beside it that is right. A caller that shows nothing is anonymous, which
// this package leaves to the gate.
//
//   - header.go takes the token out of the metadata.
//   - certificate.go names the holder of a certificate.
//   - A token of the pair (access token create) begins with TokenPrefix and is looked up by its SHA-256.
//   - Any other token is a JWT: jwt.go checks it, keys.go has the keys of its issuer.
//   - limit.go bounds what wrong tokens from one address cost, failures.go counts them.
//
// An identity that ends, because its token expires or is revoked, has access.Identity.Over: the gate asks it about
// running streams.
package authn
