// SPDX-License-Identifier: Apache-2.0

// Package rewrite implements the maintenance of a whole page file: it rewrites the file with another page size or
// without gaps, and truncates the free end of the file.
package rewrite
