// SPDX-License-Identifier: Apache-2.0

// Package conformance tests a client in any language through an adapter, a process that exchanges JSON lines
// (README.md). It compares the client's results with the messages stored by a real pair. Some cases kill the active
// node.
package conformance
