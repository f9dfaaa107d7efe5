// SPDX-License-Identifier: Apache-2.0

// Package authn authenticates callers by the token in a call's metadata, or by the certificate of its connection.
//
// A token takes precedence over a certificate, which then only secures the connection. Invalid credentials are rejected
// even if the other credentials are valid. The auth interceptor handles callers without credentials.
//
// A token created by the pair begins with TokenPrefix and is looked up by its SHA-256. Any other token is treated as a
// JWT and verified with the issuer's keys.
//
// If a token can expire or be revoked, access.Identity.Expired is set, and the auth interceptor polls it for running
// streams.
package authn
