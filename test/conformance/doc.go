// SPDX-License-Identifier: Apache-2.0

// Package conformance drives a client of any language, through a small process that speaks JSON lines (README.md), and
// holds what it tells its application against what two real nodes store, with their actives killed in the middle.
package conformance
