// SPDX-License-Identifier: Apache-2.0

// Package tlsfiles implements TLS configurations from PEM files, which are read again when they change. Open
// connections are unaffected.
//
// The files are checked when a connection starts, at most once per second, and on each call of Check or Reload. They
// are opened by name each time, so that a swapped symbolic link (Kubernetes does this with a mounted secret) counts as
// a change. Invalid new content is rejected as a whole: the previous content stays in use, Refused returns the reason,
// and Options.Told is called.
package tlsfiles
