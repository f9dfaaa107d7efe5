// SPDX-License-Identifier: Apache-2.0

// Package mutate disables the enforcement of an invariant for mutation tests. A test that covers the invariant must
// then fail. Each enforcement point calls Off with a name. test/MUTATIONS.md lists the names and the failing tests, and
// the test in test/mutation verifies the list.
//
// In an ordinary build, Off always returns false, and the compiler removes the dependent code. Only a build with the
// tag "mutate" reads the environment variable LOCKSTEP_MUTATE.
package mutate

// Variable is the environment variable that contains the name to disable, in a build with the tag "mutate".
const Variable = "LOCKSTEP_MUTATE"
