// SPDX-License-Identifier: Apache-2.0

// Package peerclient implements the client for the other node of the pair: status, maintenance, digests and intact
// copies of messages.
package peerclient
