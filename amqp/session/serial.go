// SPDX-License-Identifier: Apache-2.0

package session

// Transfer and delivery numbers are serial numbers (RFC 1982): they wrap around, and the shorter distance determines
// the order.

// distance returns how far b is after a; it is negative if b is before a.
func distance(a, b uint32) int32 { return int32(b - a) }
