// SPDX-License-Identifier: Apache-2.0

// Package mutate switches off, for a test, what enforces an invariant: a test that is to notice a broken invariant has
// to fail then. Each place that enforces one asks Off with a name; test/MUTATIONS.md lists the names and which test
// fails, and the test in test/mutation proves that list true.
//
// In every ordinary build Off is a constant false, which the compiler removes together with what depends on it. Only a
// build with the tag "mutate" looks at the environment variable LOCKSTEP_MUTATE.
package mutate

// Variable is the environment variable that names what a build with the tag "mutate" switches off.
const Variable = "LOCKSTEP_MUTATE"
