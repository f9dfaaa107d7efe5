// SPDX-License-Identifier: Apache-2.0

//go:build !mutate

package mutate

// Off reports whether the enforcement of an invariant is disabled. In this build it never is.
func Off(string) bool { return false }
