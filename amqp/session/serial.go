// SPDX-License-Identifier: Apache-2.0

package session

// Numbers of transfers and deliveries are serial numbers (RFC 1982): they wrap around, and the nearer way tells which
// of two comes first.

// distance tells how far b is behind a; it is negative if b comes before a.
func distance(a, b uint32) int32 { return int32(b - a) }
