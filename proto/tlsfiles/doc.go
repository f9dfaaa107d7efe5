// SPDX-License-Identifier: Apache-2.0

// Package tlsfiles makes the configuration of TLS connections from files in PEM, and reads the files again when they
// change: connections that are open go on as they are, and each new one is made with what the files hold then.
//
// The files are looked at when a connection begins, once a second at most, and whenever Look or Reload is called. They
// are read by their names each time, so that links that are swapped (as Kubernetes does with a mounted secret) count as
// a change like any other. A new content that cannot be used is refused as a whole: what was read before it stays in
// use, Refused says why, and the owner is told.
package tlsfiles
