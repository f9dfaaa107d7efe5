// SPDX-License-Identifier: Apache-2.0

// Package index knows the form in which messages are stored in a page file: the index entries that say where they are,
// and the runs of pages that hold them. It stands on packages page and tree, and is what the live engine, package
// checkpoint and package rewrite have in common.
package index
