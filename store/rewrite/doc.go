// SPDX-License-Identifier: Apache-2.0

// Package rewrite changes a page file as a whole: it rewrites it with another page size or without gaps, and returns
// its free end to the filesystem. The store implements the interface Engine for it: pausing Apply, swapping the file,
// moving message extents.
package rewrite
