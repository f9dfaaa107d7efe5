// SPDX-License-Identifier: Apache-2.0

// Package conformance tests a client of any language through a small process that speaks JSON lines (README.md). It
// compares the client's results with the contents of two real nodes, whose actives are killed during the cases.
package conformance
