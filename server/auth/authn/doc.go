// SPDX-License-Identifier: Apache-2.0

// Package authn authenticates callers by the token in a call's metadata, or by the client certificate of its
// connection.
//
// A token takes precedence over a certificate. In that case, the certificate only secures the connection. A call with
// an invalid token is rejected even if its certificate is valid.
//
// A token that the pair has created begins with TokenPrefix and is looked up by its SHA-256. Any other token is
// treated as a JWT and is verified with the issuer's keys.
//
// If a token can expire or be revoked, access.Identity.Expired is set.
package authn
