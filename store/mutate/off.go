// SPDX-License-Identifier: Apache-2.0

//go:build !mutate

package mutate

// Off returns false: this build always enforces the invariants.
func Off(string) bool { return false }
