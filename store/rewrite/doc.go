// SPDX-License-Identifier: Apache-2.0

// Package rewrite implements the maintenance of a whole page file: it rewrites the file with another page size or
// without gaps, and truncates the free end of the file. The store implements the interface Engine, with which this
// package pauses Apply, swaps the file and moves message extents.
package rewrite
