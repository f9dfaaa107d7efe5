// SPDX-License-Identifier: Apache-2.0

// Package tree implements a copy-on-write B+tree of byte keys and values in the pages of a page file.
//
// # Concurrency
//
// There is one writer and any number of readers, which do not block each other. A View is an immutable version of the
// tree. An Edit creates a new version from the current one: in memory, it copies the nodes on the paths to its
// changes. Commit publishes the new version with one atomic store. Flush writes the nodes that are only in memory
// ("dirty") to new pages, with a few large writes, and frees the pages of the replaced nodes. It overwrites no pages,
// so the root returned by Flush can be the root of a checkpoint. An Edit with many dirty nodes writes them itself.
//
// # Nodes
//
// A node is one extent (store/page) of about Options.NodeBytes. A leaf with a longer value is a longer extent. Keys
// in a node are stored without their common prefix. A node that was filled in ascending order is split so that its
// first part stays full. Other nodes are split in the middle. Small nodes are merged with a neighbor. A range is
// deleted without reading the leaves that are entirely inside it.
//
// # Memory
//
// Clean nodes are kept in an LRU cache of Options.CacheBytes. Dirty nodes stay in memory until Flush, but an Edit has
// at most about Options.CacheBytes of them. Returned keys and values are slices of nodes: they must not be modified,
// and remain valid.
//
// # Pages being read
//
// Flush frees pages that an older View may still read. A caller that may use a View during a Flush must therefore take
// a guard before it calls Tree.View, and release the guard afterwards:
//
//	guard := file.ReadGuard()
//	defer guard.Release()
//	view := tree.View()
//
// If the tree was created for the root of a pinned checkpoint, its Views need only the pin. An Edit needs neither.
package tree
